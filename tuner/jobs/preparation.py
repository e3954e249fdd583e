"""Preparation of networks: loading a model, and storing its weighted tasks."""

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from sqlalchemy.orm import Session, sessionmaker

from records import networks, targets, tasks
from records.logs import workload_names
from tuner.build_cache.cache import open_local
from tuner.context import Context
from tuner.devices import target_cache
from tuner.devices.target_cache import DescribeTarget
from tuner.engines.base import Extraction, TargetInfo
from tuner.errors import (
    ModelError,
    OutOfMemory,
    RequestError,
    TargetError,
    WorkError,
    was_killed,
)
from tuner.jobs.models import model_cache
from tuner.jobs.models.model_loading import (
    DEFAULT_LIMITS,
    LoadLimits,
    ModelQuery,
    call_on_model,
    check_file,
)
from tuner.jobs.requests import ModelRequest
from tuner.networks.base import LoadedModel
from tuner.workers.confinement.sandbox_paths import models_folder
from tuner.workers.pool import CallTimeout, Pool

_LOG = logging.getLogger(__name__)

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True)
class Prepared:
    """A network with its tasks on a target, as the database has them.

    Attributes:
        model: Model with its cleaned file.
        network_id: Row of the network.
        target_id: Row of the target.
        tasks: Tasks with their weights in the network.
        n_kernel_calls: Kernel calls of one inference.
        notes: Remarks of loading and extraction, for people.
        members: Networks that this one was combined from; empty for a single network.
        weight: Relative frequency of its sizes among those of its model.
        shared_name: Name where others see it, too: in its row, and in manifests of libraries.
    """

    model: LoadedModel
    target: TargetInfo
    network_id: int
    target_id: int
    tasks: tuple[tasks.WeightedTask, ...]
    n_kernel_calls: int
    notes: tuple[str, ...]
    members: tuple["Prepared", ...] = ()
    weight: float = 1.0
    shared_name: str = ""

    @property
    def n_bytes(self) -> int:
        """Size of the model's file, or of the largest member's; 0 if the file is missing."""
        if self.members:
            return max(member.n_bytes for member in self.members)
        path = Path(self.model.file.path)
        return path.stat().st_size if path.is_file() else 0


def prepare(
    request: ModelRequest,
    context: Context,
    worker: Pool,
    *,
    must_run: bool,
    limits: LoadLimits = DEFAULT_LIMITS,
    describe: DescribeTarget | None = None,
) -> Prepared:
    """Load a model, split it into tasks and store them.

    A network that was extracted for this target before is not extracted again.

    Args:
        request: The model and its target.
        context: Settings and database.
        worker: Process with memory for a whole network.
        must_run: True to refuse a target that this machine cannot run.
        limits: Limits of loading the model.
        describe: Describes the target where it runs. Without it, or where it returns None,
            ``worker`` is asked about this machine.

    Raises:
        RequestError: If the model or the target cannot be used.
        WorkError: If the worker is lost.
    """
    settings, sessions = context.settings, context.sessions
    cache = open_local(settings)

    def describe_in_worker() -> TargetInfo:
        target = _call(limits, worker, settings.engine, "describe_target", request.target)
        return cast("TargetInfo", target)

    target = None if describe is None else describe(request.target)
    if target is None:
        target = target_cache.describe(
            cache, settings.engine, request.target, describe_in_worker, settings.interpreter
        )
    if must_run and target.problem:
        raise TargetError(f"this machine cannot run target {request.target}: {target.problem}")
    query = ModelQuery(
        request.reference, request.inputs, request.random_weights, request.dimensions
    )
    model = model_cache.load(cache, worker, models_folder(settings.data_dir), query, limits)
    shared_name = _shared_name(model.name, request)
    model = replace(model, name=request.name or model.name)
    with sessions.begin() as session:
        network_id = networks.ensure_network(
            session,
            network_key(model.sha256, settings.engine, target.pipeline),
            shared_name,
            {
                name: {"shape": list(shape), "dtype": dtype}
                for name, (shape, dtype) in model.file.inputs.items()
            },
        ).id
        target_id = targets.ensure_target(session, target.spec, dict(target.device)).id
        is_split = networks.extraction_of(session, network_id, target_id) is not None
    if not is_split:
        check_file(model)
        extraction: Extraction = call_on_model(
            worker,
            settings.engine,
            "extract",
            model.file,
            target.spec,
            limits=limits,
            subject="splitting the network into tasks",
        )
        for task in extraction.tasks:
            name = workload_names.name_of(task.ir)
            if task.workload != name:
                raise WorkError(
                    f"the engine names a subgraph {task.workload}, and its IR is {name}"
                )
        if model.tail is not None:
            extraction = replace(extraction, notes=(model.tail.note, *extraction.notes))
        with sessions.begin() as session:
            _store(session, network_id, target_id, settings.engine, extraction)
    _store_profiles(sessions, limits, worker, settings.engine, (network_id, target_id))
    prepared = _read(sessions, model, target, network_id, target_id)
    return replace(prepared, weight=request.weight, shared_name=shared_name)


def _shared_name(loaded: str, request: ModelRequest) -> str:
    """Return the name of a network where owners share it: not that of an uploaded file.

    Args:
        loaded: Name of the model's file; an upload has the hash of its content.
        request: The model as its owner names it.
    """
    if not _SHA256.fullmatch(loaded):
        return request.name or loaded
    sizes = ",".join(f"{name}={size}" for name, size in request.dimensions.items())
    return f"{loaded[:12]}@{sizes}" if sizes else loaded[:12]


def combine(sessions: sessionmaker[Session], members: Sequence[Prepared]) -> Prepared:
    """Combine networks into one that has the tasks of all; a single network stays as it is.

    A task that several networks share occurs once, with the sum of its weights.

    Raises:
        RequestError: If a network is given twice, or two have the same name.
    """
    if len(members) == 1:
        return members[0]
    names = [member.model.name for member in members]
    if len(set(names)) < len(names):
        raise RequestError(f"networks must have different names, got {', '.join(names)}")
    member_ids = sorted(member.network_id for member in members)
    if len(set(member_ids)) < len(member_ids):
        raise RequestError(f"the same network is given twice: {', '.join(names)}")
    # Hash rows, not models: another version of an engine splits a model into other tasks.
    sha256 = hashlib.sha256(f"networks {member_ids}".encode()).hexdigest()
    first = members[0]
    with sessions.begin() as session:
        network_id = networks.ensure_union(
            session,
            sha256,
            " + ".join(member.shared_name for member in members),
            first.target_id,
            member_ids,
        ).id
        weighted = tuple(tasks.weighted_tasks(session, network_id, first.target_id))
    return replace(
        first,
        model=replace(first.model, name=" + ".join(names), sha256=sha256),
        network_id=network_id,
        tasks=weighted,
        n_kernel_calls=sum(member.n_kernel_calls for member in members),
        notes=tuple(note for member in members for note in member.notes),
        members=tuple(members),
    )


def narrow(sessions: sessionmaker[Session], prepared: Prepared, chosen: Sequence[str]) -> Prepared:
    """Narrow a network to the tasks with a text in their name or at the beginning of their hash.

    The part is stored as a network of its own, so that its tuning is a job of its own. Its records
    are those of the whole network.

    Raises:
        RequestError: If a text fits no task, or there are several networks.
    """
    if not chosen:
        return prepared
    if prepared.members:
        raise RequestError("chooses among the tasks of one network, got several", field="task")
    kept: dict[int, str] = {}
    for text in chosen:
        fitting = {
            task.task_id: task.name
            for task in prepared.tasks
            if text.lower() in task.name.lower() or task.workload_hash.startswith(text.lower())
        }
        if not fitting:
            raise RequestError(
                f"{text!r} fits none of the {len(prepared.tasks)} tasks of {prepared.model.name}; "
                "`tuner tasks MODEL` lists their names and hashes",
                field="task",
            )
        kept |= fitting
    if len(kept) == len(prepared.tasks):
        return prepared
    names = ", ".join(dict.fromkeys(kept.values()))
    key = f"tasks {sorted(kept)} of network {prepared.network_id}"
    with sessions.begin() as session:
        network_id = networks.ensure_union(
            session,
            hashlib.sha256(key.encode()).hexdigest(),
            f"{prepared.shared_name}: {names}",
            prepared.target_id,
            [prepared.network_id],
            list(kept),
        ).id
        weighted = tuple(tasks.weighted_tasks(session, network_id, prepared.target_id))
    return replace(
        prepared,
        network_id=network_id,
        tasks=weighted,
        n_kernel_calls=sum(task.weight for task in weighted),
    )


def _call(limits: LoadLimits, worker: Pool, module: str, function: str, *args: Any) -> Any:
    try:
        return worker.call(module, function, *args, timeout_secs=limits.secs)
    except CallTimeout as error:
        raise WorkError(f"{function} took longer than {limits.secs:g} s") from error


def _store(
    session: Session, network_id: int, target_id: int, engine: str, extraction: Extraction
) -> None:
    if not extraction.tasks:
        raise ModelError(
            "the network has no kernels to tune: its outputs are constants, views of its inputs, "
            "or what calls of the compiler's own libraries return, such as sorts",
            code="no-kernels",
        )
    weighted = [
        (
            tasks.NewWorkload(
                hash=task.workload, engine=engine, ir=task.ir, flop=task.flop, name=task.name
            ),
            task.weight,
        )
        for task in extraction.tasks
    ]
    networks.record_extraction(
        session, network_id, target_id, weighted, extraction.n_kernel_calls, extraction.notes
    )


def _store_profiles(
    sessions: sessionmaker[Session],
    limits: LoadLimits,
    worker: Pool,
    engine: str,
    split: tuple[int, int],
) -> None:
    """Have the engine profile the workloads that have no profile.

    Args:
        sessions: Factory of database sessions.
        limits: Limits of the call.
        worker: Process for the call.
        split: Ids of the network and the target.

    Raises:
        OutOfMemory: If a profile needs more memory than the process may have.
        WorkError: If it takes too long, or its process was killed. Without a profile the sizes of
            a workload are unknown, and so is whether they fit.
    """
    with sessions() as session:
        irs = tasks.without_profile(session, *split)
    if not irs:
        return
    try:
        profiles = _call(limits, worker, engine, "profile", list(irs.values()))
        by_id = {id_: asdict(profile) for id_, profile in zip(irs, profiles, strict=True)}
    except OutOfMemory:
        raise
    except (WorkError, TypeError, ValueError) as error:
        if isinstance(error.__cause__, CallTimeout) or was_killed(error):
            raise
        # Tasks can be tuned without: their roofs are unknown, and fewer of them count as similar.
        _LOG.warning("the workloads have no profile: %s", error)
        return
    with sessions.begin() as session:
        tasks.store_profiles(session, by_id)


def _read(
    sessions: sessionmaker[Session],
    model: LoadedModel,
    target: TargetInfo,
    network_id: int,
    target_id: int,
) -> Prepared:
    with sessions() as session:
        extraction = networks.extraction_of(session, network_id, target_id)
        if extraction is None:
            raise WorkError(
                "the extraction of the network was deleted from the database; try again"
            )
        return Prepared(
            model=model,
            target=target,
            network_id=network_id,
            target_id=target_id,
            tasks=tuple(tasks.weighted_tasks(session, network_id, target_id)),
            n_kernel_calls=extraction.n_kernel_calls,
            notes=(*model.notes, *extraction.notes),
        )


def network_key(sha256: str, engine: str, pipeline: str) -> str:
    """Hash the inputs of an extraction: the cleaned model, the engine, and the engine's passes."""
    text = "\n".join((sha256, engine, pipeline))
    return hashlib.sha256(text.encode()).hexdigest()
