"""torch as a peer that launches the operators of a ``.pt2`` model as one CUDA graph."""

from typing import Any

import torch

from tuner.engines.base import NetworkRun
from tuner.errors import RequestError, summary
from tuner.peers.base import PeerInfo, PeerModel, time_runs
from tuner.peers.torch import check_gpu, fetch, module_of, read_tensors

# cuDNN and cuBLAS choose their kernels and allocate their workspaces in the first runs.
_N_RUNS_BEFORE = 3
# A graph is of the shapes and dtypes of its capture: copies to others would be broadcast.
_Key = tuple[str, tuple[tuple[torch.Size, torch.dtype], ...]]
_graphs: dict[_Key, tuple[Any, list[torch.Tensor], Any]] = {}


def load_model(model: PeerModel) -> PeerInfo:
    """Load a model; see :class:`tuner.peers.base.Peer`."""
    check_gpu("torch-cuda-graph", model)
    torch.backends.cudnn.benchmark = True
    module_of(model)
    return PeerInfo(str(torch.__version__), "cuda")


def run_model(model: PeerModel, request: NetworkRun) -> tuple[float, ...]:
    """Run a model and time it; see :class:`tuner.peers.base.Peer`."""
    tensors = read_tensors(model, request)
    with torch.inference_mode():
        key = model.path, tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        if key not in _graphs:
            _graphs[key] = _capture(module_of(model), tensors)
        graph, inputs, outputs = _graphs[key]
        for place, tensor in zip(inputs, tensors, strict=True):
            place.copy_(tensor)

        def run() -> Any:
            graph.replay()
            torch.cuda.synchronize()
            return outputs

        return time_runs(run, fetch, request)


def _capture(module: Any, inputs: list[torch.Tensor]) -> tuple[Any, list[torch.Tensor], Any]:
    """Return a graph of a module's operators, and the tensors that it reads and writes."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    try:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_N_RUNS_BEFORE):
                module(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            outputs = module(*inputs)
    except Exception as error:  # operators that read results on the host cannot be captured
        raise RequestError(f"torch cannot capture the model: {summary(error)}") from error
    return graph, inputs, outputs
