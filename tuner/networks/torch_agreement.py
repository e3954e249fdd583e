"""Comparison of an exported program of torch with the ONNX model that torch writes for it.

Some formulas of torch's exporter overflow where the program does not.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx

from tuner.errors import ModelError, described

Array = np.ndarray[Any, Any]

# Magnitudes of floating-point inputs; None for all of them in one input.
_MAGNITUDES = (1.0, 0.0, 1e-8, 100.0, 1e4, 1e10, None)
_TOLERANCE = 0.01


def check_agreement(program: Any, model: onnx.ModelProto) -> None:
    """Compare a program with its ONNX model on inputs of many magnitudes.

    What is not finite in the program's outputs is not compared, nor are inputs that it refuses.

    Args:
        program: Exported program.
        model: ONNX model with its inputs and outputs in the same order.

    Raises:
        ModelError: If an output differs, which the message names, or neither runs the model.
    """
    names = program.graph_signature.user_outputs
    if len(model.graph.input) != len(program.graph_signature.user_inputs):
        return  # the importer refuses a model that lacks inputs
    with described(_incomparable):
        run = _runner(model)
    for magnitude, inputs in _inputs(program):
        expected = _run(program, inputs)
        if expected is None:
            continue
        with described(_incomparable):
            returned = run(inputs)
        for name, values, actual in zip(names, expected, returned, strict=False):
            if not _agree(actual, values):
                about = "many magnitudes" if magnitude is None else f"about {magnitude:g}"
                raise ModelError(
                    f"the ONNX model that torch writes for it computes another {name!r} for inputs "
                    f"of {about}: replace the operator by others with the same result",
                    code="unsupported-operator",
                )


def _incomparable(kind: str) -> ModelError:
    return ModelError(
        f"the ONNX model that torch writes for it cannot be compared with it ({kind}): the log of "
        "the process has the details",
        code="unsupported-operator",
    )


def _inputs(program: Any) -> Iterator[tuple[float | None, list[Array]]]:
    """Yield inputs: floating-point numbers of a magnitude, and whole ones of 0 and 1."""
    values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    tensors = [values[name] for name in program.graph_signature.user_inputs]
    for seed, magnitude in enumerate(_MAGNITUDES):
        rng = np.random.default_rng(seed)
        yield magnitude, [_draw(rng, tensor, magnitude) for tensor in tensors]


def _draw(rng: np.random.Generator, tensor: Any, magnitude: float | None) -> Array:
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if not tensor.dtype.is_floating_point:
        return rng.integers(0, 2, shape).astype(dtype)
    scale = rng.choice([each for each in _MAGNITUDES if each is not None], shape)
    drawn = rng.standard_normal(shape) * (scale if magnitude is None else magnitude)
    return np.asarray(drawn).astype("float32" if dtype == "bfloat16" else dtype)


def _run(program: Any, inputs: Sequence[Array]) -> list[Array] | None:
    """Return the outputs of a program; None if it refuses the inputs."""
    import torch

    tensors = [torch.from_numpy(np.asarray(array)) for array in inputs]
    arguments = torch.utils._pytree.tree_unflatten(tensors, program.call_spec.in_spec)
    try:
        with torch.no_grad():
            returned = program.module()(*arguments[0], **arguments[1])
    except (RuntimeError, IndexError, ValueError):
        return None
    flat, _ = torch.utils._pytree.tree_flatten(returned)
    return [
        value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy() for value in flat
    ]


def _runner(model: onnx.ModelProto) -> Callable[[Sequence[Array]], list[Array]]:
    """Return a function that runs a model by ONNX Runtime, or by ONNX itself where that cannot."""
    from onnx.reference import ReferenceEvaluator

    names = [info.name for info in model.graph.input]
    by_onnx: Any = ReferenceEvaluator(model)
    by_runtime = _session(model)

    def run(inputs: Sequence[Array]) -> list[Array]:
        feeds = dict(zip(names, inputs, strict=True))
        if by_runtime is not None:
            # It lacks operators for some types, which it reports when they run.
            with contextlib.suppress(Exception):
                return list(by_runtime.run(None, feeds))
        return list(by_onnx.run(None, feeds))

    return run


def _session(model: onnx.ModelProto) -> Any:
    """Return a session of ONNX Runtime; None if it is not installed or refuses the model."""
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # its errors have no common base
        return None


def _agree(actual: Array, expected: Array) -> bool:
    """Return whether an output is that of the program where that is finite."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return True  # the imported module is checked for its types
    reference, returned = expected.astype(np.float64), actual.astype(np.float64)
    is_finite = np.isfinite(reference)
    reference, returned = reference[is_finite], returned[is_finite]
    scale = np.abs(reference).max(initial=0.0)
    with np.errstate(invalid="ignore"):
        return bool((np.abs(returned - reference) <= _TOLERANCE * scale).all())
