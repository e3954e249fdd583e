"""Decision along which dimensions the inputs of a library are padded, by trial."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import msgspec

from tuner.build_cache.cache import open_local
from tuner.build_cache.keys import Key, code_of, versions_of
from tuner.compile.padding_trials import PaddingTrials, UnpaddedModel
from tuner.errors import RequestError, WorkError
from tuner.jobs.models.model_loading import DEFAULT_LIMITS, LoadLimits, call_on_model
from tuner.jobs.preparation import Prepared
from tuner.jobs.requests import ModelRequest
from tuner.library.buckets import BucketedDimension, Buckets, SummedDimension
from tuner.networks.base import ModelFacts
from tuner.networks.originals import Original
from tuner.networks.shapes import DynamicDimension
from tuner.peers.catalogue import PEERS
from tuner.settings import Settings
from tuner.workers.confinement.sandbox_paths import model_access
from tuner.workers.factory import fresh_worker

KIND = "padding"
_PACKAGES = ("onnx", "onnxruntime", "torch", "numpy")
_MASK = "mask"


@dataclass(frozen=True)
class BucketedModel:
    """A model with the programs of its buckets.

    Attributes:
        request: The model as the user named it.
        largest: The program of the largest sizes, prepared.
    """

    request: ModelRequest
    dimensions: Sequence[DynamicDimension]
    programs: Sequence[ModelRequest]
    largest: Prepared

    def described(self) -> tuple[BucketedDimension, ...]:
        """Return the dimensions with the sizes of all programs, not yet padded."""
        inputs = self.largest.model.file.inputs
        return tuple(
            BucketedDimension(
                name=dimension.name,
                sizes=tuple(sorted({p.dimensions[dimension.name] for p in self.programs})),
                inputs={name: axes for name, axes in dimension.axes.items() if name in inputs},
            )
            for dimension in self.dimensions
            if dimension.name in self.programs[0].dimensions
        )

    def sums(self) -> tuple[SummedDimension, ...]:
        """Return the dimensions that follow from those of :meth:`described`."""
        inputs, own = self.largest.model.file.inputs, self.programs[0].dimensions
        # Parts of fixed size, as inputs with a shape give them.
        fixed = {
            dimension.name: self.request.inputs[name][axes[0]]
            for dimension in self.dimensions
            for name, axes in dimension.axes.items()
            if name in self.request.inputs and dimension.name not in own
        }
        return tuple(
            SummedDimension(
                tuple(part for part in each.parts if part in own),
                each.offset + sum(fixed[part] for part in each.parts if part not in own),
                {name: axes for name, axes in each.axes.items() if name in inputs},
            )
            for each in self.dimensions
            if any(part in own for part in each.parts)
            and all(part in own or part in fixed for part in each.parts)
        )


def check_padding(
    settings: Settings,
    model: BucketedModel,
    *,
    max_bytes: int | None = None,
    limits: LoadLimits = DEFAULT_LIMITS,
) -> Buckets:
    """Find out along which dimensions inputs may be padded, or remember it.

    Args:
        settings: Settings of the processes, and the cache.
        model: The model and its programs.
        max_bytes: Memory of the process that runs the model; None for that of the settings.
        limits: Time limit of each run.

    Raises:
        RequestError: If the model has no such mask.
    """
    if model.largest.model.tail is not None:
        problem = "the operators after the library would choose among the padding"
        return _refused(Buckets(model.described(), {}, model.sums()), problem)
    cache, key = open_local(settings), _key(model)
    entry = cache.find(key)
    if entry is not None:
        with entry:
            return msgspec.convert(dict(entry.info), Buckets)
    try:
        buckets = _check(settings, model, max_bytes, limits)
    except WorkError as error:  # of this run: the next build tries again
        return _refused(Buckets(model.described(), {}, model.sums()), f"trials failed: {error}")
    cache.remember(key, asdict(buckets))
    return buckets


def _key(model: BucketedModel) -> Key:
    source, request = model.largest.model.source, model.request
    parts = {
        "content": None if source is None else source.sha256,
        "random_weights": request.random_weights,
        "inputs": {name: list(shape) for name, shape in request.inputs.items()},
        "sizes": {dimension.name: list(dimension.sizes) for dimension in model.described()},
        "masks": dict(request.masks),
        "values": dict(model.largest.model.values),
        "code": [code_of("tuner.compile"), code_of("tuner.networks"), code_of("tuner.peers")],
        "packages": versions_of(*_PACKAGES),
    }
    return Key(KIND, parts, request.reference)


def _check(
    settings: Settings, model: BucketedModel, max_bytes: int | None, limits: LoadLimits
) -> Buckets:
    dimensions = model.described()
    file = model.largest.model.file
    package = next(peer for peer in PEERS if file.format in peer.formats)
    request = model.request
    access = model_access(request.reference, alone=limits.alone)
    with (
        fresh_worker(settings, "padding", access, max_bytes=max_bytes) as worker,
        worker.exchange.new_output() as folder,
    ):
        original: Original = call_on_model(
            worker,
            "tuner.networks.originals",
            "write_original",
            request.reference,
            dict(file.inputs),
            request.random_weights,
            str(folder.path),
            dict(model.largest.model.values),
            limits=limits,
            subject=f"reading {request.reference}",
            returns=Original,
        )
        sums = model.sums()
        masks = _masks(request.masks, original, (*dimensions, *sums))
        buckets = Buckets(dimensions, masks, sums)
        if not package.is_installed():
            problem = f"{package.name}, which would check it, is not installed: {package.fix}"
            return _refused(buckets, problem)
        facts = call_on_model(
            worker,
            "tuner.networks.worker",
            "describe_inputs",
            file,
            limits=limits,
            subject=f"reading {request.reference}",
            returns=ModelFacts,
        )
        peer = UnpaddedModel(worker, package, original, limits.secs)
        return PaddingTrials(peer, facts, model.dimensions, model.largest.model, buckets).checked()


def _masks(
    given: Mapping[str, float],
    original: Original,
    dimensions: Sequence[BucketedDimension | SummedDimension],
) -> dict[str, float]:
    """Return the value of the padding in masks: those of the user, or else those by name."""
    unknown = sorted(set(given) - set(original.inputs))
    if unknown:
        raise RequestError(
            f"the model has no input {unknown[0]!r}; its inputs are {', '.join(original.inputs)}",
            field="mask",
        )
    padded = {name for dimension in dimensions for name in dimension.inputs}
    if given:
        return {name: value for name, value in given.items() if name in padded}
    return {name: 0.0 for name in original.inputs if name in padded and _MASK in name.lower()}


def _refused(buckets: Buckets, problem: str) -> Buckets:
    return replace(
        buckets,
        dimensions=tuple(replace(dimension, problem=problem) for dimension in buckets.dimensions),
    )
