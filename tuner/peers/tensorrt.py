"""TensorRT as a peer for ONNX models, in the types of the model, with tensors of torch.

It was written by the documentation of TensorRT 10 and 11, and has not run on a GPU yet.
"""

import time
from dataclasses import dataclass
from typing import Any

import tensorrt
import torch

from tuner.engines.base import NetworkRun
from tuner.errors import RequestError, summary
from tuner.peers.base import PeerInfo, PeerModel, time_runs
from tuner.peers.torch import check_gpu, fetch, read_tensors

_TYPES = {
    tensorrt.bfloat16: torch.bfloat16,
    tensorrt.bool: torch.bool,
    tensorrt.float16: torch.float16,
    tensorrt.float32: torch.float32,
    tensorrt.int32: torch.int32,
    tensorrt.int64: torch.int64,
    tensorrt.int8: torch.int8,
    tensorrt.uint8: torch.uint8,
}


@dataclass(frozen=True)
class _Engine:
    """An engine that runs.

    Attributes:
        context: Its execution context; ``engine`` has to live as long.
        outputs: Names of its outputs, in the order of the model.
        secs: Time that it took to build, seconds.
    """

    engine: Any
    context: Any
    outputs: tuple[str, ...]
    secs: float


_engines: dict[str, _Engine] = {}


def load_model(model: PeerModel) -> PeerInfo:
    """Load a model and build its engine; see :class:`tuner.peers.base.Peer`."""
    check_gpu("tensorrt", model)
    return PeerInfo(tensorrt.__version__, "cuda", f"compiled in {_engine(model).secs:.1f} s")


def run_model(model: PeerModel, request: NetworkRun) -> tuple[float, ...]:
    """Run a model and time it; see :class:`tuner.peers.base.Peer`."""
    engine = _engine(model)
    context, known = engine.context, set(_names(engine.engine))
    inputs = dict(zip(model.inputs, read_tensors(model, request), strict=True))
    for name in inputs.keys() & known:
        shape = tuple(inputs[name].shape)
        if not context.set_input_shape(name, shape):
            raise RequestError(f"TensorRT cannot run the model: {name} has the shape {shape}")
        context.set_tensor_address(name, inputs[name].data_ptr())
    outputs = [
        torch.empty(
            tuple(context.get_tensor_shape(name)),
            dtype=_TYPES[engine.engine.get_tensor_dtype(name)],
            device="cuda",
        )
        for name in engine.outputs
    ]
    for name, output in zip(engine.outputs, outputs, strict=True):
        context.set_tensor_address(name, output.data_ptr())
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()

    def run() -> Any:
        if not context.execute_async_v3(stream.cuda_stream):
            raise RuntimeError("TensorRT refused to run its engine")
        stream.synchronize()
        return outputs

    return time_runs(run, fetch, request)


def _names(engine: Any) -> list[str]:
    return [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]


def _engine(model: PeerModel) -> _Engine:
    if model.path not in _engines:
        try:
            _engines[model.path] = _build(model)
        except RuntimeError as error:
            raise RequestError(f"TensorRT cannot load the model: {summary(error)}") from error
    return _engines[model.path]


def _build(model: PeerModel) -> _Engine:
    """Build the engine of a model.

    Raises:
        RuntimeError: If TensorRT cannot.
    """
    started = time.perf_counter()
    logger = tensorrt.Logger(tensorrt.Logger.ERROR)
    builder = tensorrt.Builder(logger)
    # TensorRT 10 would narrow types otherwise.
    typed = 1 << int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(typed)
    parser = tensorrt.OnnxParser(network, logger)
    if not parser.parse_from_file(model.path):
        raise RuntimeError(str(parser.get_error(0)))
    config = builder.create_builder_config()
    config.clear_flag(tensorrt.BuilderFlag.TF32)
    profile, is_dynamic = builder.create_optimization_profile(), False
    for index in range(network.num_inputs):
        given = network.get_input(index)
        if any(size < 0 for size in given.shape):
            shape, _ = model.inputs[given.name]
            profile.set_shape(given.name, shape, shape, shape)
            is_dynamic = True
    if is_dynamic:
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    engine = plan and tensorrt.Runtime(logger).deserialize_cuda_engine(plan)
    if not engine:
        raise RuntimeError("it builds no engine")
    outputs = tuple(network.get_output(index).name for index in range(network.num_outputs))
    return _Engine(
        engine, engine.create_execution_context(), outputs, time.perf_counter() - started
    )
