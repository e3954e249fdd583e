"""Kernels that networks of the corpus get on a GPU without a record, counted without a GPU.

    python -m benchmarks.gpu.first_choices --only 'torchvision-*' bert --arch sm_80 sm_90

Networks are cast to float16. Of each product, convolution and attention the first choice is
compiled, and its binary is read. Prints a JSON line for each network and architecture, with the
kernels that miss the goal and the reason, and one for all networks.
"""

import argparse
import fnmatch
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.corpus.catalogue import ENTRIES
from benchmarks.corpus.entries import Entry, Quantised, Zoo
from benchmarks.corpus.files import FetchError, Files
from tuner.engines.base import ExtractedTask, LinkedObject, LinkRequest, ModelFile, ObjectRequest
from tuner.engines.relax import worker
from tuner.engines.relax.codegen.build import schedule_for_gpu
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.target.targets import make_target
from tuner.engines.relax.triton import gpus, ranking, variants
from tuner.engines.relax.triton.compilation import compiler
from tuner.engines.relax.triton.templates.contractions import Contraction
from tuner.errors import TunerError, summary
from tuner.networks.worker import load_model

# Sums of the smallest tile: a shape has no more blocks unless they share sums.
_MIN_SUMS = 512
_HALF_MAX = 65504.0
# Types that attributes name by number.
_TYPED = {"Cast": "to", "RandomNormal": "dtype", "RandomUniform": "dtype", "EyeLike": "dtype"}


@dataclass(frozen=True)
class _Choice:
    """The first choice of a workload.

    Attributes:
        task: Name of the workload.
        n_calls: Calls of a run.
        kernel: Name of the configuration; empty for another schedule than Triton's.
        n_blocks: Blocks of the kernel with the products.
        shared_bytes: Shared memory of a block, of the kernel that has most.
        on_tensor_cores: True if its products are instructions of tensor cores.
        spills: True if a kernel spills registers.
        reason: Why it misses the goal, or why the shape allows no more; empty if it reaches it.
        misses: True if it misses the goal: tensor cores, blocks for half of the multiprocessors or
            all that its shape has, and no spills.
    """

    task: str
    n_calls: int
    kernel: str
    n_blocks: int = 0
    shared_bytes: int = 0
    on_tensor_cores: bool = False
    spills: bool = False
    reason: str = ""
    misses: bool = False


def main() -> None:
    """Count the networks of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=["*"], help="Names of networks, or patterns.")
    parser.add_argument("--arch", nargs="+", default=["sm_90"], help="Architectures.")
    parser.add_argument("--data-dir", type=Path, default=Path("build/corpus"))
    parser.add_argument("--build", action="store_true", help="Build the libraries, too.")
    arguments = parser.parse_args()
    chosen = [
        entry
        for entry in ENTRIES
        if not isinstance(entry.source, Quantised)
        and any(fnmatch.fnmatch(entry.name, each) for each in arguments.only)
    ]
    files = Files(arguments.data_dir)
    files.fetch(chosen, lambda line: print(line, file=sys.stderr, flush=True))
    totals: dict[str, Counter[str]] = {arch: Counter() for arch in arguments.arch}
    for entry in chosen:
        for arch in arguments.arch:
            line = {"network": entry.name, "arch": arch}
            started = time.perf_counter()
            try:
                counts, kernels = _count(entry, files, arch, is_built=arguments.build)
                totals[arch].update({**counts, "networks": 1})
                line |= {**counts, "kernels": kernels}
            except (TunerError, FetchError) as error:
                line["error"] = summary(error, max_chars=300)
            print(json.dumps({**line, "secs": round(time.perf_counter() - started)}), flush=True)
    for arch, counts in totals.items():
        print(json.dumps({"benchmark": "first_choices", "arch": arch, **counts}), flush=True)


def _count(
    entry: Entry, files: Files, arch: str, *, is_built: bool
) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Return how many first choices there are of each kind, and those with a reason."""
    spec = worker.describe_target(f"cuda:{arch}").spec
    with tempfile.TemporaryDirectory() as folder:
        reference = files.reference(entry)
        if isinstance(entry.source, Zoo):
            reference += "?dtype=float16"
        elif reference.endswith(".onnx"):
            half = Path(folder) / "half.onnx"
            onnx.save(as_half(onnx.load(reference)), half)
            reference = str(half)
        model = load_model(reference, dict(entry.shapes), 0, folder).file
        tasks = worker.extract(model, spec).tasks
        choices = [each for task in tasks for each in _choices(task, spec, arch)]
        if is_built:
            _build(model, spec, tasks, Path(folder))
    counts: Counter[str] = Counter(products=len(choices), tasks=len(tasks))
    counts.update(calls=sum(each.n_calls for each in choices))
    for each in choices:
        counts.update(
            {
                "on_tensor_cores": each.on_tensor_cores,
                "with_many_blocks": each.on_tensor_cores and each.n_blocks >= _min_blocks(arch),
                "spills": each.spills,
                "misses": each.misses,
                "calls_that_miss": each.n_calls * each.misses,
            }
        )
    return counts, [asdict(each) for each in choices if each.reason]


def _choices(task: ExtractedTask, spec: str, arch: str) -> Iterator[_Choice]:
    """Yield the first choice of a workload that multiplies operands."""
    module = workloads.load(task.ir)
    (profile,) = worker.profile([task.ir])
    if not profile.grouping:
        return
    name, n_calls = task.name, task.weight
    scheduled = schedule_for_gpu(module, "", make_target(spec))
    program = variants.program_of(scheduled["main"])
    if program is None:
        is_scaled = profile.grouping == "depthwise"
        reasons = [each.refusal(module["main"]) for each in variants.TEMPLATES]
        reason = "a factor of each channel" if is_scaled else "no template fits"
        reason = ": ".join([reason, *filter(None, reasons)][:2])
        yield _Choice(name, n_calls, "", reason=reason, misses=not is_scaled)
        return
    binaries = [compiler.compile_kernel(kernel, arch) for kernel in program.kernels]
    facts = [each.facts for each in binaries]
    choice = _Choice(
        name,
        n_calls,
        variants.name_of(scheduled["main"]),
        program.kernels[0].n_blocks,
        max(each.shared_bytes for each in binaries),
        facts[0].uses_tensor_cores,
        any(each.stack_bytes for each in facts),
    )
    yield _explained(choice, variants.GEMM.find(module["main"]), arch)


def _explained(choice: _Choice, products: Contraction | None, arch: str) -> _Choice:
    """Return a choice with the reason for what it lacks."""
    values = vars(choice)
    if choice.spills:
        return _Choice(**{**values, "reason": "spills registers", "misses": True})
    if choice.on_tensor_cores and choice.n_blocks >= _min_blocks(arch):
        return choice
    if not choice.on_tensor_cores:
        reason, misses = _why_not_on_tensor_cores(choice, products)
    elif products is None:
        reason, misses = f"{choice.n_blocks} blocks of attention", False
    else:
        reason, misses = _why_few_blocks(choice, products, arch)
    return _Choice(**{**values, "reason": reason, "misses": misses})


def _why_not_on_tensor_cores(choice: _Choice, products: Contraction | None) -> tuple[str, bool]:
    if variants.WINDOWS.name in choice.kernel:
        return "a window of each channel: no operand is shared", False
    if products is not None and products.n_rows == 1:
        return "one row: weights are read once", False
    return "not on tensor cores", products is not None


def _why_few_blocks(choice: _Choice, products: Contraction, arch: str) -> tuple[str, bool]:
    """Compare a choice with all blocks of its shape, and with the fastest one that has enough."""
    number = compiler.number_of(arch)
    decisions = np.array(
        [list(vars(each).values())[:7] for each in ranking.ranked(products, number)], dtype=int
    )
    secs = ranking.estimate_secs(products, decisions, gpus.gpu_of(number))
    rows, columns, splits = decisions[:, 0], decisions[:, 1], decisions[:, 5]
    n_blocks = np.ceil(products.n_rows / rows) * np.ceil(products.n_columns / columns)
    n_blocks *= splits * products.n_batches
    n_sums = products.n_batches * products.n_rows * products.n_columns
    n_most = -(-n_sums // _MIN_SUMS)
    many = (rows > 1) & (n_blocks >= _min_blocks(arch))
    loss = secs[many].min(initial=np.inf) / secs.min() - 1
    more = f"parts of sums take {loss:.0%} longer by estimate" if many.any() else "no parts of sums"
    return f"{choice.n_blocks} blocks, {n_most} of {_MIN_SUMS} sums; {more}", (
        choice.n_blocks < n_most
    )


def _min_blocks(arch: str) -> int:
    """Return half of the multiprocessors of the GPU that stands for an architecture."""
    return gpus.gpu_of(compiler.number_of(arch)).n_multiprocessors // 2


def _build(model: ModelFile, spec: str, tasks: tuple[ExtractedTask, ...], folder: Path) -> None:
    """Build a library without records."""
    objects = {}
    for task in tasks:
        out = folder / task.workload
        out.mkdir()
        request = ObjectRequest(task.ir, spec, "", f"f_{task.workload[:16]}", str(out))
        info = worker.compile_subgraph(request).info
        objects[task.workload] = LinkedObject(str(out), request.symbol, info)
    out = folder / "library"
    out.mkdir()
    worker.link_network(LinkRequest((model,), spec, objects, str(out)))


def as_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Cast a model from float32 to float16, in place; scales of resizing stay float32."""
    kept = {
        name
        for node in model.graph.node
        if node.op_type in {"Resize", "Upsample"}
        for name in node.input[1:]
    }
    graphs = [model.graph]
    for graph in graphs:
        graphs += _cast(graph, kept)
    return model


def _cast(graph: onnx.GraphProto, kept: set[str]) -> list[onnx.GraphProto]:
    """Cast a graph; return those inside of it."""
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in graph.initializer:
        if tensor.name not in kept:
            _narrow(tensor)
    inner = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and not node.attribute:
            zero = numpy_helper.from_array(np.zeros(1, np.float32))
            node.attribute.append(helper.make_attribute("value", zero))
        for attribute in node.attribute:
            if attribute.name == _TYPED.get(node.op_type) and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
            if attribute.type == onnx.AttributeProto.TENSOR and not kept & set(node.output):
                _narrow(attribute.t)
            if attribute.name in {"value_float", "value_floats"}:
                half = np.array(helper.get_attribute_value(attribute), np.float16)
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(half)))
            inner += [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else []
    return inner


def _narrow(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        array = np.clip(numpy_helper.to_array(tensor), -_HALF_MAX, _HALF_MAX)
        tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float16), tensor.name))


if __name__ == "__main__":
    main()
