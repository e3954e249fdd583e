"""Plain TVM with a MetaSchedule database, as a process of its own.

Of the tuner it has the quick import of TVM alone, without which each run takes 20 s longer.

``make FOLDER MODEL SEED`` writes a database of a network's kernels, as plain TVM splits it, each
with a schedule of its space and a made up latency. ``compile FOLDER MODEL`` compiles the network
with ``compile_relax`` and prints, as JSON, which kernels the database had, and its output.
"""

import json
import sys
from typing import Any

import numpy as np
import onnx

# isort: off
from tuner.engines.relax import fast_import

# isort: on
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord
from tvm.s_tir.meta_schedule.relax_integration import compile_relax, extract_tasks

fast_import.load_intrinsics("x86_64")
TARGET = {"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2}


def make(folder: str, model: str, seed: str) -> None:
    """Write a database."""
    target = tvm.target.Target(TARGET)
    transform = relax.transform
    passes = [
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.FuseOps(),
        transform.FuseTIR(),
    ]
    with target:
        module = tvm.transform.Sequential(passes)(from_onnx(onnx.load(model)))
    database = JSONDatabase(work_dir=folder)
    for number, task in enumerate(extract_tasks(module, target)):
        kernel = task.dispatched[0]
        workload = database.commit_workload(kernel)
        context = ms.TuneContext(
            mod=kernel,
            target=target,
            space_generator="post-order-apply",
            num_threads=1,
            rand_state=int(seed),
        )
        schedule = context.generate_design_space()[-1]
        schedule.enter_postproc()
        assert all(each.apply(schedule) for each in context.space_generator.postprocs)
        arguments = ArgInfo.from_entry_func(kernel)
        for secs in ([1e-3 * (number + 1)], None, [1e10]):
            record = TuningRecord(schedule.trace, workload, secs, target, arguments)
            database.commit_tuning_record(record)


def compile_(folder: str, model: str) -> None:
    """Compile with a database, and print the kernels that it contained."""
    hits: dict[str, bool] = {}
    real = relax.transform.MetaScheduleApplyDatabase

    def watched(*args: Any, **options: Any) -> Any:
        apply = real(*args, **options)

        @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
        def watch(module: Any, _: Any) -> Any:
            applied = apply(module)
            for name, function in applied.functions.items():
                if isinstance(function, tvm.tirx.PrimFunc):
                    hits[str(name.name_hint)] = "tirx.is_scheduled" in function.attrs
            return applied

        return watch

    relax.transform.MetaScheduleApplyDatabase = watched
    loaded = onnx.load(model)
    database = JSONDatabase(work_dir=folder)
    built = compile_relax(database, from_onnx(loaded), tvm.target.Target(TARGET), None)
    shape = [dim.dim_value for dim in loaded.graph.input[0].type.tensor_type.shape.dim]
    data = np.random.default_rng(0).standard_normal(shape).astype("float32")
    output = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(data)).numpy()
    n_records = len(database.get_all_tuning_records())
    print(json.dumps({"hits": hits, "records": n_records, "output": output.tolist()}))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(*sys.argv[2:])
    else:
        compile_(*sys.argv[2:])
