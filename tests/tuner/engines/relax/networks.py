"""Loading and building of networks for tests of the engine."""

import atexit
import json
import shutil
from collections.abc import Mapping, Sequence
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
from tuner.engines.relax.graph.definitions import nested_calls
from tuner.engines.relax.graph.extract import find_subgraphs
from tuner.engines.relax.graph.pipeline import lower
from tuner.engines.relax.network import Library
from tuner.engines.relax.target.targets import make_target
from tuner.library import manifest
from tuner.networks.worker import load_model

# Compiles in half the time; for tests of outputs, whose kernels run once.
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
        return lower(file, made, is_whole=is_whole).module, file


def names_of(proto: onnx.ModelProto, target: str) -> list[str]:
    """Return the names of the subgraphs of a model."""
    return [subgraph.name for subgraph in find_subgraphs(lower_proto(proto, target)[0])]


def run_lowered(proto: onnx.ModelProto, feeds: Mapping[str, Array], target: str) -> list[Array]:
    """Clean and lower a model, compile it as a whole without schedules, and run it.

    LLVM optimises nothing: what is tested is the lowered module.
    """
    module, file = lower_proto(proto, target, is_whole=True)
    return run_module(module, file, feeds, target, optimise=False)


def run_module(
    module: tvm.IRModule,
    file: ModelFile,
    feeds: Mapping[str, Array],
    target: str,
    *,
    optimise: bool = True,
) -> list[Array]:
    """Compile a lowered module as a whole, and run it."""
    made = make_target(target, intrinsics=False)
    if not optimise:
        made = tvm.target.Target({**json.loads(target), "opt-level": 0})
    built = tvm.compile(module, made, tir_pipeline=nested_calls.PIPELINE)
    machine = relax.VirtualMachine(built, tvm.cpu())
    tensors = [tvm.runtime.tensor(np.asarray(feeds[name], order="C")) for name in file.inputs]
    returned = machine["main"](*tensors)
    values = [returned] if hasattr(returned, "numpy") else list(returned)
    return [np.asarray(value.numpy()) for value in values]


def compile_objects(
    models: Sequence[ModelFile],
    target: TargetInfo,
    folder: Path,
    traces: Mapping[str, str] | None = None,
) -> dict[str, LinkedObject]:
    """Compile every subgraph of some models, unscheduled except those with a trace."""
    objects: dict[str, LinkedObject] = {}
    for model in models:
        for subgraph in find_subgraphs(
            lower(model, make_target(target.spec, intrinsics=False)).module
        ):
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


def link_untuned(
    models: Sequence[ModelFile], target: TargetInfo, objects: Mapping[str, LinkedObject], out: Path
) -> Path:
    """Link a library of models into a new folder, and return the folder."""
    out.mkdir()
    done = worker.link_network(LinkRequest(tuple(models), target.spec, objects, str(out)))
    outputs = tuple(f"output_{index}" for index in range(done.programs[0].n_outputs))
    programs = tuple(
        manifest.Program(each.entry, "", model.inputs, each.weights, each.calls, memory=each.memory)
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
