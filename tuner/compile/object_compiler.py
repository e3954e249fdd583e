"""Objects of a network's subgraphs, read from the build cache or compiled side by side."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from records import tasks
from tuner.build_cache.cache import BuildLock, Cache
from tuner.build_cache.entries import Entry
from tuner.build_cache.keys import Key
from tuner.compile.subgraphs import (
    BuildStep,
    OnStep,
    SubgraphObjects,
    SubgraphRequest,
    symbol_of,
)
from tuner.context import Context
from tuner.engines.base import ObjectRequest, ObjectResult, TargetInfo, variant_of
from tuner.errors import WorkError
from tuner.formatting import by_variant
from tuner.workers.base import FutureCall, first_of
from tuner.workers.confinement.memory import builder_count
from tuner.workers.exchange import OutputFolder
from tuner.workers.factory import compiler_pool
from tuner.workers.pool import CallTimeout, Pool

KIND = "subgraph"
_TIMEOUT_SECS = 600.0
# Fewer objects are compiled before another process has imported a compiler.
_MIN_PARALLEL = 8


class _Ready(NamedTuple):
    entry: Entry
    step: BuildStep


class _Locked(NamedTuple):
    request: SubgraphRequest
    lock: BuildLock


class _Running(NamedTuple):
    pool: Pool
    item: _Locked
    out: OutputFolder
    opened: ExitStack


@dataclass(frozen=True)
class ObjectCompiler:
    """Compiler of objects for one target.

    Attributes:
        context: Settings and database.
        cache: Build cache.
        worker: Process that compiles; more are started for many objects.
        explain: True to look for the nearest entry of every miss.
        on_step: Function that receives the origin of each object when it is ready.
    """

    context: Context
    cache: Cache
    target: TargetInfo
    worker: Pool
    explain: bool = False
    on_step: OnStep = lambda _: None

    def objects(self, requests: Sequence[SubgraphRequest]) -> SubgraphObjects:
        """Read the objects of subgraphs from the cache; compile missing ones.

        Objects that another process compiles at the same time are awaited.

        Raises:
            WorkError: If a subgraph cannot be compiled; the message names it.
        """
        ready: dict[str, _Ready] = {}
        missing = list(requests)
        while missing:
            missing = self._compile(self._find(missing, ready), ready)
        return SubgraphObjects(
            {request.workload: ready[request.workload].entry for request in requests},
            tuple(ready[request.workload].step for request in requests),
        )

    def key_of(self, request: SubgraphRequest) -> Key:
        """Return the key of an object: everything that its bytes depend on."""
        return Key(
            KIND,
            {
                "engine": self.context.settings.engine,
                "workload": request.workload,
                "trace": request.trace_hash,
                "target": self.target.spec,
                "device": dict(self.target.device),
                "compiler": dict(self.target.compiler),
            },
            by_variant(request.name, variant_of(request.trace)),
        )

    def object_request(self, request: SubgraphRequest, out: Path) -> ObjectRequest:
        """Return the request that a worker compiles into the folder ``out``."""
        with self.context.readers() as session:
            ir = tasks.workload_ir(session, request.task_id)
        symbol = symbol_of(self.key_of(request).digest)
        return ObjectRequest(ir, self.target.spec, request.trace, symbol, str(out))

    def _find(
        self, requests: Sequence[SubgraphRequest], ready: dict[str, _Ready]
    ) -> list[SubgraphRequest]:
        """Take objects from the cache; return the requests that it lacks."""
        missing = []
        for request in requests:
            entry = self.cache.find(self.key_of(request))
            if entry is None:
                missing.append(request)
            else:
                self._add(request, entry, ready, hit=True)
        return missing

    def _compile(
        self, requests: Sequence[SubgraphRequest], ready: dict[str, _Ready]
    ) -> list[SubgraphRequest]:
        """Compile what no other process compiles now; return what the others did not finish."""
        elsewhere = []
        with ExitStack() as stack:
            locked: list[_Locked] = []
            for request in requests:
                lock = self.cache.try_lock(self.key_of(request))
                if lock is None:
                    elsewhere.append(request)
                    continue
                stack.enter_context(lock)
                if lock.entry is None:
                    locked.append(_Locked(request, lock))
                else:
                    self._add(request, lock.entry, ready, hit=True)
            for request, entry in self._compile_locked(locked):
                self._add(request, entry, ready, hit=False)
        unfinished = []
        for request in elsewhere:
            finished = self.cache.wait_for(self.key_of(request))
            if finished is None:
                unfinished.append(request)
            else:
                self._add(request, finished, ready, hit=True)
        return unfinished

    def _compile_locked(self, locked: Sequence[_Locked]) -> Iterator[tuple[SubgraphRequest, Entry]]:
        """Compile in the worker of this build, and in as many more as the settings allow."""
        settings = self.context.settings
        n_more = builder_count(settings) - 1 if len(locked) >= _MIN_PARALLEL else 0
        with ExitStack() as stack:
            # Each process has a pool of its own, so that none reaches what another makes.
            more = (stack.enter_context(compiler_pool(settings)) for _ in range(n_more))
            pools = [self.worker, *more]
            # The largest first, so that no process ends long after the others.
            waiting = deque(sorted(locked, key=lambda item: -item.request.flop))
            running: dict[FutureCall, _Running] = {}
            while waiting or running:
                for pool in pools:
                    while (
                        waiting
                        and sum(1 for each in running.values() if each.pool is pool)
                        < pool.n_workers
                    ):
                        item = waiting.popleft()
                        opened = stack.enter_context(ExitStack())
                        out = opened.enter_context(pool.exchange.new_output())
                        call = pool.submit(
                            settings.engine,
                            "compile_subgraph",
                            self.object_request(item.request, out.path),
                            timeout_secs=_TIMEOUT_SECS,
                        )
                        running[call] = _Running(pool, item, out, opened)
                call = first_of(running)
                _, (request, lock), out, opened = running.pop(call)
                # Wait for a compilation, and return the facts that its entry stores.
                try:
                    result: ObjectResult = call.result()
                except CallTimeout as error:
                    raise WorkError(
                        f"compiling {request.name} took longer than {_TIMEOUT_SECS:.0f} s"
                    ) from error
                except WorkError as error:
                    raise WorkError(
                        f"cannot compile {request.name} ({request.workload}): {error}"
                    ) from error
                info = {"secs": result.secs, "linking": dict(result.info)}
                with opened, self.cache.new_folder() as kept:
                    out.take(kept)
                    yield request, lock.keep(kept, info)

    def _add(
        self, request: SubgraphRequest, entry: Entry, ready: dict[str, _Ready], *, hit: bool
    ) -> None:
        nearest = None
        if self.explain and not hit:
            nearest = self.cache.nearest(self.key_of(request))
        secs = float(entry.info["secs"])
        variant = str(entry.info["linking"].get("variant", variant_of(request.trace)))
        step = BuildStep(request.workload, request.name, hit, secs, nearest, variant)
        ready[request.workload] = _Ready(entry, step)
        self.on_step(step)
