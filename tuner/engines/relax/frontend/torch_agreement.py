"""Comparison of an exported program of torch with the ONNX model that torch writes for it.

Some formulas of torch's exporter overflow where the program does not. Where the two differ, the
program is computed in float64 with other roundings of its precision. What these change is not
compared: the sign of a sum that cancels, the order of near-ties, the phase of a large argument.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator

from tuner.errors import ModelError, described, summary
from tuner.library.arrays import Array
from tuner.library.limits import InputLimit
from tuner.networks.torch.torch_limits import find_limits
from tuner.peers.exact import torch_float64
from tuner.peers.exact.onnx_float64 import GatherElements, in_float64
from tuner.peers.exact.rounding import Rounding, widened

# Magnitudes of floating-point inputs; None for all of them in one input.
_MAGNITUDES = (1.0, 0.0, 1e-8, 100.0, 1e4, 1e10, None)
# Share of multiples of a half, which functions of whole parts and orders of elements treat apart.
_HALVES_SHARE = 0.25
_TOLERANCE = 0.01
_N_ROUNDINGS = 8
# Coarsest first.
_PRECISIONS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

Runner = Callable[[Sequence[Array]], Iterator[list[Array]]]


def check_agreement(program: Any, model: onnx.ModelProto) -> None:
    """Compare a program with its ONNX model on inputs of many magnitudes.

    What is not finite in the program's outputs is not compared, nor are inputs that it refuses, or
    elements that depend on roundings.

    Args:
        program: Exported program.
        model: ONNX model with its inputs and outputs in the same order.

    Raises:
        ModelError: If an output differs, which the message names, nothing runs the model, or torch
            cannot run the program.
    """
    names = program.graph_signature.user_outputs
    if len(model.graph.input) != len(program.graph_signature.user_inputs):
        return  # the importer refuses a model that lacks inputs
    module = program.module()
    comparison = _Comparison(module, _precision(program), _runner(model))
    refusal = "no output is finite"
    is_compared = False
    for magnitude, inputs in _inputs(program):
        try:
            expected = torch_float64.compute(module, inputs)
        except Exception as error:  # torch documents none for inputs that a program refuses
            refusal = summary(error)
            continue
        is_compared |= any(np.isfinite(values).any() for values in expected)
        wrong = comparison.wrong_outputs(inputs, expected)
        if wrong:
            about = "many magnitudes" if magnitude is None else f"about {magnitude:g}"
            raise _unsupported(
                f"computes another {names[wrong[0]]!r} for inputs of {about}: replace the operator "
                "by others with the same result"
            )
    if not is_compared:
        raise _unsupported(f"cannot be compared with it: torch cannot run the program ({refusal})")


def _unsupported(problem: str) -> ModelError:
    return ModelError(
        f"the ONNX model that torch writes for it {problem}", code="unsupported-operator"
    )


def _precision(program: Any) -> str:
    """Return the coarsest precision of floating-point numbers in a program."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    chosen = (dtype for dtype in _PRECISIONS if dtype in dtypes)
    return str(next(chosen, torch.float32)).removeprefix("torch.")


def _inputs(program: Any) -> Iterator[tuple[float | None, list[torch.Tensor]]]:
    """Yield inputs: floating-point numbers of a magnitude, and whole ones that are allowed."""
    values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    limits: dict[str, list[InputLimit]] = {}
    for limit in find_limits(program):
        limits.setdefault(limit.input, []).append(limit)
    for seed, magnitude in enumerate(_MAGNITUDES):
        rng = np.random.default_rng(seed)
        yield (
            magnitude,
            [
                _draw(rng, values[name], magnitude, limits.get(name, ()))
                for name in program.graph_signature.user_inputs
            ],
        )


def _draw(
    rng: np.random.Generator, value: Any, magnitude: float | None, limits: Sequence[InputLimit]
) -> torch.Tensor:
    """Return an input; whole numbers without limits are 0 and 1."""
    shape, dtype = tuple(value.shape), value.dtype
    if dtype.is_floating_point:
        scale = rng.choice([each for each in _MAGNITUDES if each is not None], shape)
        drawn = rng.standard_normal(shape) * (scale if magnitude is None else magnitude)
        is_half = (rng.random(shape) < _HALVES_SHARE) & (magnitude == 1.0)
        drawn = np.where(is_half, np.round(2.0 * drawn) / 2.0, drawn)
        # Magnitudes above float16's range would be infinite.
        return torch.from_numpy(np.asarray(drawn)).clamp(*_ends(dtype)).to(dtype)
    whole = np.asarray(rng.integers(0, 1 if magnitude == 0.0 else 2, shape))
    for limit in limits:
        part = tuple(slice(*ends) for ends in limit.part)
        if limit.low is None or limit.high is None:
            whole[part] = np.where(whole[part] == 0, 1, whole[part])
        elif magnitude != 0.0:
            whole[part] = rng.integers(
                max(limit.low, -1 if dtype.is_signed else 0), limit.high + 1, whole[part].shape
            )
    return torch.from_numpy(whole).to(dtype)


def _ends(dtype: torch.dtype) -> tuple[float, float]:
    limits = torch.finfo(dtype)
    return limits.min, limits.max


class _Comparison:
    """Comparison of a program with a model that should have the same outputs.

    Args:
        module: Module of the program.
        precision: Coarsest precision of the program.
        run: Runs the model, in one way and in another one if that differs from the program.
    """

    def __init__(self, module: Any, precision: str, run: Runner) -> None:
        self._module = module
        self._precision = precision
        self._run = run

    def wrong_outputs(self, inputs: Sequence[torch.Tensor], expected: list[Array]) -> list[int]:
        """Return the positions of the outputs of the model that are wrong however it runs.

        Args:
            inputs: Inputs of the program.
            expected: Outputs of the program.
        """
        answers = [expected]
        wrong = [*range(len(expected))]
        with described(
            lambda kind: _unsupported(
                f"cannot be compared with it ({kind}): the log of the process has the details"
            )
        ):
            for returned in self._run([_array(tensor) for tensor in inputs]):
                wrong = self._decide(wrong, returned, answers, inputs)
                if not wrong:
                    break
        return wrong

    def _decide(
        self,
        positions: list[int],
        returned: list[Array],
        answers: list[list[Array]],
        inputs: Sequence[torch.Tensor],
    ) -> list[int]:
        """Return the positions of the outputs that are wrong.

        Args:
            positions: Outputs to compare.
            returned: Outputs of the model.
            answers: Outputs of the program, then those in float64, exact and with roundings, which
                are added where outputs differ.
            inputs: Inputs of the program.
        """
        while True:
            wrong = [
                position
                for position in positions
                if _is_wrong(returned[position], [answer[position] for answer in answers])
            ]
            seed = len(answers) - 1
            if not wrong or seed > _N_ROUNDINGS:
                return wrong
            rounding = Rounding(self._precision, seed) if seed else None
            try:
                answers.append(torch_float64.compute_wide(self._module, inputs, rounding))
            except Exception:  # an operator of torch that has no kernel for float64
                return wrong


def _is_wrong(actual: Array, answers: Sequence[Array]) -> bool:
    """Return whether an element is unlike that of all answers, which are finite and agree on it."""
    expected = answers[0]
    if actual.shape != expected.shape:
        return True
    if expected.dtype.kind != "f":
        is_known = np.all([answer == expected for answer in answers], axis=0)
        return bool((is_known & (actual != expected)).any())
    is_finite = np.isfinite(answers).all(axis=0)
    allowed = _TOLERANCE * np.abs(expected[is_finite]).max(initial=0.0)
    with np.errstate(invalid="ignore"):
        spread = np.ptp(np.asarray(answers, np.float64), axis=0)
        is_far = ~(np.abs(actual.astype(np.float64) - expected) <= allowed + spread)
    is_known = (spread <= allowed) | ~np.isfinite(actual.astype(np.float64))
    return bool((is_finite & is_known & is_far).any())


def _array(tensor: torch.Tensor) -> Array:
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    array: Array = tensor.numpy()
    return array


def _runner(model: onnx.ModelProto) -> Runner:
    """Return a function that yields the outputs of ONNX Runtime, then of ONNX's evaluator.

    Each has functions that the other one computes more exactly. If neither can run the model, as
    both lack operators for some types, they do so with float64 in the place of narrower numbers.
    """
    names = [info.name for info in model.graph.input]
    made: dict[Any, Any] = {}

    def outputs(make: Any, is_wide: bool, inputs: Sequence[Array]) -> list[Array]:
        if (make, is_wide) not in made:
            made[make, is_wide] = make(_wide(model) if is_wide else model)
        arrays = map(widened, inputs) if is_wide else inputs
        returned = made[make, is_wide](dict(zip(names, arrays, strict=True)))
        return [np.asarray(array) for array in returned]

    def run(inputs: Sequence[Array]) -> Iterator[list[Array]]:
        error: Exception | None = None
        for is_wide in (False, True):
            n_runs = 0
            for make in (_session, _evaluator):
                try:
                    returned = outputs(make, is_wide, inputs)
                except Exception as raised:  # their errors have no common base
                    error = raised
                    continue
                n_runs += 1
                yield returned
            if n_runs:
                return
        assert error is not None
        raise error

    return run


def _session(model: onnx.ModelProto) -> Callable[[Mapping[str, Array]], list[Array]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda feeds: [*session.run(None, feeds)]


def _evaluator(model: onnx.ModelProto) -> Callable[[Mapping[str, Array]], list[Array]]:
    evaluator: Any = ReferenceEvaluator(model, new_ops=[GatherElements])
    return lambda feeds: [*evaluator.run(None, feeds)]


def _wide(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return in_float64(copy)
