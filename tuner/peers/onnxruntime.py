"""ONNX Runtime as a peer, in a worker process of its own."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from tuner.engines.base import NetworkRun
from tuner.errors import RequestError, summary

_sessions: dict[str, Any] = {}


def run_model(model: str, n_threads: int, request: NetworkRun) -> tuple[float, ...]:
    """Run an ONNX model and time it, like :meth:`Engine.run_network` runs a library.

    Args:
        model: Path of the cleaned model.
        n_threads: Threads for one operator.
        request: Inputs, outputs and how many runs; its library is not used.

    Returns:
        Seconds of each timed run.

    Raises:
        RequestError: If ONNX Runtime is not installed or cannot load the model.
    """
    session = _session(model, n_threads)
    with np.load(request.inputs) as stored:
        feeds = {name: stored[name] for name in stored.files}
    for _ in range(2):
        outputs = session.run(None, feeds)
    if request.outputs:
        names = [output.name for output in session.get_outputs()]
        np.savez(request.outputs, **dict(zip(names, outputs, strict=True)))
    return tuple(_time(session, feeds) for _ in range(request.n_runs))


def _session(model: str, n_threads: int) -> Any:
    if model in _sessions:
        return _sessions[model]
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise RequestError(
            "comparing with ONNX Runtime needs it: pip install 'subgraph-tuner[onnxruntime]'"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            Path(model).read_bytes(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # its own exception types are not part of its public API
        raise RequestError(f"ONNX Runtime cannot load the model: {summary(error)}") from error
    _sessions[model] = session
    return session


def _time(session: Any, feeds: dict[str, Any]) -> float:
    start = time.perf_counter()
    session.run(None, feeds)
    return time.perf_counter() - start
