"""Trials of padding: the user's own model, run on padded and on unpadded inputs.

Along a dimension, inputs may be padded if the outputs, cut back, stay the same for several sizes
and for any content of the padding; inputs that are masks mark it there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import numpy as np

from tuner.compile.bench.agreement import compare_output
from tuner.compile.bench.bench_model import draw_inputs
from tuner.devices.cpu_caches import n_cores
from tuner.engines.base import NetworkRun
from tuner.errors import MalformedAnswer, RequestError, WorkError, summary
from tuner.library.arrays import Array, read_arrays, write_arrays
from tuner.library.buckets import BucketedDimension, Buckets
from tuner.networks.base import LoadedModel, ModelFacts
from tuner.networks.originals import Original
from tuner.networks.shapes import DynamicDimension
from tuner.peers.base import PeerModel
from tuner.peers.catalogue import PeerPackage
from tuner.workers.exchange import OutputFolder
from tuner.workers.pool import CallTimeout, Pool

# Seeds of the inputs: with masks that mark nothing, with others, of what fills the padding, and
# with indices that count from the end.
_PLAIN, _MASKED, _PADDING, _LAST = 0, 1, 2, 3
# Magnitude of the padding that inputs do not reach.
_FAR = 10.0
_OUTPUTS = "outputs.npz"
# All outputs of a run, which this process reads.
_MAX_OUTPUT_BYTES = 2 << 30


class _PaddingFails(Exception):  # noqa: N818  a result of the trials, not an error
    """Padding changes an output; the text says which and when."""


@dataclass(frozen=True)
class UnpaddedModel:
    """The user's own model in the runtime of its format, which takes any size of its dimensions."""

    worker: Pool
    package: PeerPackage
    original: Original
    timeout_secs: float

    def run(self, arrays: Mapping[str, Array], shapes: Mapping[str, Any]) -> list[Array]:
        """Run the model; ``shapes`` includes unused inputs.

        Raises:
            RequestError: If the model does not run with these shapes.
            WorkError: If it takes too long or the worker is lost.
        """
        inputs = {name: (shapes[name], dtype) for name, (_, dtype) in self.original.inputs.items()}
        model = PeerModel(self.original.path, inputs, {}, n_cores(), "cpu")
        exchange = self.worker.exchange
        with exchange.new_input() as given, exchange.new_output() as made:
            request = NetworkRun("", str(given / "inputs.npz"), str(made.path / _OUTPUTS), 0)
            write_arrays(request.inputs, arrays)
            try:
                self.worker.call(
                    self.package.module,
                    "run_model",
                    model,
                    request,
                    timeout_secs=self.timeout_secs,
                    returns=tuple[float, ...],
                )
            except CallTimeout as error:
                raise WorkError(f"a run took longer than {self.timeout_secs:g} s") from error
            return _read_outputs(made)


def _read_outputs(made: OutputFolder) -> list[Array]:
    """Read the outputs of a run.

    Raises:
        MalformedAnswer: If they are not a file of arrays, or too large.
    """
    try:
        content = made.read(_OUTPUTS, _MAX_OUTPUT_BYTES)
        return list(read_arrays(BytesIO(content), _MAX_OUTPUT_BYTES).values())
    except MalformedAnswer:
        raise
    except Exception as error:  # a damaged file raises errors of many types
        raise MalformedAnswer(f"the outputs of a run cannot be read: {summary(error)}") from error


@dataclass(frozen=True)
class PaddingTrials:
    """Runs of a model with padded and unpadded inputs, and their comparison.

    Attributes:
        facts: Its plausible inputs and its precision.
        declared: Its dynamic dimensions, with the axes of inputs that cleaning removed.
        largest: The cleaned model of the largest sizes.
        buckets: Dimensions and sizes to check, and the value of the padding in masks.
    """

    peer: UnpaddedModel
    facts: ModelFacts
    declared: Sequence[DynamicDimension]
    largest: LoadedModel
    buckets: Buckets

    def checked(self) -> Buckets:
        """Return the buckets with the result for each dimension, alone and together."""
        dimensions = [self._checked(dimension) for dimension in self.buckets.dimensions]
        padded = [dimension for dimension in dimensions if not dimension.problem]
        problem = self._problem_together(padded) if len(padded) > 1 else ""
        if problem:
            names = " and ".join(repr(dimension.name) for dimension in padded)
            text = f"padding {names} together fails: {problem}"
            dimensions = [replace(each, problem=each.problem or text) for each in dimensions]
        return replace(self.buckets, dimensions=tuple(dimensions))

    def _checked(self, dimension: BucketedDimension) -> BucketedDimension:
        try:
            dimension = replace(dimension, min_size=self._min_size(dimension))
            axes = [
                self._axes(base, dimension, *case)
                for base in self._bases
                for case in _cases(dimension)
            ]
            if any(each != axes[0] for each in axes):
                raise _PaddingFails("the axes of the outputs depend on other sizes")
            dimension = replace(dimension, outputs=axes[0] if axes else {})
            for base in self._bases:
                self._check_power(base)
                for size, bucket in _cases(dimension):
                    self._compare(base, [dimension], [size], [bucket])
        except _PaddingFails as failure:
            return replace(dimension, problem=str(failure), outputs={})
        except RequestError as error:
            return replace(dimension, problem=f"trials failed: {error}", outputs={})
        return dimension

    def _check_power(self, sizes: Mapping[str, int]) -> None:
        """Check that the outputs depend on the inputs that are drawn.

        Raises:
            _PaddingFails: If they do not, for example as only the index of the largest of few
                values is returned: padding could change what no output shows.
        """
        first, other = (self._run(self._draw(sizes, seed)) for seed in (_PLAIN, _PADDING))
        if not self._difference(dict(zip(self.largest.outputs, other, strict=True)), first):
            raise _PaddingFails("the outputs are the same for other inputs, which proves nothing")

    @property
    def _bases(self) -> list[dict[str, int]]:
        """The smallest sizes of all dimensions, and the largest."""
        bases = [
            {each.name: each.sizes[end] for each in self.buckets.dimensions} for end in (0, -1)
        ]
        return bases if bases[0] != bases[1] else bases[:1]

    def _min_size(self, dimension: BucketedDimension) -> int:
        """Return the smallest size that the model runs with, by bisection."""
        if self._runs(dimension, 1):
            return 1
        low, high = 1, dimension.sizes[0]
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._runs(dimension, middle) else (middle, high)
        return high

    def _runs(self, dimension: BucketedDimension, size: int) -> bool:
        try:
            self._run(self._draw({**self._bases[0], dimension.name: size}, _PLAIN))
        except RequestError:
            return False
        return True

    def _axes(
        self, base: Mapping[str, int], dimension: BucketedDimension, size: int, bucket: int
    ) -> dict[str, tuple[int, ...]]:
        """Find the axes of the outputs that are as long as the dimension.

        Raises:
            _PaddingFails: If an axis grows in another way.
        """
        small, large = (
            self._run(self._draw({**base, dimension.name: each}, _PLAIN)) for each in (size, bucket)
        )
        outputs: dict[str, tuple[int, ...]] = {}
        for name, one, other in zip(self.largest.outputs, small, large, strict=True):
            lengths = list(zip(one.shape, other.shape, strict=False))
            axes = [axis for axis, (short, long) in enumerate(lengths) if short != long]
            if one.ndim != other.ndim or any(lengths[axis] != (size, bucket) for axis in axes):
                raise _PaddingFails(
                    f"output {name!r} has the shape {list(one.shape)} at {size} and "
                    f"{list(other.shape)} at {bucket}, which does not grow with it alone"
                )
            if axes:
                outputs[name] = tuple(axes)
        return outputs

    def _problem_together(self, dimensions: Sequence[BucketedDimension]) -> str:
        """Pad several dimensions at once; return the difference, or an empty text."""
        padded = [dimension for dimension in dimensions if _cases(dimension)]
        cases = [_cases(dimension) for dimension in padded]
        try:
            for base in self._bases:
                for number in range(max(map(len, cases), default=0)):
                    pairs = [own[number % len(own)] for own in cases]
                    sizes, buckets = zip(*pairs, strict=True)
                    self._compare(base, padded, sizes, buckets)
        except (_PaddingFails, RequestError) as error:
            return str(error)
        return ""

    def _compare(
        self,
        base: Mapping[str, int],
        dimensions: Sequence[BucketedDimension],
        sizes: Sequence[int],
        buckets: Sequence[int],
    ) -> None:
        """Compare padded runs with an unpadded one.

        Raises:
            _PaddingFails: If an output differs.
        """
        names = [dimension.name for dimension in dimensions]
        unpadded = {**base, **dict(zip(names, sizes, strict=True))}
        padded = {**base, **dict(zip(names, buckets, strict=True))}
        masked = (_MASKED,) if self.buckets.padding else ()
        last = (_LAST,) if any((limit.low or 0) < 0 for limit in self.largest.limits) else ()
        for seed in (_PLAIN, *masked, *last):
            inputs = self._draw(unpadded, seed)
            expected = self._run(inputs)
            zeros = self.buckets.pad(inputs, padded)
            others = (
                (f"{word} values", self._over(self._far(padded, sign), inputs, zeros))
                for word, sign in (("large", 1), ("small", -1))
            )
            for content, arrays in (("zeros", zeros), *others):
                outputs = dict(zip(self.largest.outputs, self._run(arrays), strict=True))
                problem = self._difference(
                    Buckets(tuple(dimensions)).cut(outputs, unpadded), expected
                )
                if problem:
                    at = ", ".join(f"{name}={size}" for name, size in unpadded.items())
                    raise _PaddingFails(f"{problem} with {content} as padding, {at}")

    def _difference(self, outputs: Mapping[str, Array], expected: Sequence[Array]) -> str:
        """Describe the first difference; empty if there is none."""
        for position, (name, array) in enumerate(outputs.items()):
            check = compare_output(
                name,
                array,
                expected[position],
                self.facts.precision,
                is_sigmoid=position in self.facts.sigmoids,
            )
            if not check.agrees:
                how = check.problem or f"{check.n_differing} of {check.n_elements} elements"
                return f"output {name!r} changes ({how})"
        return ""

    def _over(
        self, content: dict[str, Array], inputs: Mapping[str, Array], padded: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Write inputs over the start of arrays; masks keep the value of their padding."""
        for name, array in inputs.items():
            if name in self.buckets.padding:
                content[name] = padded[name]
            else:
                content[name][tuple(map(slice, array.shape))] = array
        return content

    def _draw(self, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
        inputs = self.largest.file.inputs
        shapes = self.buckets.resized({name: shape for name, (shape, _) in inputs.items()}, sizes)
        specs = {name: (shapes[name], dtype) for name, (_, dtype) in inputs.items()}
        arrays = draw_inputs(specs, seed, self.facts.ranges)
        rng = np.random.default_rng(seed)
        for name, value in self.buckets.padding.items():
            kept = np.full(shapes[name], 0.0 if value else 1.0, arrays[name].dtype)
            if seed == _MASKED and kept.ndim:
                # All but the first of a row, so that no row is masked as a whole.
                kept[..., 1:][rng.random(kept[..., 1:].shape) < 0.5] = value
            arrays[name] = kept
        for limit in self.largest.limits if seed == _LAST else ():
            if (limit.low or 0) < 0:
                limit.part_of(arrays[limit.input])[...] = -1
        return arrays

    def _far(self, sizes: Mapping[str, int], sign: int) -> dict[str, Array]:
        """Draw values beyond those of inputs, which would be the largest or the smallest."""
        arrays = self._draw(sizes, _PADDING)
        for name, array in arrays.items():
            if array.dtype.kind == "f" and name not in self.facts.ranges:
                arrays[name] = (sign * (_FAR + np.abs(array))).astype(array.dtype)
        return arrays

    def _run(self, arrays: Mapping[str, Array]) -> list[Array]:
        """Run the model on arrays for the inputs that are left after cleaning."""
        sizes = self.buckets.sizes_of({name: array.shape for name, array in arrays.items()})
        original = self.peer.original.inputs
        shapes: dict[str, Any] = {name: list(shape) for name, (shape, _) in original.items()}
        for dimension in self.declared:
            for name, axes in dimension.axes.items():
                for axis in axes if dimension.name in sizes else ():
                    shapes[name][axis] = sizes[dimension.name]
        return self.peer.run(arrays, {name: tuple(shape) for name, shape in shapes.items()})


def _cases(dimension: BucketedDimension) -> list[tuple[int, int]]:
    """Return pairs of a size and its bucket: the ends of the first bucket and of the last."""
    first, last = dimension.sizes[0], dimension.sizes[-1]
    low = {first: dimension.min_size}
    if last != first:
        low[last] = dimension.sizes[-2] + 1
    return [
        (size, bucket)
        for bucket, start in low.items()
        for size in sorted({start, bucket - 1})
        if start <= size < bucket
    ]
