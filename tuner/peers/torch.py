"""torch as a peer for ``.pt2`` models: on the GPU for libraries of GPUs, if it has CUDA."""

from typing import Any

import numpy as np
import torch

from tuner.engines.base import NetworkRun
from tuner.errors import RequestError, summary
from tuner.library.arrays import Array
from tuner.peers.base import PeerInfo, PeerModel, read_inputs, time_runs

_modules: dict[str, Any] = {}


def load_model(model: PeerModel) -> PeerInfo:
    """Load a model; see :class:`tuner.peers.base.Peer`."""
    _module(model)
    return PeerInfo(str(torch.__version__), "cuda" if _is_on_gpu(model) else "cpu")


def run_model(model: PeerModel, request: NetworkRun) -> tuple[float, ...]:
    """Run a model and time it; see :class:`tuner.peers.base.Peer`."""
    module = _module(model)
    on_gpu = _is_on_gpu(model)
    device = "cuda" if on_gpu else "cpu"
    arrays = read_inputs(model, request)
    arguments = [_tensor(arrays[name]).to(device) for name in model.inputs]

    def run() -> Any:
        returned = module(*arguments)
        if on_gpu:
            torch.cuda.synchronize()
        return returned

    with torch.inference_mode():
        return time_runs(run, _fetch, request)


def _is_on_gpu(model: PeerModel) -> bool:
    return model.device == "cuda" and bool(torch.cuda.is_available())


def _module(model: PeerModel) -> Any:
    if model.path in _modules:
        return _modules[model.path]
    torch.set_num_threads(model.n_threads)
    try:
        program = torch.export.load(model.path)
        if _is_on_gpu(model):
            from torch.export.passes import move_to_device_pass

            # By default convolutions round the factors of float32 products to TF32.
            torch.backends.cudnn.allow_tf32 = False
            program = move_to_device_pass(program, "cuda")
        module = program.module()
    except Exception as error:  # torch documents no exceptions for archives of other versions
        raise RequestError(f"torch cannot load the model: {summary(error)}") from error
    _modules[model.path] = module
    return module


def _tensor(array: Array) -> Any:
    if str(array.dtype) == "bfloat16":  # torch does not know NumPy's extension
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _fetch(returned: Any) -> list[Array]:
    tensors = returned if isinstance(returned, (tuple, list)) else (returned,)
    # NumPy has no bfloat16.
    wide = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor for tensor in tensors)
    return [tensor.cpu().numpy() for tensor in wide]
