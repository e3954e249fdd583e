"""torch.compile as a peer for ``.pt2`` models, with the search of its mode ``max-autotune``."""

import time
from typing import Any

import torch

from tuner.engines.base import NetworkRun
from tuner.errors import RequestError, summary
from tuner.peers.base import PeerInfo, PeerModel
from tuner.peers.torch import device_of, module_of, time_module

_compiled: dict[str, tuple[Any, float]] = {}


def load_model(model: PeerModel) -> PeerInfo:
    """Load a model and compile it; see :class:`tuner.peers.base.Peer`."""
    _, secs = _compile(model)
    note = f"compiled in {secs:.1f} s"
    return PeerInfo(str(torch.__version__), device_of(model), note)


def run_model(model: PeerModel, request: NetworkRun) -> tuple[float, ...]:
    """Run a model and time it; see :class:`tuner.peers.base.Peer`."""
    module, _ = _compile(model)
    return time_module(module, model, request)


def _compile(model: PeerModel) -> tuple[Any, float]:
    """Return the compiled module of a model, and the seconds that its first run took."""
    if model.path in _compiled:
        return _compiled[model.path]
    module = torch.compile(module_of(model), mode="max-autotune")
    device = device_of(model)
    # Zeros are valid indices.
    zeros = [
        torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
        for shape, dtype in model.inputs.values()
    ]
    started = time.perf_counter()
    try:
        with torch.inference_mode():
            module(*zeros)
    except Exception as error:  # compilers raise types of their own, which cannot be pickled
        raise RequestError(f"torch cannot compile the model: {summary(error)}") from error
    _compiled[model.path] = module, time.perf_counter() - started
    return _compiled[model.path]
