"""The objects of a network's subgraphs: out of the build cache, or compiled side by side."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from records import tasks
from tuner.build_cache.cache import BuildLock, Cache
from tuner.build_cache.entries import Entry
from tuner.build_cache.keys import Key, KeyDifference
from tuner.context import Context
from tuner.engines.base import LinkedObject, ObjectRequest, ObjectResult, TargetInfo
from tuner.errors import WorkError
from tuner.workers.pool import CallTimeout, Pool, PoolCall, first_of
from tuner.workers.pools import compiler_pool

KIND = "subgraph"
_TIMEOUT_SECS = 600.0
# Fewer are compiled before another process has imported a compiler.
_WORTH_A_PROCESS = 8


@dataclass(frozen=True)
class SubgraphRequest:
    """A subgraph whose object is wanted; without a trace it is a fallback.

    Attributes:
        workload: Its hash.
        name: What it computes.
        task_id: A task of it.
        trace: How to schedule it.
        trace_hash: Hash of that.
        flop: Operations of a call: what has more of them mostly takes longer to compile.
    """

    workload: str
    name: str
    task_id: int
    trace: str = ""
    trace_hash: str | None = None
    flop: float = 0.0


@dataclass(frozen=True)
class Step:
    """How the object of one subgraph came about.

    Attributes:
        workload: Its hash.
        name: What it computes.
        hit: Whether it was in the cache.
        secs: What compiling it took, now or when it was compiled.
        why: Of a miss that is to be explained, the nearest entry; None if there is none.
    """

    workload: str
    name: str
    hit: bool
    secs: float
    why: KeyDifference | None = None


OnStep = Callable[[Step], None]


@dataclass(frozen=True)
class Objects:
    """Objects by workload, held in the cache, and how each came about."""

    entries: Mapping[str, Entry]
    steps: tuple[Step, ...]

    def write_into(self, folder: Path) -> dict[str, LinkedObject]:
        """Lay out the files of every object below a folder."""
        linked = {}
        for workload, entry in self.entries.items():
            into = folder / entry.digest
            into.mkdir(exist_ok=True)
            entry.write_into(into)
            info = entry.info
            linked[workload] = LinkedObject(str(into), symbol_of(entry.digest), info["linking"])
        return linked

    def close(self) -> None:
        """Let go of the entries."""
        for entry in self.entries.values():
            entry.close()


@dataclass(frozen=True)
class Compiler:
    """Gets objects for one target.

    Attributes:
        context: Settings and database.
        cache: The build cache.
        target: What to compile for.
        worker: A process that may compile, too.
        explain: Whether to look for the nearest entry of every miss.
        on_step: Function that receives each object's step when the object is ready.
    """

    context: Context
    cache: Cache
    target: TargetInfo
    worker: Pool
    explain: bool = False
    on_step: OnStep = lambda _: None

    def objects(self, wanted: Sequence[SubgraphRequest]) -> Objects:
        """Find the objects of subgraphs, and compile what nobody has compiled yet.

        Raises:
            WorkError: If one cannot be compiled; it is named.
        """
        got: dict[str, Entry] = {}
        steps: dict[str, Step] = {}
        missing = list(wanted)
        while missing:
            left = []
            for each in missing:
                entry = self.cache.find(self.key_of(each))
                if entry is None:
                    left.append(each)
                else:
                    self._take(each, entry, got, steps, hit=True)
            missing = self._compile(left, got, steps)
        return Objects(
            {each.workload: got[each.workload] for each in wanted},
            tuple(steps[each.workload] for each in wanted),
        )

    def key_of(self, wanted: SubgraphRequest) -> Key:
        """Return the key of an object: all that its bytes depend on."""
        return Key(
            KIND,
            {
                "engine": self.context.settings.engine,
                "workload": wanted.workload,
                "trace": wanted.trace_hash,
                "target": self.target.spec,
                "device": dict(self.target.device),
                "compiler": dict(self.target.compiler),
            },
            wanted.name,
        )

    def object_request(self, wanted: SubgraphRequest, out: Path) -> ObjectRequest:
        """Return what a worker is asked to compile."""
        with self.context.readers() as session:
            ir = tasks.workload_ir(session, wanted.task_id)
        symbol = symbol_of(self.key_of(wanted).digest)
        return ObjectRequest(ir, self.target.spec, wanted.trace, symbol, str(out))

    def _compile(
        self, missing: Sequence[SubgraphRequest], got: dict[str, Entry], steps: dict[str, Step]
    ) -> list[SubgraphRequest]:
        """Compile what no other process compiles now; return what the others did not finish."""
        others = []
        with ExitStack() as stack:
            claimed: list[tuple[SubgraphRequest, BuildLock]] = []
            for each in missing:
                claim = self.cache.try_lock(self.key_of(each))
                if claim is None:
                    others.append(each)
                    continue
                stack.enter_context(claim)
                if claim.entry is None:
                    claimed.append((each, claim))
                else:
                    self._take(each, claim.entry, got, steps, hit=True)
            for each, entry in self._compile_claimed(claimed):
                self._take(each, entry, got, steps, hit=False)
        unfinished = []
        for each in others:
            waited = self.cache.wait_for(self.key_of(each))
            if waited is None:
                unfinished.append(each)
            else:
                self._take(each, waited, got, steps, hit=True)
        return unfinished

    def _compile_claimed(
        self, claimed: Sequence[tuple[SubgraphRequest, BuildLock]]
    ) -> Iterator[tuple[SubgraphRequest, Entry]]:
        """Compile in this build's worker, and in as many more as the settings allow."""
        n_more = self.context.settings.n_builders - 1 if len(claimed) >= _WORTH_A_PROCESS else 0
        with ExitStack() as stack:
            scratch = stack.enter_context(self.cache.new_folder())
            pools = [self.worker]
            if n_more:
                pools.append(stack.enter_context(compiler_pool(self.context.settings, n_more)))
            # The longest first, so that no process is left with one at the end.
            waiting = deque(sorted(claimed, key=lambda each: -each[0].flop))
            running: dict[PoolCall, tuple[SubgraphRequest, BuildLock, Path]] = {}
            while waiting or running:
                for pool in pools:
                    while waiting and _n_calls(running, pool) < pool.n_workers:
                        each, claim = waiting.popleft()
                        out = scratch / each.workload
                        out.mkdir()
                        running[self._submit(pool, each, out)] = (each, claim, out)
                call = first_of(running)
                each, claim, out = running.pop(call)
                yield each, claim.keep(out, _finish(each, call))

    def _submit(self, pool: Pool, wanted: SubgraphRequest, out: Path) -> PoolCall:
        return pool.submit(
            self.context.settings.engine,
            "compile_subgraph",
            self.object_request(wanted, out),
            timeout_secs=_TIMEOUT_SECS,
        )

    def _take(
        self,
        wanted: SubgraphRequest,
        entry: Entry,
        got: dict[str, Entry],
        steps: dict[str, Step],
        *,
        hit: bool,
    ) -> None:
        why = None
        if self.explain and not hit:
            why = self.cache.nearest(self.key_of(wanted))
        got[wanted.workload] = entry
        step = Step(wanted.workload, wanted.name, hit, float(entry.info["secs"]), why)
        steps[wanted.workload] = step
        self.on_step(step)


def symbol_of(digest: str) -> str:
    """Name the function of an object after its key, so that equal keys give equal bytes."""
    return f"tuner_{digest[:24]}"


def _finish(wanted: SubgraphRequest, call: PoolCall) -> dict[str, Any]:
    """Wait for a compilation, and return what its entry says of it."""
    try:
        result: ObjectResult = call.result()
    except CallTimeout as error:
        raise WorkError(
            f"compiling {wanted.name} took longer than {_TIMEOUT_SECS:.0f} s"
        ) from error
    except WorkError as error:
        raise WorkError(f"cannot compile {wanted.name} ({wanted.workload}): {error}") from error
    return {"secs": result.secs, "linking": dict(result.info)}


def _n_calls(running: Mapping[PoolCall, Any], pool: Pool) -> int:
    return sum(1 for call in running if call.pool is pool)
