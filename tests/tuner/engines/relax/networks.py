"""Loading and building of networks for tests of the engine."""

import atexit
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import numpy as np
import onnx
import tvm
from tvm import relax

from tests.tuner.engines.relax.conftest import Array
from tuner.engines.base import LinkedObject, LinkRequest, ModelFile, ObjectRequest, TargetInfo
from tuner.engines.relax import worker
from tuner.engines.relax.codegen.cpu import nested_calls
from tuner.engines.relax.graph.extract import find_subgraphs
from tuner.engines.relax.graph.pipeline import lower
from tuner.engines.relax.network import Library
from tuner.engines.relax.settings import PASS_CONFIG
from tuner.engines.relax.target.targets import make_target
from tuner.library import manifest
from tuner.networks.worker import load_model

# For tests of outputs, whose kernels run once.
UNOPTIMISED = tvm.target.Target({"kind": "llvm", "opt-level": 0})


@lru_cache(maxsize=32)
def load(reference: str, random_weights: int | None = None) -> ModelFile:
    """Clean a model once per process."""
    folder = mkdtemp(prefix="tuner-test-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return load_model(reference, {}, random_weights, folder).file


def lower_proto(
    proto: onnx.ModelProto, target: str, *, is_whole: bool = False
) -> tuple[tvm.IRModule, ModelFile]:
    """Clean and lower a model."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        file = load_model(str(path), {}, None, folder).file
        made = make_target(target, intrinsics=False)
        return lower(file, made, is_whole=is_whole), file


def names_of(proto: onnx.ModelProto, target: str) -> list[str]:
    """Return the names of the subgraphs of a model."""
    return [subgraph.name for subgraph in find_subgraphs(lower_proto(proto, target)[0])]


def relax_module(make: Callable[..., relax.Expr], *shapes: tuple[int, ...]) -> tvm.IRModule:
    """Return a network of float32.

    Args:
        make: Function of the function that binds a value to a variable, and of the inputs.
        *shapes: Shapes of the inputs.
    """
    builder = relax.BlockBuilder()
    inputs = [
        relax.Var(f"x{n}", relax.TensorType(each, "float32")) for n, each in enumerate(shapes)
    ]
    with builder.function("main", inputs):
        with builder.dataflow():
            output = builder.emit_output(make(builder.emit, *inputs))
        builder.emit_func_output(output)
    return builder.get()


def compiled(module: tvm.IRModule, target: tvm.target.Target = UNOPTIMISED) -> tvm.runtime.Module:
    """Compile a module as a whole, by default in a fraction of the time of optimised code.

    Half of the time would go to checks of arguments, which LLVM compiles for each kernel.
    """
    with target, tvm.transform.PassContext(config=PASS_CONFIG):
        return tvm.compile(module, target, tir_pipeline=nested_calls.PIPELINE)


def run_network(
    module: tvm.IRModule, *inputs: Array, target: tvm.target.Target = UNOPTIMISED
) -> list[Array]:
    """Compile a network, fast rather than well, and return its outputs."""
    machine = relax.VirtualMachine(compiled(module, target), tvm.cpu())
    returned = machine["main"](
        *(tvm.runtime.tensor(np.asarray(each, order="C")) for each in inputs)
    )
    values = [returned] if hasattr(returned, "numpy") else list(returned)
    return [np.asarray(value.numpy()) for value in values]


def run_kernel(kernel: tvm.IRModule, *inputs: Array) -> list[Array]:
    """Compile a kernel, fast rather than well, and return its outputs, the last parameters."""
    shapes = [[int(size) for size in each.shape] for each in kernel["main"].params[len(inputs) :]]
    dtypes = [str(each.dtype) for each in kernel["main"].params[len(inputs) :]]
    outputs = [tvm.runtime.empty(*each) for each in zip(shapes, dtypes, strict=True)]
    compiled(kernel)["main"](*map(tvm.runtime.tensor, inputs), *outputs)
    return [output.numpy() for output in outputs]


def run_lowered(proto: onnx.ModelProto, feeds: Mapping[str, Array], target: str) -> list[Array]:
    """Clean and lower a model, compile it as a whole without schedules, and run it."""
    return run_module(*lower_proto(proto, target, is_whole=True), feeds, target)


def run_module(
    module: tvm.IRModule,
    file: ModelFile,
    feeds: Mapping[str, Array],
    target: str,
    *,
    opt_level: int = 0,
) -> list[Array]:
    """Compile a lowered module as a whole, and run it on the inputs of its model."""
    made = tvm.target.Target({**json.loads(target), "opt-level": opt_level})
    return run_network(module, *(feeds[name] for name in file.inputs), target=made)


def compile_objects(
    models: Sequence[ModelFile],
    target: TargetInfo,
    folder: Path,
    traces: Mapping[str, str] | None = None,
) -> dict[str, LinkedObject]:
    """Compile every subgraph of some models, unscheduled except those with a trace."""
    objects: dict[str, LinkedObject] = {}
    for model in models:
        for subgraph in find_subgraphs(lower(model, make_target(target.spec, intrinsics=False))):
            out = folder / subgraph.workload
            if subgraph.workload in objects:
                continue
            out.mkdir(parents=True)
            symbol = f"test_{subgraph.workload}"
            trace = (traces or {}).get(subgraph.workload, "")
            request = ObjectRequest(subgraph.ir, target.spec, trace, symbol, str(out))
            done = worker.compile_subgraph(request)
            objects[subgraph.workload] = LinkedObject(str(out), symbol, done.info)
    return objects


def build_untuned(
    models: Sequence[ModelFile],
    target: TargetInfo,
    folder: Path,
    traces: Mapping[str, str] | None = None,
) -> Library:
    """Build a library of models, unscheduled except those with a trace, and load it."""
    objects = compile_objects(models, target, folder / "objects", traces)
    return Library(link_untuned(models, target, objects, folder / "library"))


def build_proto(
    proto: onnx.ModelProto,
    target: TargetInfo,
    folder: Path,
    traces: Mapping[str, str] | None = None,
) -> Library:
    """Clean a model, and build and load its library, which is the folder ``library``."""
    path = folder / "model.onnx"
    onnx.save(proto, path)
    file = load_model(str(path), {}, None, str(folder / "models")).file
    return build_untuned([file], target, folder, traces)


def link_untuned(
    models: Sequence[ModelFile], target: TargetInfo, objects: Mapping[str, LinkedObject], out: Path
) -> Path:
    """Link a library of models into a new folder, and return the folder."""
    out.mkdir()
    done = worker.link_network(LinkRequest(tuple(models), target.spec, objects, str(out)))
    outputs = tuple(f"output_{index}" for index in range(len(done.programs[0].outputs)))
    programs = tuple(
        manifest.Program(
            *(each.entry, "", model.inputs, each.weights, each.calls, each.outputs),
            memory=each.memory,
        )
        for each, model in zip(done.programs, models, strict=True)
    )
    subgraphs = tuple(
        manifest.SubgraphEntry("", workload, 1, None, None, variant=each.info.get("variant", ""))
        for workload, each in objects.items()
    )
    files = {name: manifest.sha256_of(out / name) for name in done.files}
    described = manifest.Manifest(
        *(
            "test",
            target.spec,
            target.device,
            {},
            outputs,
            programs,
            done.weights,
            subgraphs,
            files,
            "tuner.engines.relax.worker",
            manifest.Source("test"),
            "",
        ),
        kernel_calls=done.calls,
    )
    manifest.write(out, described)
    return out
