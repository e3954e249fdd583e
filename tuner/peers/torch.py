"""torch as a peer for ``.pt2`` models, in a worker process of its own."""

import time
from typing import Any

import numpy as np

from tuner.engines.base import NetworkRun
from tuner.errors import RequestError

_modules: dict[str, Any] = {}


def run_model(model: str, n_threads: int, request: NetworkRun) -> tuple[float, ...]:
    """Run an exported program and time it; see :func:`tuner.peers.onnxruntime.run_model`.

    Outputs are stored by position, as ``output_0`` and so on.

    Raises:
        RequestError: If torch is not installed.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise RequestError(
            "comparing with torch needs it: pip install 'subgraph-tuner[torch]'"
        ) from error
    torch.set_num_threads(n_threads)
    if model not in _modules:
        _modules[model] = torch.export.load(model).module()
    module = _modules[model]
    with np.load(request.inputs) as stored:
        arguments = [torch.from_numpy(stored[name]) for name in stored.files]
    with torch.inference_mode():
        for _ in range(2):
            returned = module(*arguments)
        if request.outputs:
            tensors = returned if isinstance(returned, (tuple, list)) else (returned,)
            arrays = {f"output_{i}": tensor.numpy() for i, tensor in enumerate(tensors)}
            np.savez(request.outputs, **arrays)
        return tuple(_time(module, arguments) for _ in range(request.n_runs))


def _time(module: Any, arguments: list[Any]) -> float:
    start = time.perf_counter()
    module(*arguments)
    return time.perf_counter() - start
