"""OpenVINO as a peer, on the CPU."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import openvino

from tuner.engines.base import NetworkRun
from tuner.errors import RequestError, summary
from tuner.peers.base import PeerInfo, PeerModel, PeerNode, read_inputs, time_runs
from tuner.peers.graph_nodes import origins_in, write_labelled

# Entry of a node's information that lists the layers that were fused into it.
_LAYERS = "originalLayersNames"
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
    with TemporaryDirectory() as folder:
        labelled = Path(folder) / "labelled.onnx"
        write_labelled(model.path, labelled)
        compiled = _compile(replace(model, path=str(labelled)), {"PERF_COUNT": True})
    infer = compiled.create_infer_request()
    arrays = read_inputs(model, request)
    feeds = {port: arrays[_name(port, arrays)] for port in infer.model_inputs}
    secs: dict[str, list[float]] = {}
    for _ in range(request.n_runs):
        infer.infer(feeds, share_inputs=True, share_outputs=True)
        for node in infer.get_profiling_info():
            secs.setdefault(node.node_name, []).append(node.real_time.total_seconds())
    layers = {
        node.get_friendly_name(): _layers(node) for node in compiled.get_runtime_model().get_ops()
    }
    return tuple(
        PeerNode(
            node.node_name,
            node.node_type,
            median(secs[node.node_name]),
            origins_in(node.node_name, layers[node.node_name]),
        )
        for node in infer.get_profiling_info()
        if node.node_name in layers and median(secs[node.node_name]) > 0.0
    )


def _layers(node: Any) -> str:
    """Return the names of the layers that were fused into a node."""
    information = node.get_rt_info()
    return str(information[_LAYERS].astype(str)) if _LAYERS in information else ""


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
