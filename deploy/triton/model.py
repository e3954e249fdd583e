"""A library of Subgraph Tuner in the Python back end of NVIDIA Triton Inference Server."""

from pathlib import Path
from typing import Any

import triton_python_backend_utils as triton
import tuner_runtime


class TritonPythonModel:
    """A model of Triton, whose instances each have a process and a library of their own."""

    def initialize(self, arguments: dict[str, str]) -> None:
        """Load the library beside this file."""
        version = Path(arguments["model_repository"]) / arguments["model_version"]
        self._library = tuner_runtime.load(version / "network.lib")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return a response for each request; one that cannot be run has the reason."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        try:
            outputs = self._library(inputs)
        except (ValueError, tuner_runtime.TunerError) as error:
            return triton.InferenceResponse(error=triton.TritonError(str(error)))
        wanted = request.requested_output_names()
        return triton.InferenceResponse([triton.Tensor(name, outputs[name]) for name in wanted])
