"""Worker function that computes a model in float64, to tell which of two runtimes errs."""

from pathlib import Path

import numpy as np

from tuner.engines.base import NetworkRun
from tuner.errors import RequestError, summary
from tuner.library.arrays import write_arrays
from tuner.peers.base import PeerModel, read_inputs
from tuner.peers.exact.rounding import Rounding


def run_float64(model: PeerModel, request: NetworkRun, precision: str, seed: int) -> None:
    """Compute a model in float64 and store its outputs, as ``output_0`` and so on.

    Args:
        request: Inputs and outputs.
        precision: Coarsest precision that the model computes in.
        seed: Seed of roundings of that precision, at least 1; 0 for none.

    Raises:
        RequestError: If the model cannot be computed, as its operators are unknown.
    """
    arrays = read_inputs(model, request)
    arrays = {name: arrays[name] for name in model.inputs}
    rounding = Rounding(precision, seed) if seed else None
    try:
        if Path(model.path).suffix.lower() == ".pt2":
            from tuner.peers.exact import torch_float64

            outputs = torch_float64.run(model.path, arrays, rounding)
        else:
            from tuner.peers.exact import onnx_float64

            outputs = onnx_float64.run(model.path, arrays, rounding)
    except Exception as error:  # evaluators raise what NumPy and torch do
        raise RequestError(f"the model cannot be computed in float64: {summary(error)}") from error
    named = {f"output_{index}": np.asarray(array) for index, array in enumerate(outputs)}
    write_arrays(request.outputs, named)
