"""Libraries whose last operators, the tail, run in another runtime after the compiled program."""

import logging
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.errors import RequestError, summary
from tuner.library.arrays import Array
from tuner.library.threads import VARIABLE
from tuner.library.wrapper import LibraryWrapper

if TYPE_CHECKING:
    from tuner.library.loading import Library
    from tuner.library.manifest import Manifest

_LOG = logging.getLogger(__name__)
# Types, as ONNX Runtime names them, that it exchanges with NumPy; bfloat16 is not one.
_EXCHANGED = frozenset(
    f"tensor({name})"
    for name in (
        *("bool", "float16", "float", "double"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
)
_Run = Callable[[list[str], dict[str, Array]], list[Array]]


class TailedLibrary(LibraryWrapper):
    """A library whose programs compute a part of the outputs, and what the tail reads.

    Attributes:
        tail_runtime: Package that runs the tail, ``onnxruntime`` or ``onnx``.
    """

    def __init__(self, library: "Library", folder: Path, described: "Manifest") -> None:
        super().__init__(library)
        self.outputs = described.outputs
        self._computed = [name for name in self.outputs if name not in described.returned]
        names = dict.fromkeys(program.tail for program in described.programs)
        tails = {name: _Tail(folder / name) for name in names}
        self.tail_runtime = next(iter(tails.values())).runtime
        if described.tail is not None:
            _LOG.info("%s runs the tail: %s", self.tail_runtime, described.tail.note)
        self._tails = [(program.inputs, tails[program.tail]) for program in described.programs]

    def run_arrays(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Run the program, then the tail.

        Raises:
            RequestError: If the other runtime fails on what the program returns.
        """
        values = self._library(arrays)
        # The library also takes scalars of NumPy and objects that are made arrays of.
        arrays = {name: np.asarray(array) for name, array in arrays.items()}
        tail = next(
            tail
            for program, tail in self._tails
            if all(arrays[name].shape == shape for name, (shape, _) in program.items())
        )
        values |= tail.run(self._computed, {**arrays, **values})
        return {name: values[name] for name in self.outputs}

    def run_on_device(
        self,
        inputs: Mapping[str, Any],  # noqa: ARG002
        outputs: Mapping[str, Any] | None = None,  # noqa: ARG002
        stream: Any = None,  # noqa: ARG002
    ) -> dict[str, Any]:
        """Refuse arrays on a GPU.

        Raises:
            RequestError: Always; the tail runs on the CPU.
        """
        raise RequestError(
            "operators of the model run on the CPU after its library: call it with arrays of NumPy"
        )


def with_tail(library: "Library", folder: Path, described: "Manifest") -> "Library":
    """Return a loaded library with the tail of its model, if it has one.

    Raises:
        RequestError: If no runtime can load the tail.
    """
    return library if described.tail is None else TailedLibrary(library, folder, described)


class _Tail:
    """A tail in the runtime that is installed here."""

    def __init__(self, file: Path) -> None:
        opened = _open_with_onnxruntime(file)
        self.runtime = "onnxruntime" if opened else "onnx"
        self._inputs, self._run = opened or _open_with_onnx(file)

    def run(self, outputs: list[str], values: Mapping[str, Array]) -> dict[str, Array]:
        """Compute outputs from the inputs of the model and the values of its program."""
        feeds = {name: values[name] for name in self._inputs}
        try:
            return dict(zip(outputs, self._run(outputs, feeds), strict=True))
        except Exception as error:  # runtimes raise types of their own
            raise RequestError(
                f"the operators after the library failed: {summary(error)}"
            ) from error


def _open_with_onnxruntime(file: Path) -> tuple[list[str], _Run] | None:
    """Load a tail into ONNX Runtime.

    Returns:
        None if it is not installed, lacks an operator, or takes no arrays of one of the types.
    """
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ[VARIABLE])
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised
    # Its threads would spin on the cores that the next run of the program uses.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # its own exception types are not part of its public API
        _LOG.warning("ONNX Runtime cannot load %s: %s", file.name, summary(error))
        return None
    others = {each.type for each in (*session.get_inputs(), *session.get_outputs())} - _EXCHANGED
    if others:
        _LOG.warning(
            "ONNX Runtime takes no arrays of %s in %s", ", ".join(sorted(others)), file.name
        )
        return None
    return [each.name for each in session.get_inputs()], session.run


def _open_with_onnx(file: Path) -> tuple[list[str], _Run]:
    try:
        import onnx
        from onnx.reference import ReferenceEvaluator

        model = onnx.load(file)
        evaluator = ReferenceEvaluator(model)
    except Exception as error:  # of protobuf, or an operator that it does not know
        advice = "; install onnxruntime" if find_spec("onnxruntime") is None else ""
        raise RequestError(
            f"{file.name}, the operators after the library, cannot be loaded: {summary(error)}"
            f"{advice}"
        ) from error
    _LOG.warning("the reference evaluator of onnx runs %s: it is slow", file.name)
    return [info.name for info in model.graph.input], evaluator.run
