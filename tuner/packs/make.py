"""Making of a pack: the tasks of networks, their candidates, binaries and expected outputs."""

import json
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from records import tasks
from records.logs import other_targets
from tuner.atomic_files import atomic_file
from tuner.context import Context
from tuner.engines.base import InputKind, ReferenceRequest, TargetInfo, variant_of
from tuner.engines.packed import KernelOffer, PackedCandidate
from tuner.errors import RequestError, WorkError
from tuner.executors.factory import open_describer
from tuner.interrupts import interruptible
from tuner.jobs.preparation import Prepared, prepare
from tuner.jobs.requests import ModelRequest
from tuner.packs import archive, choice, registry, result_lines
from tuner.packs.registry import RegisteredCandidate, RegisteredPack
from tuner.workers.base import CallTimeout, FutureCall
from tuner.workers.confinement.memory import builder_count
from tuner.workers.confinement.sandbox_paths import model_access
from tuner.workers.factory import builder_pool, fresh_worker
from tuner.workers.pool import Pool

_ENGINE = "tuner.engines.relax.worker"
_OFFER_TIMEOUT_SECS, _REFERENCE_TIMEOUT_SECS, _COMPILE_TIMEOUT_SECS = 120.0, 600.0, 60.0
_MAX_SEED = 2**31 - 1

# Receives the number of candidates that were compiled, and that of all.
OnCompiled = Callable[[int, int], None]


@dataclass(frozen=True)
class PackOptions:
    """Options of a pack.

    Attributes:
        out: File of the pack.
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
        path: Its file.
        n_candidates: Number of its candidates.
        n_refused: Candidates that the compiler refused.
        n_bytes: Size of the file.
        secs: Time that it took.
        notes: Subgraphs that have no candidates in it, for people.
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

    @property
    def cost(self) -> float:
        """Estimated time in all networks, seconds."""
        return self.calls * self.offer.secs


@dataclass(frozen=True)
class _Calls:
    """Calls for a subgraph whose results are taken once."""

    references: Sequence[FutureCall]
    candidates: deque[FutureCall]


def make_pack(context: Context, requests: Sequence[ModelRequest], options: PackOptions) -> MadePack:
    """Compile candidates for the networks into a file that a GPU without a compiler measures.

    What was measured for the target, and what open packs have, is left out.

    Args:
        context: Settings and database.
        requests: Networks, all for one target.
        options: Options.

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
        networks = _prepare(context, requests)
        target = networks[0].target
        subgraphs = _subgraphs(networks)
        with builder_pool(context.settings, builder_count(context.settings)) as pool:
            maker = _Maker(context, pool, target, options)
            maker.choose(subgraphs)
            chosen = [each for each in subgraphs if each.names]
            if not chosen:
                raise RequestError(
                    f"{target.spec}: no subgraph of {', '.join(map(_name, networks))} has "
                    "candidates that were not measured and are in no open pack; tuner pack status "
                    "lists the packs"
                )
            return maker.write(chosen, [_name(each) for each in networks], started)


def _prepare(context: Context, requests: Sequence[ModelRequest]) -> list[Prepared]:
    with (
        open_describer(context.settings) as describe,
        fresh_worker(
            context.settings, access=model_access(*(each.reference for each in requests))
        ) as worker,
    ):
        networks = [
            prepare(each, context, worker, must_run=False, describe=describe) for each in requests
        ]
    if networks[0].target.kind != "cuda":
        raise RequestError("packs are for GPUs: give a target such as cuda:sm_90", field="target")
    return networks


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

    def choose(self, subgraphs: Sequence[_Subgraph]) -> None:
        """Choose the candidates of each subgraph, the most expensive subgraphs first."""
        with self.context.readers() as session:
            for subgraph in subgraphs:
                subgraph.ir = tasks.workload_ir(session, subgraph.task_id)
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

    def _known(self, measured: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
        """Return the variants of each workload that were measured or are in open packs."""
        known = {name: set(map(variant_of, traces)) for name, traces in measured.items()}
        for pack in registry.load_all(self.context.settings.data_dir):
            if pack.spec == self.target.spec and not pack.imported:
                for workload, candidates in pack.workloads.items():
                    if workload in known:
                        known[workload].update(candidates)
        return known

    def write(
        self, subgraphs: Sequence[_Subgraph], networks: Sequence[str], started: float
    ) -> MadePack:
        """Compile the candidates and write the file, which appears when it is complete."""
        subgraphs = sorted(subgraphs, key=lambda each: (-each.cost, each.hash))
        self.n_all = sum(len(each.names) for each in subgraphs)
        pack, key, out = secrets.token_hex(6), secrets.token_hex(32), self.options.out
        arch = str(json.loads(self.target.spec)["arch"])
        calls = [self._start(each) for each in subgraphs]
        registered: dict[str, dict[str, RegisteredCandidate]] = {}
        with atomic_file(out, 0o600) as stream:  # with the key, results can be made up
            writer = archive.PackWriter(stream)
            workloads = []
            for subgraph, call in zip(subgraphs, calls, strict=True):
                try:
                    entry, registered[subgraph.hash] = self._add(writer, subgraph, call)
                    workloads.append(entry)
                except (WorkError, CallTimeout) as error:
                    self.notes.append(f"{subgraph.name}: {error}")
            if not workloads:
                raise WorkError(f"no candidate can be measured: {'; '.join(self.notes)}")
            index = {
                "format": result_lines.FORMAT,
                "id": pack,
                "key": key,
                "target": arch,
                "capabilities": _capabilities(arch),
                "networks": list(networks),
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
                networks=list(networks),
                workloads=registered,
            )
            registry.store(self.context.settings.data_dir, made)
        secs, n_bytes = time.monotonic() - started, out.stat().st_size
        return MadePack(
            pack, out, made.n_candidates, self.n_refused, n_bytes, secs, tuple(self.notes)
        )

    def _start(self, subgraph: _Subgraph) -> _Calls:
        """Submit the calls for a subgraph; builders serve them in their order."""
        seeds = {"whole": 1 + secrets.randbelow(_MAX_SEED), "real": 0}
        return _Calls(
            [
                self._submit(
                    "reference",
                    ReferenceRequest(subgraph.ir, self.target.spec, cast("InputKind", kind), seed),
                    secs=_REFERENCE_TIMEOUT_SECS,
                )
                for kind, seed in seeds.items()
            ],
            deque(
                self._submit(
                    "pack_candidate",
                    subgraph.ir,
                    self.target.spec,
                    name,
                    secs=_COMPILE_TIMEOUT_SECS,
                )
                for name in subgraph.names
            ),
        )

    def _add(
        self, writer: archive.PackWriter, subgraph: _Subgraph, calls: _Calls
    ) -> tuple[dict[str, Any], dict[str, RegisteredCandidate]]:
        """Add a subgraph to the pack; return its entry in the index, and its candidates.

        Raises:
            WorkError, CallTimeout: If it has no reference, or the compiler refuses all candidates.
        """
        code, problem = bytearray(), ""
        candidates: list[dict[str, Any]] = []
        registered: dict[str, RegisteredCandidate] = {}
        for name in subgraph.names:
            try:
                candidate: PackedCandidate = calls.candidates.popleft().result()
                candidates.append(_entry_of(name, candidate, code))
                registered[name] = RegisteredCandidate(candidate.trace, candidate.module_hash)
            except (WorkError, CallTimeout) as error:
                self.n_refused += 1
                problem = str(error)
            self.n_done += 1
            self.options.on_compiled(self.n_done, self.n_all)
        sampled = [archive.sample(at, call.result()) for at, call in enumerate(calls.references)]
        if not candidates:
            raise WorkError(f"every candidate is refused: {problem}")
        arrays = {name: array for _, each in sampled for name, array in each.items()}
        writer.add(subgraph.hash, bytes(code), arrays)
        entry = {
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
        return entry, registered

    def _submit(self, function: str, *args: Any, secs: float) -> FutureCall:
        return self.pool.submit(self.context.settings.engine, function, *args, timeout_secs=secs)


def _entry_of(name: str, candidate: PackedCandidate, code: bytearray) -> dict[str, Any]:
    """Append the binaries of a candidate to its workload, and return its entry."""
    kernels = []
    for kernel in candidate.kernels:
        place = {"at": len(code), "n_bytes": len(kernel.code)}
        code += kernel.code
        fields = {key: value for key, value in vars(kernel).items() if key != "code"}
        kernels.append({**fields, **place})
    return {"name": name, "kernels": kernels, "workspace_bytes": candidate.workspace_bytes}


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
