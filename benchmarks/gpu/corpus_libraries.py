"""Libraries of the corpus in float16 with what they must compute, for the step ``agreement``.

    python -m benchmarks.gpu.corpus_libraries --out build/agree --corpus build/corpus

Large weights become eight levels in a sequence that repeats, so that a library compresses to a few
hundred kilobytes. What a network computes is asked of ONNX Runtime in float32. A network whose
outputs are constant, not finite, or lost to roundings of float16 is left out: its file says why.
Files that are there already stay; networks with few nodes come first.
"""

import argparse
import copy
import fnmatch
import itertools
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from benchmarks.corpus.catalogue import ENTRIES
from benchmarks.corpus.entries import Entry, Exported, Light, Quantised
from benchmarks.corpus.files import Files, is_made, model_file
from benchmarks.gpu.agreement import DESCRIBED, EXPECTED, SUFFIX, Drawn, positions_of
from benchmarks.gpu.first_choices import as_half
from benchmarks.gpu.making import pack
from benchmarks.gpu.models.networks import LEVELS, Array

_HALF_MAX = 65504.0
_MIN_SIZE = 1024
_MAX_BYTES = 2 << 20
# Roundings alone must not change more of an output than this share of its norm.
_MAX_ERROR = 0.05
# Other inputs must change more of it than that.
_MIN_CHANGE = 0.02
_PERIOD = 8191
_STRIDES = (1201, 77, 3001, 5, 411)
_WEIGHT_INPUTS = {
    "Conv": (1,), "ConvTranspose": (1,), "Gemm": (1,), "MatMul": (0, 1), "Gather": (0,),
    "LSTM": (1, 2), "GRU": (1, 2), "RNN": (1, 2), "Transpose": (0,),
}  # fmt: skip


class UnusableError(Exception):
    """A network that cannot show whether a library agrees."""


def main() -> None:
    """Build what the command line names and is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/agree"))
    parser.add_argument("--corpus", type=Path, default=Path("build/corpus"), help="its folder")
    parser.add_argument("--only", nargs="+", default=["*"], help="Names of networks, or patterns.")
    parser.add_argument("--target", default="cuda:sm_90")
    parser.add_argument("--data-dir", type=Path, help="keeps objects for the next run")
    parser.add_argument("--count", type=int, default=1000, help="stop at this many libraries")
    arguments = parser.parse_args()
    chosen = [
        entry
        for entry in ENTRIES
        if not isinstance(entry.source, Quantised | Light)
        and any(fnmatch.fnmatch(entry.name, each) for each in arguments.only)
    ]
    files = Files(arguments.corpus)
    files.fetch(chosen, lambda line: print(line, file=sys.stderr, flush=True))
    entries = [entry for entry in chosen if is_made(files.folder, entry)]
    arguments.out.mkdir(parents=True, exist_ok=True)
    for entry in sorted(entries, key=lambda entry: _n_nodes(model_file(files.folder, entry))):
        if len(list(arguments.out.glob(f"*{SUFFIX}"))) >= arguments.count:
            break
        if not list(arguments.out.glob(f"{entry.name}.*")):
            with tempfile.TemporaryDirectory(prefix="agree-") as scratch:
                data = arguments.data_dir or Path(scratch) / "data"
                file = model_file(files.folder, entry)
                _make(entry, file, arguments.out, arguments.target, data, Path(scratch))


def _make(
    entry: Entry, file: Path, out: Path, target: str, data: Path, scratch: Path
) -> None:  # fmt: skip
    """Write the archive of a network, or why there is none."""
    begun = time.perf_counter()
    line: dict[str, Any] = {"network": entry.name}
    try:
        model = _with_levels(onnx.load(file))
        drawn = _drawn(model, entry)
        try:
            line["float16_error"] = _write_expected(model, drawn, scratch)
        except UnusableError:
            model = _with_levels(onnx.load(file), keeps_variance=True)
            line["float16_error"] = _write_expected(model, drawn, scratch)
        _build(as_half(model), entry, target, data, scratch)
        contents = [scratch / DESCRIBED, scratch / EXPECTED, *scratch.glob("*.lib/*")]
        made = scratch / f"made{SUFFIX}"
        pack(made, scratch, contents)
        line["bytes"] = made.stat().st_size
        if line["bytes"] > _MAX_BYTES:
            raise UnusableError(f"its library has {line['bytes']} bytes")
        partial = out / f".{entry.name}"
        partial.write_bytes(made.read_bytes())
        partial.rename(out / f"{entry.name}{SUFFIX}")
    except Exception as error:
        line["error"] = f"{type(error).__name__}: {error}"[:500]
        (out / f"{entry.name}.json").write_text(json.dumps(line))
    print(json.dumps({**line, "secs": round(time.perf_counter() - begun)}), flush=True)


def _build(model: onnx.ModelProto, entry: Entry, target: str, data: Path, scratch: Path) -> None:
    file = scratch / "half.onnx"
    onnx.save(model, file)
    options = [
        word
        for name, shape in entry.shapes.items()
        for word in ("--input", f"{name}={','.join(map(str, shape))}")
    ]
    words = [str(file), "--target", target, "--out", str(scratch / f"{entry.name}.lib"), *options]
    command = [sys.executable, "-m", "tuner", "build", *words, "--data-dir", str(data), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnusableError(" ".join(done.stderr.split()))


def _n_nodes(file: Path) -> int:
    return len(onnx.load(file, load_external_data=False).graph.node)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _with_levels(model: onnx.ModelProto, *, keeps_variance: bool = False) -> onnx.ModelProto:
    """Round constants to float16, and replace large weights, in place.

    Weights keep their standard deviation, or those of convolutions get the one that keeps the
    variance of activations behind a ReLU.
    """
    for graph in _graphs(model.graph):
        weights = {
            node.input[index]
            for node in graph.node
            for index in _WEIGHT_INPUTS.get(node.op_type, ())
            if index < len(node.input)
        }
        shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        n_sums = dict(_sums(graph, shapes)) if keeps_variance else {}
        for number, tensor in enumerate(graph.initializer):
            is_weight = tensor.name in weights
            _replace(tensor, number if is_weight else None, n_sums.get(tensor.name, 0.0))
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.TENSOR:
                    _replace(attribute.t, None)
                elif attribute.name == "value_float":
                    attribute.f = float(np.float16(np.clip(attribute.f, -_HALF_MAX, _HALF_MAX)))
    return model


def _sums(
    graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, float]]:
    """Yield the weights of convolutions with how many of them an output sums."""
    for node in graph.node:
        shape = shapes.get(node.input[1], ()) if len(node.input) > 1 else ()
        if node.op_type == "Conv" and shape:
            yield node.input[1], math.prod(shape[1:])
        elif node.op_type == "ConvTranspose" and shape:
            given = [each.ints for each in node.attribute if each.name == "strides"]
            yield node.input[1], math.prod(shape) / shape[1] / math.prod(given[0] if given else [1])


def _replace(tensor: onnx.TensorProto, number: int | None, n_sums: float = 0.0) -> None:
    if tensor.data_type != TensorProto.FLOAT:
        return
    array = np.clip(numpy_helper.to_array(tensor), -_HALF_MAX, _HALF_MAX)
    is_random = array.size >= _MIN_SIZE and array.ndim > 1 and len(np.unique(array[:64])) > 16
    if number is not None and is_random:
        levels = spread(array.shape, number)
        array = levels * math.sqrt(2 / n_sums) if n_sums else levels * array.std() + _mean(array)
    rounded = array.astype(np.float16).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))


def _mean(array: Array) -> np.float32:
    """Return the mean if it is one, so that levels around zero are the same everywhere."""
    mean = array.mean()
    return np.float32(mean if abs(mean) > 0.2 * array.std() else 0.0)


def spread(shape: Sequence[int], number: int) -> Array:
    """Return eight levels in a sequence that repeats along each axis, in whatever order of axes.

    Args:
        shape: Shape of at most five axes.
        number: Number of the weight; another one starts elsewhere.
    """
    at = np.full((), 37 * number)
    for axis, size in enumerate(shape):
        at = at[..., None] + (_STRIDES[axis % len(_STRIDES)] * np.arange(size)) % _PERIOD
    rng = np.random.default_rng(_PERIOD)
    levels = LEVELS[rng.integers(0, len(LEVELS), _PERIOD)]
    return np.asarray(levels[at % _PERIOD])


def _drawn(model: onnx.ModelProto, entry: Entry) -> dict[str, Drawn]:
    """Return how to draw the inputs of a network."""
    weights = {tensor.name for tensor in model.graph.initializer}
    given = entry.source.inputs if isinstance(entry.source, Exported) else {}
    drawn = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        dims = tuple(dim.dim_value for dim in kind.shape.dim)
        shape = tuple(entry.shapes.get(value.name, dims))
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        if 0 in shape:
            raise UnusableError(f"the input {value.name} has no shape")
        below = given[value.name].below if value.name in given else None
        name = "float16" if dtype == np.float32 else dtype.name
        drawn[value.name] = Drawn(shape, name, below or 2, entry.values.get(value.name))
    return drawn


def _write_expected(model: onnx.ModelProto, drawn: Mapping[str, Drawn], scratch: Path) -> float:
    """Write inputs and outputs; return the error of storing every tensor in float16.

    Raises:
        UnusableError: If the outputs show nothing.
    """
    inputs = {name: _widened(each.array(name)) for name, each in drawn.items()}
    # Larger numbers, because means of many are the same for any draw.
    others = {name: _widened(each.array(f"{name}'")) for name, each in drawn.items()}
    others = {name: 3 * a if a.dtype == np.float32 else a for name, a in others.items()}
    names = [value.name for value in model.graph.output]
    outputs, moved, rounded = (
        dict(zip(names, _run(each, arrays), strict=True))
        for each, arrays in (
            (model, inputs), (model, others), (_storing_halves(model), inputs)
        )
    )  # fmt: skip
    kept, worst = {}, 0.0
    for name, array in outputs.items():
        if not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.size == 0:
            continue
        if not np.isfinite(array).all() or abs(array).max() > _HALF_MAX:
            raise UnusableError(f"the output {name} is not finite in float16")
        if moved[name].shape != array.shape or _gap(moved[name], array) < _MIN_CHANGE:
            continue  # it depends on biases alone
        error = _gap(rounded[name], array)
        if not error <= _MAX_ERROR:
            raise UnusableError(f"roundings change the output {name} by {error:.2e} of its norm")
        worst = max(worst, error)
        kept[name] = array
    if not kept:
        raise UnusableError("no output depends on the inputs")
    numbers = {str(names.index(name)): name for name in kept}
    arrays = {
        key: kept[name].ravel()[positions_of(kept[name].size)] for key, name in numbers.items()
    }
    np.savez_compressed(scratch / EXPECTED, **arrays)
    described = {
        "inputs": {name: vars(each) for name, each in drawn.items()},
        "outputs": {key: [name, list(kept[name].shape)] for key, name in numbers.items()},
        "n_outputs": len(names),
        "float16_error": worst,
    }
    (scratch / DESCRIBED).write_text(json.dumps(described))
    return worst


def _widened(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _gap(array: Array, expected: Array) -> float:
    """Return the norm of a difference as a share of the norm of what is expected."""
    gap = np.linalg.norm(array.astype(float) - expected)
    return float(gap / max(np.linalg.norm(expected.astype(float)), np.finfo(float).tiny))


def _run(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    # Optimisations remove pairs of casts.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return list(session.run(None, dict(inputs)))


def _storing_halves(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that rounds every tensor to float16."""
    typed = onnx.shape_inference.infer_shapes(model).graph
    floats = {
        value.name
        for value in itertools.chain(typed.value_info, typed.output)
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    rounding = copy.deepcopy(model)
    nodes = []
    for node in rounding.graph.node:
        nodes.append(node)
        # Constants are rounded already.
        for number, name in enumerate(node.output if node.op_type != "Constant" else ()):
            if name in floats:
                exact, half = f"{name}/exact", f"{name}/half"
                node.output[number] = exact
                nodes.append(helper.make_node("Cast", [exact], [half], to=TensorProto.FLOAT16))
                nodes.append(helper.make_node("Cast", [half], [name], to=TensorProto.FLOAT))
    del rounding.graph.node[:]
    rounding.graph.node.extend(nodes)
    return rounding


if __name__ == "__main__":
    main()
