"""Python API: the commands as functions that return plain data.

Its imports are light, so that ``import tuner`` costs next to nothing and works in the environment
of every engine.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, Unpack, cast, overload

from tuner.jobs import fields
from tuner.jobs.buckets import NOT_PADDED, GivenSizes, Padded, make_padded
from tuner.settings import SettingOverrides

if TYPE_CHECKING:
    from tuner.compile.bench.comparison import Comparison
    from tuner.jit.factory import Jitted
    from tuner.jit.onnx_function import OnnxFunction
    from tuner.jit.options import JitFields
    from tuner.jit.torch.torch_function import TorchFunction
    from tuner.jobs.requests import ModelRequest
    from tuner.library.arrays import Array
    from tuner.library.loading import DeviceLibrary
    from tuner.profiling.results import LibraryProfile
    from tuner.reporting.job_report import JobReport
    from tuner.reporting.reports import BuildReport, ExtractReport, TuneReport
    from tuner.schemas import BestView, RecordView
    from tuner.tables import Rows
    from tuner.tuning.status import StatusCallback

Inputs = Mapping[str, Sequence[SupportsIndex]]
GivenBuckets = Mapping[str, GivenSizes] | str | None
GivenMasks = Mapping[str, float] | Sequence[str]
_SETTINGS = frozenset(SettingOverrides.__annotations__)


class TuneArguments(SettingOverrides, fields.SpecFields, total=False):
    """Options of :func:`tune`: job and settings."""


def extract(
    model: str | Path,
    *,
    target: str = "llvm",
    inputs: Inputs | None = None,
    definitions: bool = False,
    random_weights: int | None = None,
    **overrides: Unpack[SettingOverrides],
) -> "ExtractReport":
    """Split a network into its weighted tasks and store them.

    >>> import tuner
    >>> tuner.extract("zoo:resnet-18").tasks  # doctest: +SKIP

    Args:
        model: Path of a ``.onnx`` or ``.pt2`` file, or ``zoo:NAME``.
        target: Target to compile for, in the form that ``tuner tasks --target`` takes.
        inputs: Shapes of the inputs with dynamic dimensions, by input name.
        definitions: True to report the IR of each task.
        random_weights: Seed of random weights that replace those of the model; None keeps them.
        **overrides: Settings such as database, data_dir and engine.

    Raises:
        RequestError: If the model or the target cannot be used.
    """
    _check_packages()
    from tuner import local

    (request,) = _model_requests([model], target, inputs, random_weights)
    return local.extract(request, overrides, definitions=definitions)


def tune(  # noqa: PLR0913  all but the models are keywords
    *models: str | Path,
    target: str = "llvm",
    inputs: Inputs | None = None,
    buckets: GivenBuckets = None,
    masks: GivenMasks = (),
    random_weights: int | None = None,
    progress: bool = True,
    on_status: "StatusCallback | None" = None,
    **options: Unpack[TuneArguments],
) -> "TuneReport":
    """Tune a network, or several networks in one job.

    Trials go to the tasks where they are expected to shorten the network most. Every trial is
    stored as soon as it is measured: interrupt the call at any time, and the same call resumes.

    >>> import tuner
    >>> tuner.tune("zoo:resnet-18", trials=1000).total_latency_secs  # doctest: +SKIP

    Args:
        *models: Paths of ``.onnx`` or ``.pt2`` files, or ``zoo:NAME``.
        target: Target to compile for, in the form that ``tuner tune --target`` takes.
        inputs: Shapes of the inputs with dynamic dimensions, by input name.
        buckets: Sizes by dynamic dimension, or weights by size; None for a choice of sizes.
            ``"auto"`` chooses for all. A program is tuned for each combination.
        masks: Inputs that mark padding by 0, or by the value of a mapping.
        random_weights: Seed of random weights that replace those of the model; None keeps them.
        progress: True to show a line of progress on a terminal and in a notebook; nothing is
            printed elsewhere, or with ``on_status``.
        on_status: Function that receives the status of the job many times a second.
        **options: Options of the job, see :class:`tuner.jobs.spec.TuneSpec`, and settings such as
            database and engine.

    Raises:
        RequestError: If the request is wrong; nothing was measured.
        WorkError: If nothing could be measured.
    """
    _check_packages()
    from tuner import local
    from tuner.jobs.requests import TuneRequest
    from tuner.jobs.spec import make_spec
    from tuner.progress_line import progress_callbacks

    if not models:
        raise TypeError("tune needs at least one model")
    given: dict[str, Any] = dict(options)
    overrides = {key: given.pop(key) for key in _SETTINGS & set(given)}
    padded = make_padded(buckets, masks)
    requests = _model_requests(models, target, inputs, random_weights, padded)
    request = TuneRequest(requests, make_spec(given))
    with progress_callbacks(on_status, show=progress) as callbacks:
        (report,) = local.tune(request, cast("SettingOverrides", overrides), callbacks)
    return report


def build(  # noqa: PLR0913  all but the first two are keywords
    model: str | Path,
    out: str | Path,
    *,
    target: str = "llvm",
    inputs: Inputs | Sequence[Inputs] | None = None,
    buckets: GivenBuckets = None,
    masks: GivenMasks = (),
    strict: bool = False,
    random_weights: int | None = None,
    **overrides: Unpack[SettingOverrides],
) -> "BuildReport":
    """Compile a network with the best record of each task into a folder.

    >>> import tuner
    >>> tuner.build("zoo:resnet-18", "resnet-18.lib").n_fallbacks  # doctest: +SKIP

    Args:
        model: Path of a ``.onnx`` or ``.pt2`` file, or ``zoo:NAME``.
        out: Folder for the library; an existing library in it is replaced.
        target: Target to compile for, in the form that ``tuner build --target`` takes.
        inputs: Shapes of the inputs with dynamic dimensions, by input name. Several sets of
            shapes give a library with a program for each.
        buckets: Sizes by dynamic dimension as for :func:`tune`. The library takes any size up to
            the largest, if trials with the model show that padding changes no output.
        masks: Inputs that mark padding by 0, or by the value of a mapping.
        strict: True to make a task without a record an error.
        random_weights: Seed of random weights that replace those of the model; None keeps them.
        **overrides: Settings such as database, data_dir and engine.

    Raises:
        RequestError: If the request is wrong; ``out`` is unchanged.
        WorkError: If the network cannot be compiled; ``out`` is unchanged.
    """
    _check_packages()
    from tuner import local
    from tuner.compile.build_library import BuildOptions
    from tuner.compile.checks import check_out

    check_out(Path(out))
    padded = make_padded(buckets, masks)
    requests = _model_requests([model], target, inputs, random_weights, padded)
    return local.build(requests, Path(out), overrides, BuildOptions(strict))


def evaluate(  # noqa: PLR0913  all but the first are keywords
    library: str | Path,
    *,
    model: str | Path | None = None,
    against: str | Sequence[str] = (),
    inputs: Inputs | None = None,
    arrays: "Mapping[str, Array] | str | Path | None" = None,
    random_weights: int | None = None,
    n_turns: int = 10,
    seed: int = 0,
    **overrides: Unpack[SettingOverrides],
) -> "Comparison":
    """Time a library in a process of its own, and compare it with other runtimes.

    The other runtimes, the peers, run the model itself. Outputs are compared one by one, and all
    are timed in turns.

    >>> import tuner
    >>> comparison = tuner.evaluate("mlp.lib", against="all")  # doctest: +SKIP
    >>> [(peer.name, peer.ratio, peer.agrees) for peer in comparison.peers]  # doctest: +SKIP

    Args:
        library: Folder of the library.
        model: File of the model that the library was built from. A zoo network needs none.
        against: Names of peers, or ``"all"`` for every installed one; by default ONNX Runtime
            for ``.onnx`` files and torch for ``.pt2`` files if a model is given, else none.
        inputs: Shapes of inputs, for a library of several programs; by default those of the first.
        arrays: An array for each input, or a ``.npz`` file of them; by default they are drawn.
        random_weights: Seed of random weights, for a library that does not name its own.
        n_turns: Number of turns of about 0.1 seconds each.
        seed: Seed of the inputs that are drawn.
        **overrides: Settings such as data_dir.

    Raises:
        RequestError: If the library is missing, damaged, or of another network than the model, or
            the inputs or peers cannot be used.
    """
    _check_packages()
    from tuner import local
    from tuner.compile.bench.benchmark import BenchRequest

    request = BenchRequest(
        model=None if model is None else str(model),
        against=(against,) if isinstance(against, str) else tuple(against),
        shapes=_shapes(inputs or {}),
        random_weights=random_weights,
        arrays=Path(arrays) if isinstance(arrays, str) else arrays,
        n_turns=n_turns,
        seed=seed,
    )
    return local.evaluate(Path(library), request, overrides)


def profile(  # noqa: PLR0913  all but the first are keywords
    library: str | Path,
    *,
    model: str | Path | None = None,
    against: str | Sequence[str] = (),
    inputs: Inputs | None = None,
    arrays: str | Path | None = None,
    random_weights: int | None = None,
    n_runs: int = 40,
    seed: int = 0,
    **overrides: Unpack[SettingOverrides],
) -> "LibraryProfile":
    """Time every kernel of a library inside the running network.

    >>> import tuner
    >>> profile = tuner.profile("mlp.lib")  # doctest: +SKIP
    >>> [(kernel.name, kernel.share) for kernel in profile.kernels]  # doctest: +SKIP

    Args:
        library: Folder of the library.
        model: File of the model that the library was built from, for the nodes of the kernels and
            for other runtimes. A zoo network needs none.
        against: Names of runtimes that time their nodes too: ``"onnxruntime"``, ``"openvino"``.
        inputs: Shapes of inputs, for a library of several programs; by default those of the first.
        arrays: A ``.npz`` file with an array for each input; by default they are drawn.
        random_weights: Seed of random weights, for a library that does not name its own.
        n_runs: Number of profiled runs, at least 1.
        seed: Seed of the inputs that are drawn.
        **overrides: Settings such as database and data_dir.

    Raises:
        RequestError: If the library is missing, damaged or has no timers, or the inputs or
            runtimes cannot be used.
    """
    _check_packages()
    from tuner import local
    from tuner.errors import RequestError
    from tuner.profiling.library_profile import ProfileRequest

    if n_runs < 1:
        raise RequestError(f"n_runs must be at least 1, got {n_runs}")
    request = ProfileRequest(
        shapes=_shapes(inputs or {}),
        arrays=None if arrays is None else Path(arrays),
        n_runs=n_runs,
        seed=seed,
        model=None if model is None else str(model),
        against=(against,) if isinstance(against, str) else tuple(against),
        random_weights=random_weights,
    )
    return local.profile(Path(library), request, overrides)


def job(number: int | None = None, **overrides: Unpack[SettingOverrides]) -> "JobReport":
    """Read a job: its state, its tasks and its history, as the functions of ``tuner.plot`` take it.

    Args:
        number: Number of the job; by default the one that changed last.
        **overrides: Settings such as database and data_dir.

    Raises:
        RequestError: If the job does not exist.
    """
    _check_packages()
    from records import jobs
    from tuner.context import open_context
    from tuner.errors import RequestError
    from tuner.queries.history import read_history
    from tuner.queries.jobs import read_job
    from tuner.reporting.job_report import JobReport

    with open_context(**overrides) as context, context.readers() as session:
        row = jobs.find_job(session, number)
        if row is None:
            raise RequestError("there is no job" if number is None else f"there is no job {number}")
        return JobReport(read_job(session, row.id), read_history(session, row.id))


def best_records(
    *,
    workload: str | None = None,
    name: str | None = None,
    job: int | None = None,
    **overrides: Unpack[SettingOverrides],
) -> "Rows[BestView]":
    """Read the best record of every task, or of the tasks that are selected.

    Args:
        workload: Hash of the workload, or its beginning.
        name: Part of the workload's name, in any case.
        job: Number of a job.
        **overrides: Settings such as database and data_dir.

    Returns:
        A list whose ``to_pandas`` makes a data frame.
    """
    _check_packages()
    from records import jobs, tasks
    from tuner.context import open_context
    from tuner.queries.records import read_bests
    from tuner.tables import Rows

    with open_context(**overrides) as context, context.readers() as session:
        weighted = None if job is None else tasks.tasks_of_job(session, jobs.get_job(session, job))
        task_ids = None if weighted is None else [task.task_id for task in weighted]
        return Rows(read_bests(session, workload=workload, name=name, task_ids=task_ids))


def list_records(
    *,
    workload: str | None = None,
    name: str | None = None,
    task: int | None = None,
    failed: bool = False,
    limit: int = 1000,
    **overrides: Unpack[SettingOverrides],
) -> "Rows[RecordView]":
    """Read measure records, the newest first; see :func:`best_records`.

    Args:
        workload: Hash of the workload, or its beginning.
        name: Part of the workload's name, in any case.
        task: Number of the task.
        failed: True for failures only.
        limit: Maximum of records.
        **overrides: Settings such as database and data_dir.
    """
    _check_packages()
    from tuner.context import open_context
    from tuner.queries.records import read_records
    from tuner.tables import Rows

    with open_context(**overrides) as context, context.readers() as session:
        return Rows(
            read_records(
                session, workload=workload, name=name, task=task, failed=failed, limit=limit
            )
        )


def load(path: str | Path, *, threads: int | None = None) -> "DeviceLibrary":
    """Load a library as a callable on numpy arrays.

    TVM's runtime is imported into the calling process, or into a process of its own for a library
    of an engine with its own environment. The callable is not thread-safe: threads that run a
    network side by side load it once each.

    >>> import tuner
    >>> network = tuner.load("squeezenet.lib")  # doctest: +SKIP
    >>> outputs = network(data_0=image)  # doctest: +SKIP

    Args:
        path: Folder that ``tuner build`` wrote.
        threads: Threads that run a kernel of a CPU. By default as many as the library was tuned
            with, at most the cores that this process may use; ``TVM_NUM_THREADS`` overrides that.
            A library that is loaded a second time keeps its number.

    Returns:
        A callable that takes arrays by input name and returns arrays by output name. That of a
        GPU also has ``run_on_device``, which takes and gives arrays on the GPU; see
        :class:`tuner.library.loading.DeviceLibrary`.

    Raises:
        TargetError: If this machine cannot run its code; the message names what is missing.
        RequestError: If the library is missing, damaged, or of a newer version, or ``threads`` is
            not positive.
    """
    from tuner.library import loading

    return loading.load(Path(path), threads)


@overload
def jit(function: str | Path, **options: "Unpack[JitFields]") -> "OnnxFunction": ...


@overload
def jit(function: Callable[..., Any], **options: "Unpack[JitFields]") -> "TorchFunction": ...


@overload
def jit(
    function: None = None, **options: "Unpack[JitFields]"
) -> "Callable[[Callable[..., Any]], TorchFunction]": ...


def jit(
    function: Callable[..., Any] | str | Path | None = None, **options: "Unpack[JitFields]"
) -> "Jitted | Callable[[Callable[..., Any]], Jitted]":
    """Compile a function when it is called, once for each signature of its arguments.

    A library is compiled from the best known records in processes of its own and kept in the
    build cache, where the next process that calls the function finds it. Works as a decorator,
    with options or without.

    >>> import tuner
    >>> network = tuner.jit(module.eval())  # doctest: +SKIP
    >>> outputs = network(images)  # doctest: +SKIP

    Args:
        function: A module or function of torch, or the path of an ONNX model.
        **options: Options; see :class:`tuner.jit.options.JitOptions`.

    Returns:
        A callable with ``cache_info``, ``cache_clear`` and ``refresh``.

    Raises:
        TypeError: If ``function`` is none of these.
        RequestError: If the file is not an ONNX model.
    """
    _check_packages()
    from tuner.jit.factory import make
    from tuner.jit.options import JitOptions

    jit_options = JitOptions(**options)
    if function is None:
        return lambda decorated: make(decorated, jit_options)
    return make(function, jit_options)


def _model_requests(
    models: Sequence[str | Path],
    target: str,
    inputs: Inputs | Sequence[Inputs] | None,
    random_weights: int | None,
    padded: Padded = NOT_PADDED,
) -> "tuple[ModelRequest, ...]":
    from tuner.jobs.requests import model_requests

    sets = [inputs] if isinstance(inputs, Mapping) else list(inputs or ())
    shape_sets = [_shapes(shapes) for shapes in sets] or [{}]
    return model_requests(
        [str(model) for model in models], target, shape_sets, random_weights, padded
    )


def _shapes(inputs: Inputs) -> dict[str, tuple[int, ...]]:
    """Return shapes as tuples of ``int``; any sequence of integers is accepted, numpy's too."""
    return {name: tuple(map(index, shape)) for name, shape in inputs.items()}


def _check_packages() -> None:
    """Check that no module or package of the user has the name of a package of the tuner.

    Raises:
        ImportError: If one has.
    """
    for name in ("records", "scheduler"):
        spec = find_spec(name)
        own = Path(__file__).resolve().parent.with_name(name) / "__init__.py"
        if spec is not None and spec.origin and Path(spec.origin).resolve() != own:
            raise ImportError(
                f"the tuner needs its package {name!r}, which {spec.origin} hides: rename that "
                "module, or run Python with -P or in another folder"
            )
