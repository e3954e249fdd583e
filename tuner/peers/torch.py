"""torch as a peer for ``.pt2`` models: on the GPU for libraries of GPUs, if it has CUDA."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tuner.engines.base import NetworkRun
from tuner.errors import RequestError, summary
from tuner.library.arrays import Array
from tuner.networks.torch.programs import load_program
from tuner.peers.base import Device, PeerInfo, PeerModel, read_inputs, time_runs

_modules: dict[str, Any] = {}


def load_model(model: PeerModel) -> PeerInfo:
    """Load a model; see :class:`tuner.peers.base.Peer`."""
    module_of(model)
    return PeerInfo(str(torch.__version__), device_of(model))


def run_model(model: PeerModel, request: NetworkRun) -> tuple[float, ...]:
    """Run a model and time it; see :class:`tuner.peers.base.Peer`."""
    return time_module(module_of(model), model, request)


def time_module(
    module: Callable[..., Any], model: PeerModel, request: NetworkRun
) -> tuple[float, ...]:
    """Run a module of a model and time it; see :class:`tuner.peers.base.Peer`."""
    arguments, on_gpu = read_tensors(model, request), device_of(model) == "cuda"

    def run() -> Any:
        returned = module(*arguments)
        if on_gpu:
            torch.cuda.synchronize()
        return returned

    with torch.inference_mode():
        return time_runs(run, fetch, request)


def read_tensors(model: PeerModel, request: NetworkRun) -> list[torch.Tensor]:
    """Read the inputs of a run, in the order of the model's arguments, to its device."""
    arrays = read_inputs(model, request)
    return [_tensor(arrays[name]).to(device_of(model)) for name in model.inputs]


def device_of(model: PeerModel) -> Device:
    """Return the device that a model runs on: the GPU of the library, if torch has CUDA."""
    return "cuda" if model.device == "cuda" and torch.cuda.is_available() else "cpu"


def check_gpu(peer: str, model: PeerModel) -> None:
    """Check that a peer of GPUs alone has one.

    Raises:
        RequestError: If the library is of a CPU, or torch has no CUDA.
    """
    if device_of(model) != "cuda":
        has_none = f"torch {torch.__version__} has none here"
        reason = has_none if model.device == "cuda" else "the library is of a CPU"
        raise RequestError(f"{peer} needs a GPU: {reason}", field="against")


def module_of(model: PeerModel) -> Any:
    """Return the module of a model; it is loaded unless it is loaded already.

    Raises:
        RequestError: If torch cannot load the model.
    """
    if model.path in _modules:
        return _modules[model.path]
    torch.set_num_threads(model.n_threads)
    try:
        program = load_program(model.path)
        if device_of(model) == "cuda":
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


def fetch(returned: Any) -> list[Array]:
    """Copy the outputs of a module to arrays, in order, bfloat16 as float32."""
    tensors = returned if isinstance(returned, (tuple, list)) else (returned,)
    # NumPy has no bfloat16.
    wide = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor for tensor in tensors)
    return [tensor.cpu().numpy() for tensor in wide]
