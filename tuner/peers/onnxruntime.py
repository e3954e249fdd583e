"""ONNX Runtime as a peer: its CUDA provider for libraries of GPUs, its CPU provider otherwise."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnxruntime

from tuner.engines.base import NetworkRun
from tuner.errors import RequestError, summary
from tuner.library.arrays import Array
from tuner.peers.base import PeerInfo, PeerModel, PeerNode, make_node, read_inputs, time_runs

_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
# Suffix of the events in ONNX Runtime's profile that time a node.
_KERNEL = "_kernel_time"
_sessions: dict[str, Any] = {}


def load_model(model: PeerModel) -> PeerInfo:
    """Load a model; see :class:`tuner.peers.base.Peer`."""
    return PeerInfo(onnxruntime.__version__, "cuda" if _is_on_gpu(_session(model)) else "cpu")


def run_model(model: PeerModel, request: NetworkRun) -> tuple[float, ...]:
    """Run a model and time it; see :class:`tuner.peers.base.Peer`."""
    session = _session(model)
    feeds = read_inputs(model, request)
    if _is_on_gpu(session):
        return _run_on_gpu(session, feeds, request)
    return time_runs(lambda: session.run(None, feeds), lambda outputs: outputs, request)


def profile_model(model: PeerModel, request: NetworkRun) -> tuple[PeerNode, ...]:
    """Time the nodes of a model; see :class:`tuner.peers.base.ProfilingPeer`."""
    with TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = _open(model, options)
        feeds = read_inputs(model, request)
        time_runs(lambda: session.run(None, feeds), list, request)
        events = json.loads(Path(session.end_profiling()).read_text())
    secs: dict[str, list[float]] = {}
    nodes: dict[str, dict[str, Any]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            name = event["name"].removesuffix(_KERNEL)
            secs.setdefault(name, []).append(event["dur"] / 1e6)
            nodes[name] = event["args"]
    return tuple(
        make_node(
            name,
            node["op_name"],
            _shapes(node, "input_type_shape"),
            next(iter(_shapes(node, "output_type_shape")), ()),
            secs[name][-request.n_runs :],
        )
        for name, node in nodes.items()
    )


def _shapes(node: dict[str, Any], which: str) -> list[list[int]]:
    return [shape for value in node.get(which, ()) for shape in value.values()]


def _session(model: PeerModel) -> Any:
    if model.path not in _sessions:
        _sessions[model.path] = _open(model, onnxruntime.SessionOptions())
    return _sessions[model.path]


def _open(model: PeerModel, options: Any) -> Any:
    options.intra_op_num_threads = model.n_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # With its shapes fixed, it folds and plans as much as the library does.
    for name, size in model.symbols.items():
        options.add_free_dimension_override_by_name(name, size)
    providers: list[Any] = [_CPU]
    if model.device == "cuda" and _CUDA in onnxruntime.get_available_providers():
        # By default the provider rounds the factors of float32 products to TF32.
        providers.insert(0, (_CUDA, {"use_tf32": "0"}))
    try:
        return onnxruntime.InferenceSession(model.path, options, providers=providers)
    except Exception as error:  # its own exception types are not part of its public API
        raise RequestError(f"ONNX Runtime cannot load the model: {summary(error)}") from error


def _is_on_gpu(session: Any) -> bool:
    """Return whether a session got the CUDA provider, which it replaces silently if it fails."""
    return bool(session.get_providers()[0] == _CUDA)


def _run_on_gpu(session: Any, feeds: dict[str, Array], request: NetworkRun) -> tuple[float, ...]:
    """Time with inputs and outputs that stay on the GPU, as those of a library do."""
    binding = session.io_binding()
    for name, array in feeds.items():
        value = onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda")

    def run() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return time_runs(run, lambda _: binding.copy_outputs_to_cpu(), request)
