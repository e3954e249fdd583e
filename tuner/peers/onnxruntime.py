"""ONNX Runtime as a peer: its CUDA provider for libraries of GPUs, its CPU provider otherwise."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime

from tuner.engines.base import NetworkRun
from tuner.engines.runtime.tensor_digests import digest_of
from tuner.errors import RequestError, summary
from tuner.library.arrays import Array
from tuner.peers.base import (
    ObservedGraph,
    PeerInfo,
    PeerModel,
    PeerNode,
    read_inputs,
    time_runs,
)
from tuner.peers.exact import exact_sums
from tuner.peers.graph_nodes import nodes_of, origins_in, read_graph, write_labelled

_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
# Suffix of the events in ONNX Runtime's profile that time a node.
_KERNEL = "_kernel_time"
# Values of a model that are in memory at a time while they are observed.
_VALUES_AT_ONCE = 128
_NOTE = (
    "on this CPU, which lacks VNNI, it saturates sums of products of uint8 and int8; outputs are "
    "compared with its exact sums, latencies with the saturating ones"
)
_sessions: dict[str, Any] = {}
_exact_sessions: dict[str, Any] = {}


def load_model(model: PeerModel) -> PeerInfo:
    """Load a model; see :class:`tuner.peers.base.Peer`."""
    is_on_gpu = _is_on_gpu(_session(model))
    note = "" if is_on_gpu or _exact_session(model) is None else _NOTE
    return PeerInfo(onnxruntime.__version__, "cuda" if is_on_gpu else "cpu", note)


def run_model(model: PeerModel, request: NetworkRun) -> tuple[float, ...]:
    """Run a model and time it; see :class:`tuner.peers.base.Peer`."""
    session = _session(model)
    feeds = read_inputs(model, request)
    if _is_on_gpu(session):
        # Time with inputs and outputs that stay on the GPU, as a library's do.
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
    exact = _exact_session(model) if request.outputs else None

    def fetch(outputs: list[Any]) -> list[Array]:
        # Scores of classes are a map for each row, and an array in the library.
        return [
            np.array([list(scores.values()) for scores in each], np.float32)
            if isinstance(each, list) and each and isinstance(each[0], dict)
            else each
            for each in (outputs if exact is None else exact.run(None, feeds))
        ]

    return time_runs(lambda: session.run(None, feeds), fetch, request)


def profile_model(model: PeerModel, request: NetworkRun) -> tuple[PeerNode, ...]:
    """Time the nodes of a model; see :class:`tuner.peers.base.ProfilingPeer`."""
    with TemporaryDirectory() as folder:
        labelled, optimised = Path(folder) / "labelled.onnx", Path(folder) / "optimised.onnx"
        write_labelled(model.path, labelled)
        options = onnxruntime.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        options.optimized_model_filepath = str(optimised)
        session = _open(replace(model, path=str(labelled)), options)
        feeds = read_inputs(model, request)
        time_runs(lambda: session.run(None, feeds), list, replace(request, outputs=""))
        events = json.loads(Path(session.end_profiling()).read_text())
        graph = onnx.load(str(optimised), load_external_data=False).graph
    outputs = {node.name: tuple(node.output) for node in graph.node}
    secs: dict[str, list[float]] = {}
    operators: dict[str, str] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            name = event["name"].removesuffix(_KERNEL)
            secs.setdefault(name, []).append(event["dur"] / 1e6)
            operators[name] = event["args"]["op_name"]
    return tuple(
        PeerNode(
            name,
            operator,
            median(secs[name][-request.n_runs :]),
            origins_in(name, *outputs.get(name, ())),
        )
        for name, operator in operators.items()
    )


def observe_graph(model: PeerModel, request: NetworkRun) -> ObservedGraph:
    """Run a model once, unoptimised, and take a digest of every value that its nodes write.

    Raises:
        RequestError: If the runtime cannot load or run the model.
    """
    loaded = read_graph(model.path)
    graph = loaded.graph
    shown = {info.name for info in graph.output}
    names = [name for node in graph.node for name in node.output if name]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in shown)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "observed.onnx"
        onnx.save(loaded, path)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = _open(replace(model, path=str(path), device="cpu"), options)
    feeds = read_inputs(model, request)
    digests = {}
    for start in range(0, len(names), _VALUES_AT_ONCE):
        chosen = names[start : start + _VALUES_AT_ONCE]
        try:
            values = session.run(chosen, feeds)
        except Exception as error:  # its own exception types are not part of its public API
            raise RequestError(f"ONNX Runtime cannot run the model: {summary(error)}") from error
        for name, value in zip(chosen, values, strict=True):
            if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
                digests[name] = digest_of(value)
    weights = {tensor.name for tensor in graph.initializer}
    inputs = tuple(info.name for info in graph.input if info.name not in weights)
    return ObservedGraph(nodes_of(loaded), inputs, digests)


def _session(model: PeerModel) -> Any:
    if model.path not in _sessions:
        _sessions[model.path] = _open(model, onnxruntime.SessionOptions())
    return _sessions[model.path]


def _exact_session(model: PeerModel) -> Any:
    """Return a session of a model whose sums of bytes are exact; None if its own ones are."""
    if model.path not in _exact_sessions:
        _exact_sessions[model.path] = _open_exact(model)
    return _exact_sessions[model.path]


def _open_exact(model: PeerModel) -> Any:
    if not exact_sums.saturates():
        return None
    with TemporaryDirectory() as folder:
        path = Path(folder) / "exact.onnx"
        if not exact_sums.write_exact(model.path, path):
            return None
        return _open(replace(model, path=str(path)), onnxruntime.SessionOptions())


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
