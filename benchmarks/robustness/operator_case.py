"""One case of the operator sweep: load, lower, compile without records, run, compare."""

import contextlib
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

Array = np.ndarray[Any, Any]


def check(path: str) -> str:
    """Return "ok", or the reason why a case fails.

    A case that does not load as it is, is tried with its small inputs as constants: networks fix
    the axes, shapes and counts that the cases pass as inputs.

    Args:
        path: File of :mod:`benchmarks.robustness.operators`: a model, its inputs and outputs.
    """
    with np.load(path, allow_pickle=True) as stored:
        content, inputs, outputs = (stored[name].item() for name in ("model", "inputs", "outputs"))
    model = onnx.ModelProto.FromString(content)
    reason = _attempt(model, inputs, outputs)
    if reason != "ok" and _with_constants(model, inputs):
        return _attempt(model, inputs, outputs)
    return reason


def _with_constants(model: onnx.ModelProto, inputs: dict[str, Array]) -> bool:
    """Turn every small input but the first into an initialiser, in place."""
    others = list(inputs)[1:]
    small = [name for name in others if inputs[name].ndim <= 1]
    kept = [info for info in model.graph.input if info.name not in small]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    for name in small:
        model.graph.initializer.append(numpy_helper.from_array(inputs.pop(name), name))
    return bool(small)


def _attempt(model: onnx.ModelProto, inputs: dict[str, Array], outputs: list[Array]) -> str:
    from tuner.errors import TunerError

    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            actual = _run(model, inputs, Path(folder))
    except TunerError as error:
        return f"refused: {str(error)[:300]}"
    except Exception as error:  # a sweep reports every kind of failure
        lines = [line for line in str(error).splitlines() if line.strip()]
        return f"failed: {type(error).__name__}: {lines[-1].strip()[:300] if lines else ''}"
    for index, (a, b) in enumerate(zip(actual, outputs, strict=False)):
        if a.shape != b.shape:
            return f"wrong: output {index} has shape {a.shape}, not {b.shape}"
        if a.dtype != b.dtype:
            return f"wrong: output {index} is {a.dtype}, not {b.dtype}"
        with contextlib.suppress(TypeError):
            if not np.allclose(a, b, rtol=2e-3, atol=1e-4, equal_nan=True):
                wide = np.abs(a.astype("float64") - b.astype("float64"))
                return f"wrong: output {index} differs by {np.nanmax(wide):.3g}"
    return "ok"


def _run(model: onnx.ModelProto, inputs: dict[str, Array], folder: Path) -> list[Array]:
    import tvm
    from tvm import relax

    from tuner.engines.relax.graph.pipeline import lower
    from tuner.engines.relax.target.targets import describe_target, make_target
    from tuner.networks.worker import load_model

    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    loaded = load_model(str(path), {}, None, str(folder))
    target = make_target(describe_target("llvm").spec, intrinsics=False)
    module = lower(loaded.file, target, is_whole=True)
    with target:
        built = tvm.compile(module, target)
    machine = relax.VirtualMachine(built, tvm.cpu())
    tensors = [
        tvm.runtime.tensor(np.asarray(inputs[name], order="C")) for name in loaded.file.inputs
    ]
    returned = machine["main"](*tensors)
    values = [returned] if hasattr(returned, "numpy") else list(returned)
    return [
        np.asarray(value.numpy()) if hasattr(value, "numpy") else np.array(list(value))
        for value in values
    ]
