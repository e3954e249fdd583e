"""Making of a pack: the tasks of networks, their candidates, binaries and expected outputs."""

import json
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from records import measure_records, tasks
from records.logs import other_targets
from records.models import MeasureRecord
from records.service import offered_packs
from tuner.compile.build_library import best_records
from tuner.context import Context
from tuner.engines.base import InputKind, ReferenceRequest, TargetInfo, variant_of
from tuner.engines.packed import KernelOffer, PackedCandidate, PackedNetwork, PackedSource
from tuner.errors import RequestError, TunerError, WorkError
from tuner.executors.factory import open_describer
from tuner.files.atomic_files import atomic_file
from tuner.interrupts import interruptible
from tuner.jobs.preparation import Prepared, prepare
from tuner.jobs.requests import ModelRequest
from tuner.packs import archive, choice, launch_plans, registry, result_lines
from tuner.packs.registry import RegisteredCandidate, RegisteredPack
from tuner.workers.base import CallTimeout, FutureCall
from tuner.workers.confinement.memory import builder_count
from tuner.workers.confinement.sandbox_paths import model_access
from tuner.workers.factory import builder_pool, fresh_worker
from tuner.workers.pool import Pool

_ENGINE = "tuner.engines.relax.worker"
_OFFER_TIMEOUT_SECS, _REFERENCE_TIMEOUT_SECS, _COMPILE_TIMEOUT_SECS = 120.0, 600.0, 60.0
_MAX_SEED = 2**31 - 1
_NETWORK_TIMEOUT_SECS = 600.0
# Records of a workload that take part again, so that finals in the network have what to choose.
_N_RIVALS = 3
# Candidates of a workload that the machine with the GPU may compile, those of one call to print
# them, and its limit: 50 bytes of the pack and 20 ms each.
_MAX_SOURCES, _N_PRINTED, _PRINT_TIMEOUT_SECS = 200, 100, 120.0

# Receives the number of candidates that were compiled, and that of all.
OnCompiled = Callable[[int, int], None]


@dataclass(frozen=True)
class PackOptions:
    """Options of a pack.

    Attributes:
        n_candidates: Number of candidates, at most.
        seed: Seed of the candidates that are drawn.
        on_compiled: Receives the progress.
    """

    out: Path
    n_candidates: int
    seed: int = 0
    on_compiled: OnCompiled = lambda _done, _all: None


@dataclass(frozen=True)
class MadePack:
    """A pack that was made.

    Attributes:
        pack: Its id.
        n_refused: Candidates that the compiler refused.
        n_bytes: Size of the file.
        secs: Time that it took.
        notes: Subgraphs that have no candidates in it, and networks that are not timed, for
            people.
    """

    pack: str
    path: Path
    n_candidates: int
    n_refused: int
    n_bytes: int
    secs: float
    notes: tuple[str, ...]


@dataclass
class _Subgraph:
    """A workload of the networks, and what the pack has of it."""

    hash: str
    name: str
    task_id: int
    calls: int = 0
    network_bytes: int = 0
    ir: bytes = b""
    offer: KernelOffer = field(default_factory=KernelOffer)
    names: list[str] = field(default_factory=list)
    more: list[str] = field(default_factory=list)
    traces: list[str] = field(default_factory=lambda: [""])

    @property
    def cost(self) -> float:
        """Estimated time in all networks, seconds."""
        return self.calls * self.offer.secs


@dataclass(frozen=True)
class _Calls:
    """Calls for a subgraph whose results are taken once; those of its schedules come first."""

    references: Sequence[FutureCall]
    schedules: deque[FutureCall]
    candidates: deque[FutureCall]
    sources: Sequence[FutureCall]


@dataclass(frozen=True)
class _Planned:
    """A network and its launches, or the reason why there are none."""

    network: Prepared
    plan: PackedNetwork | None
    problem: str = ""


def make_pack(context: Context, requests: Sequence[ModelRequest], options: PackOptions) -> MadePack:
    """Compile candidates for the networks into a file that a GPU without a compiler measures.

    What was measured for the target, and what open packs have, is left out.

    Args:
        context: Settings and database.
        requests: Networks, all for one target.

    Raises:
        RequestError: If the target is not a GPU's, or has no candidates for these networks.
        WorkError: If the file cannot be written.
    """
    started = time.monotonic()
    if context.settings.engine != _ENGINE:
        raise RequestError("the engine relax alone makes packs", field="engine")
    if options.out.exists():
        raise RequestError(
            f"{options.out} exists: its candidates are left out of other packs until its results "
            "are imported or tuner pack status --forget drops it; name another file",
            field="out",
        )
    with interruptible(only_waiting=True):
        planned = _prepare(context, requests)
        networks = [each.network for each in planned]
        target = networks[0].target
        subgraphs = _subgraphs(networks)
        with builder_pool(context.settings, builder_count(context.settings)) as pool:
            maker = _Maker(context, pool, target, options)
            maker.choose(subgraphs, networks)
            if not any(each.names for each in subgraphs):
                raise RequestError(
                    f"{target.spec}: no subgraph of {', '.join(map(_name, networks))} has "
                    "candidates that were not measured and are in no open pack; tuner pack status "
                    "lists the packs"
                )
            return maker.write(subgraphs, planned, started)


def _prepare(context: Context, requests: Sequence[ModelRequest]) -> list[_Planned]:
    settings, models = context.settings, [each.reference for each in requests]
    with (
        open_describer(settings) as describe,
        fresh_worker(settings, access=model_access(*models)) as worker,
    ):
        networks = [
            prepare(each, context, worker, must_run=False, describe=describe) for each in requests
        ]
        if networks[0].target.kind != "cuda":
            raise RequestError(
                "packs are for GPUs: give a target such as cuda:sm_90", field="target"
            )
        return [_plan(network, settings.engine, worker) for network in networks]


def _plan(network: Prepared, engine: str, worker: Pool) -> _Planned:
    """Have the launches of a network read."""
    try:
        plan = worker.call(
            engine, "pack_network", network.model.file, network.target.spec,
            timeout_secs=_NETWORK_TIMEOUT_SECS,
        )  # fmt: skip
    except (TunerError, CallTimeout) as error:
        return _Planned(network, None, str(error))
    return _Planned(network, plan)


def _subgraphs(networks: Sequence[Prepared]) -> list[_Subgraph]:
    """Return the workloads of networks, with their calls in all of them."""
    subgraphs: dict[str, _Subgraph] = {}
    for network in networks:
        for task in network.tasks:
            new = _Subgraph(task.workload_hash, task.name, task.task_id)
            subgraph = subgraphs.setdefault(task.workload_hash, new)
            subgraph.calls += task.weight
            subgraph.network_bytes = max(subgraph.network_bytes, network.n_bytes)
    return list(subgraphs.values())


def _name(network: Prepared) -> str:
    return network.model.name


@dataclass
class _Maker:
    """Fills a pack by calls of builders."""

    context: Context
    pool: Pool
    target: TargetInfo
    options: PackOptions
    n_refused: int = 0
    n_all: int = 0
    n_done: int = 0
    notes: list[str] = field(default_factory=list)

    def choose(self, subgraphs: Sequence[_Subgraph], networks: Sequence[Prepared]) -> None:
        """Choose the candidates of each subgraph, the most expensive subgraphs first."""
        best = {
            workload: record
            for network in networks
            for workload, record in best_records(self.context, network, network.tasks).items()
        }
        with self.context.readers() as session:
            for subgraph in subgraphs:
                subgraph.ir = tasks.workload_ir(session, subgraph.task_id)
                if subgraph.hash in best:
                    record = session.get_one(MeasureRecord, best[subgraph.hash].record_id)
                    ranked = other_targets.ranked(session, record.task_id, _N_RIVALS)
                    subgraph.traces = [each.trace for each in ranked]
            measured = {
                each.hash: other_targets.traces_of_spec(session, each.task_id, self.target.spec)
                for each in subgraphs
            }
        known = self._known(measured)
        calls = [
            self._submit("offer_kernels", each.ir, self.target.spec, secs=_OFFER_TIMEOUT_SECS)
            for each in subgraphs
        ]
        for subgraph, call in zip(subgraphs, calls, strict=True):
            try:
                subgraph.offer = call.result()
                problem = "" if subgraph.offer.names else "no template of Triton fits it"
            except (WorkError, CallTimeout) as error:
                problem = str(error)
            if problem:
                self.notes.append(f"{subgraph.name}: {problem}")
        costs = {each.hash: each.cost for each in subgraphs}
        sizes = {each.hash: len(set(each.offer.names) - known[each.hash]) for each in subgraphs}
        shares = choice.share_out(costs, sizes, self.options.n_candidates)
        for each in subgraphs:
            names, n = each.offer.names, shares[each.hash]
            each.names = choice.choose(names, known[each.hash], n, self.options.seed)
            taken = known[each.hash].union(each.names, map(_name_of, each.traces))
            each.more = [name for name in names if name not in taken][:_MAX_SOURCES]

    def _known(self, measured: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
        """Return the variants of each workload that were measured or are in open packs."""
        known = {name: set(map(variant_of, traces)) for name, traces in measured.items()}
        with self.context.readers() as session:
            ended = {each.pack for each in offered_packs.list_packs(session) if each.ended}
        for pack in registry.load_all(self.context.settings.data_dir):
            if pack.spec == self.target.spec and not pack.imported and pack.pack not in ended:
                for workload, candidates in pack.workloads.items():
                    if workload in known:
                        known[workload].update(candidates)
        return known

    def write(
        self, subgraphs: Sequence[_Subgraph], planned: Sequence[_Planned], started: float
    ) -> MadePack:
        """Compile the candidates and write the file, which appears when it is complete."""
        subgraphs = sorted(subgraphs, key=lambda each: (-each.cost, each.hash))
        self.n_all = sum(len(each.names) for each in subgraphs)
        pack, key, out = secrets.token_hex(6), secrets.token_hex(32), self.options.out
        arch = str(json.loads(self.target.spec)["arch"])
        calls = [self._start(each) for each in subgraphs]
        registered: dict[str, dict[str, RegisteredCandidate]] = {}
        sources: dict[str, dict[str, RegisteredCandidate]] = {}
        names = [_name(each.network) for each in planned]
        with (
            registry.forgotten_on_error(self.context.settings.data_dir, pack),
            atomic_file(out, 0o600) as stream,  # with the key, results can be made up
        ):
            writer = archive.PackWriter(stream)
            workloads: list[dict[str, Any]] = []
            firsts: dict[str, tuple[str, PackedCandidate]] = {}
            for subgraph, call in zip(subgraphs, calls, strict=True):
                compiled = self._compile(subgraph, call)
                if compiled:
                    firsts[subgraph.hash] = next(iter(compiled.items()))
                if call.references and compiled:
                    try:
                        workloads.append(_add(writer, subgraph, call, compiled))
                        registered[subgraph.hash] = _registered(compiled)
                        sources[subgraph.hash] = self._add_sources(writer, subgraph, call)
                    except (WorkError, CallTimeout) as error:
                        self.notes.append(f"{subgraph.name}: {error}")
            if not workloads:
                raise WorkError(f"no candidate can be measured: {'; '.join(self.notes)}")
            index = {
                "format": result_lines.FORMAT,
                "id": pack,
                "key": key,
                "target": arch,
                "triton": metadata.version("triton"),
                "capabilities": _capabilities(arch),
                "networks": self._add_networks(writer, planned, firsts, set(registered)),
                "workloads": workloads,
            }
            writer.close(index)
            made = RegisteredPack(
                pack=pack,
                key=key,
                made=datetime.now(UTC).isoformat(timespec="seconds"),
                file=out.name,
                engine=self.context.settings.engine,
                spec=self.target.spec,
                capabilities=_capabilities(arch),
                versions={name: self.target.device[name] for name in ("tvm", "llvm")},
                networks=names,
                workloads=registered,
                sources=sources,
            )
            registry.store(self.context.settings.data_dir, made)
        secs, n_bytes = time.monotonic() - started, out.stat().st_size
        return MadePack(
            pack, out, made.n_candidates, self.n_refused, n_bytes, secs, tuple(self.notes)
        )

    def _start(self, subgraph: _Subgraph) -> _Calls:
        """Submit the calls for a subgraph; builders serve them in their order."""
        spec = self.target.spec
        has_choice = subgraph.offer.names and len(subgraph.names) + len(subgraph.traces) > 1
        seeds = {"whole": 1 + secrets.randbelow(_MAX_SEED), "real": 0} if has_choice else {}
        return _Calls(
            [
                self._submit(
                    "reference",
                    ReferenceRequest(subgraph.ir, spec, cast("InputKind", kind), seed),
                    secs=_REFERENCE_TIMEOUT_SECS,
                )
                for kind, seed in seeds.items()
            ],
            deque(
                self._submit("pack_schedule", subgraph.ir, spec, trace, secs=_COMPILE_TIMEOUT_SECS)
                for trace in (subgraph.traces if has_choice else subgraph.traces[:1])
            ),
            deque(
                self._submit("pack_candidate", subgraph.ir, spec, name, secs=_COMPILE_TIMEOUT_SECS)
                for name in subgraph.names
            ),
            [
                self._submit(
                    "print_candidates",
                    subgraph.ir,
                    spec,
                    subgraph.more[at : at + _N_PRINTED],
                    secs=_PRINT_TIMEOUT_SECS,
                )
                for at in range(0, len(subgraph.more) if has_choice else 0, _N_PRINTED)
            ],
        )

    def _compile(self, subgraph: _Subgraph, calls: _Calls) -> dict[str, PackedCandidate]:
        """Return the kernels of a subgraph by name, those that a library has now first."""
        compiled: dict[str, PackedCandidate] = {}
        while calls.schedules:
            try:
                schedule: PackedCandidate = calls.schedules.popleft().result()
                compiled.setdefault(_name_of(schedule.trace), schedule)
            except (TunerError, CallTimeout) as error:
                self.notes.append(f"{subgraph.name}: {error}")
        for name in subgraph.names:
            try:
                compiled.setdefault(name, calls.candidates.popleft().result())
            except (WorkError, CallTimeout) as error:
                self.n_refused += 1
                if not compiled:
                    self.notes.append(f"{subgraph.name}: {error}")
            self.n_done += 1
            self.options.on_compiled(self.n_done, self.n_all)
        return compiled

    def _add_sources(
        self, writer: archive.PackWriter, subgraph: _Subgraph, calls: _Calls
    ) -> dict[str, RegisteredCandidate]:
        """Add the sources of candidates that are not compiled here."""
        printed: dict[str, PackedSource] = {}
        for call in calls.sources:
            try:
                printed |= call.result()
            except (WorkError, CallTimeout) as error:
                self.notes.append(f"{subgraph.name}: {error}")
        writer.add_sources(subgraph.hash, printed)
        return _registered(printed)

    def _add_networks(
        self,
        writer: archive.PackWriter,
        planned: Sequence[_Planned],
        firsts: Mapping[str, tuple[str, PackedCandidate]],
        workloads: Collection[str],
    ) -> list[dict[str, Any]]:
        """Add the launches of networks; return their entries in the index.

        Args:
            firsts: Kernels that a library has now, with their name, by workload.
            workloads: Workloads that have candidates in the pack.
        """
        entries: list[dict[str, Any]] = []
        for each in planned:
            name, problem = _name(each.network), each.problem
            if each.plan is not None:
                called = {kernel for kernel, _ in each.plan.calls} - set(each.plan.others)
                missing = called - set(firsts)
                problem = f"{len(missing)} subgraphs have no kernels" if missing else ""
            if each.plan is None or problem:
                self.notes.append(f"{name} is not timed as a whole: {problem}")
                continue
            content = bytearray()
            entry = launch_plans.entry_of(each.plan, firsts, workloads, content)
            if any(name == other["name"] for other in entries):
                name = f"{name} ({len(entries)})"  # results name networks
            entries.append({"number": len(entries), "name": name, **entry})
            writer.add_network(len(entries) - 1, bytes(content))
        return entries

    def _submit(self, function: str, *args: Any, secs: float) -> FutureCall:
        return self.pool.submit(self.context.settings.engine, function, *args, timeout_secs=secs)


def _add(
    writer: archive.PackWriter,
    subgraph: _Subgraph,
    calls: _Calls,
    compiled: Mapping[str, PackedCandidate],
) -> dict[str, Any]:
    """Add a subgraph to the pack; return its entry in the index.

    Raises:
        WorkError, CallTimeout: If it has no reference.
    """
    sampled = [archive.sample(at, call.result()) for at, call in enumerate(calls.references)]
    code = bytearray()
    candidates = [launch_plans.kernels_of(name, each, code) for name, each in compiled.items()]
    arrays = {name: array for _, each in sampled for name, array in each.items()}
    writer.add(subgraph.hash, bytes(code), arrays)
    return {
        "workload": subgraph.hash,
        "name": subgraph.name,
        "calls": subgraph.calls,
        "network_bytes": subgraph.network_bytes,
        "arguments": subgraph.offer.arguments,
        "n_outputs": subgraph.offer.n_outputs,
        "weights": subgraph.offer.weights,
        "references": [entry for entry, _ in sampled],
        "candidates": candidates,
    }


def _registered(
    candidates: Mapping[str, PackedCandidate | PackedSource],
) -> dict[str, RegisteredCandidate]:
    return {
        name: RegisteredCandidate(each.trace, each.module_hash) for name, each in candidates.items()
    }


def _name_of(trace: str) -> str:
    """Return the name of a candidate: its variant, or one that its trace has no other of."""
    return variant_of(trace) or f"trace-{measure_records.trace_hash(trace)[:12]}"


def _capabilities(arch: str) -> list[str]:
    """Return the compute capabilities that Triton's binaries for an architecture run on.

    From 9.0 on they have instructions of that capability alone; see "Binary Compatibility" in the
    CUDA C++ Programming Guide for the others.
    """
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    if match is None:
        raise RequestError(f"{arch} is not the architecture of a GPU")
    major, minor = int(match[1]), int(match[2])
    return [f"{major}.{each}" for each in range(minor, minor + 1 if major >= 9 else 10)]
