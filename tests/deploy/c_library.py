"""The functions of deploy/c/tuner.h by ctypes."""

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deploy.python.tuner_runtime.core import Tensor, described_array, functions_of

Array = np.ndarray[Any, Any]


def spec_of(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    """Return shape and dtype of a tensor."""
    return tuple(tensor.shape[: tensor.rank]), tensor.dtype.decode()


class Interface:
    """The functions of libtuner.so without their prefix; failures are RuntimeErrors."""

    def __init__(self, file: Path) -> None:
        self._functions = functions_of(file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, f"tuner_{name}")

    def opened(self, folder: Path | str, n_threads: int = 1) -> Any:
        """Open a library."""
        library = self.open(str(folder).encode(), n_threads)
        if not library:
            raise RuntimeError(self.error().decode())
        return library

    def described(self, library: Any, tensors: list[Tensor]) -> dict[str, tuple[Any, str]]:
        """Return shape and dtype of the outputs of a run by name."""
        outputs = (Tensor * self.n_outputs(library))()
        given = (Tensor * len(tensors))(*tensors)
        if self.describe_outputs(library, given, len(tensors), outputs, len(outputs)):
            raise RuntimeError(self.error().decode())
        return {each.name.decode(): spec_of(each) for each in outputs}

    def run_tensors(self, library: Any, tensors: list[Tensor]) -> dict[str, Array]:
        """Run a library; copy its outputs."""
        if self.run(library, (Tensor * len(tensors))(*tensors), len(tensors)):
            raise RuntimeError(self.error().decode())
        outputs = {}
        for number in range(self.n_outputs(library)):
            output = self.output(library, number).contents
            content = ctypes.string_at(output.data, output.n_bytes)
            array = np.frombuffer(content, output.dtype.decode())
            outputs[output.name.decode()] = array.reshape(output.shape[: output.rank])
        return outputs

    def __call__(self, library: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run a library on arrays in the order of its inputs."""
        return self.run_tensors(library, [described_array(*each) for each in inputs.items()])
