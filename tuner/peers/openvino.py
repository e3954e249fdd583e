"""OpenVINO as a peer, on the CPU."""

from collections.abc import Collection
from typing import Any

import numpy as np
import openvino

from tuner.engines.base import NetworkRun
from tuner.errors import RequestError, summary
from tuner.peers.base import PeerInfo, PeerModel, read_inputs, time_runs

_requests: dict[str, Any] = {}


def load_model(model: PeerModel) -> PeerInfo:
    """Load a model; see :class:`tuner.peers.base.Peer`."""
    _infer_request(model)
    return PeerInfo(openvino.__version__.partition("-")[0], "cpu")


def run_model(model: PeerModel, request: NetworkRun) -> tuple[float, ...]:
    """Run a model and time it; see :class:`tuner.peers.base.Peer`."""
    infer = _infer_request(model)
    arrays = read_inputs(model, request)
    feeds = {port: arrays[_name(port, arrays)] for port in infer.model_inputs}
    return time_runs(
        lambda: infer.infer(feeds, share_inputs=True, share_outputs=True),
        lambda outputs: [np.array(outputs[port]) for port in infer.model_outputs],
        request,
    )


def _infer_request(model: PeerModel) -> Any:
    if model.path in _requests:
        return _requests[model.path]
    core = openvino.Core()
    options = {
        "INFERENCE_NUM_THREADS": model.n_threads,
        "PERFORMANCE_HINT": "LATENCY",
        # Some CPUs would compute in bfloat16 or float16 otherwise.
        "INFERENCE_PRECISION_HINT": "f32",
    }
    try:
        network = core.read_model(model.path)
        shapes = {
            port: model.inputs[_name(port, model.inputs)][0]
            for port in network.inputs
            if port.partial_shape.is_dynamic
        }
        if shapes:
            network.reshape(shapes)
        request = core.compile_model(network, "CPU", options).create_infer_request()
    except Exception as error:  # it raises plain RuntimeErrors
        raise RequestError(f"OpenVINO cannot load the model: {summary(error)}") from error
    _requests[model.path] = request
    return request


def _name(port: Any, names: Collection[str]) -> str:
    """Return the name in the model of an input, which may have several in OpenVINO."""
    return next(str(name) for name in port.names if name in names)
