"""A library of Subgraph Tuner in the Python back end of NVIDIA Triton Inference Server."""

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton
import tuner_runtime


class TritonPythonModel:
    """A model of Triton, whose instances each have a process and a library of their own."""

    def initialize(self, arguments: dict[str, str]) -> None:
        """Load the library beside this file."""
        version = Path(arguments["model_repository"]) / arguments["model_version"]
        self._library = tuner_runtime.load(version / "network.lib")
        self._scalars = {name for name, (shape, _) in self._library.inputs.items() if not shape}

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return a response for each request; one that cannot be run has the reason."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        # For Triton, a scalar has the shape (1,).
        for name in inputs.keys() & self._scalars:
            inputs[name] = inputs[name].reshape(())
        try:
            outputs = self._library(inputs)
        except (ValueError, tuner_runtime.TunerError) as error:
            return triton.InferenceResponse(error=triton.TritonError(str(error)))
        names = request.requested_output_names()
        arrays = (np.atleast_1d(outputs[name]) for name in names)
        return triton.InferenceResponse([*map(triton.Tensor, names, arrays)])
