"""OpenVINO as a peer, on the CPU."""

from collections.abc import Collection
from statistics import median
from typing import Any

import numpy as np
import openvino

from tuner.engines.base import NetworkRun
from tuner.errors import RequestError, summary
from tuner.peers.base import PeerInfo, PeerModel, PeerNode, make_node, read_inputs, time_runs

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


def profile_model(model: PeerModel, request: NetworkRun) -> tuple[PeerNode, ...]:
    """Time the nodes of a model; see :class:`tuner.peers.base.ProfilingPeer`."""
    compiled = _compile(model, {"PERF_COUNT": True})
    infer = compiled.create_infer_request()
    arrays = read_inputs(model, request)
    feeds = {port: arrays[_name(port, arrays)] for port in infer.model_inputs}
    secs: dict[str, list[float]] = {}
    for _ in range(request.n_runs):
        infer.infer(feeds, share_inputs=True, share_outputs=True)
        for node in infer.get_profiling_info():
            secs.setdefault(node.node_name, []).append(node.real_time.total_seconds())
    nodes = {node.get_friendly_name(): node for node in compiled.get_runtime_model().get_ops()}
    return tuple(
        make_node(
            node.node_name,
            node.node_type,
            [_shape(value) for value in nodes[node.node_name].inputs()],
            _shape(nodes[node.node_name].output(0)),
            secs[node.node_name],
        )
        for node in infer.get_profiling_info()
        if node.node_name in nodes and median(secs[node.node_name]) > 0.0
    )


def _shape(value: Any) -> list[int]:
    shape = value.get_partial_shape()
    return [] if shape.is_dynamic else list(shape.to_shape())


def _infer_request(model: PeerModel) -> Any:
    if model.path not in _requests:
        _requests[model.path] = _compile(model, {}).create_infer_request()
    return _requests[model.path]


def _compile(model: PeerModel, extra: dict[str, Any]) -> Any:
    core = openvino.Core()
    options: dict[str, Any] = {
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
        return core.compile_model(network, "CPU", options | extra)
    except Exception as error:  # it raises plain RuntimeErrors
        raise RequestError(f"OpenVINO cannot load the model: {summary(error)}") from error


def _name(port: Any, names: Collection[str]) -> str:
    """Return the name in the model of an input, which may have several in OpenVINO."""
    return next(str(name) for name in port.names if name in names)
