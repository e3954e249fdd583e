"""Compilation of scheduled kernels for CPUs: vector functions, and sums in any order."""

import json

import tvm
from tvm.target import Target

from tuner.engines.relax.codegen.cpu import nested_calls, vector_functions
from tuner.engines.relax.schedules.cpu.primitives import spread_loads
from tuner.engines.relax.settings import PASS_CONFIG

vector_functions.register()
spread_loads.register()
nested_calls.register()


def compile_kernels(module: tvm.IRModule, target: Target) -> tvm.runtime.Module:
    """Compile the functions of a module.

    LLVM may reorder sums, as schedules do, which lets it make vectors of reductions; infinities and
    NaN stay what they are.
    """
    reordering = Target({**json.loads(str(target)), "fast-math-reassoc": True})
    with tvm.transform.PassContext(config={**PASS_CONFIG, **spread_loads.pass_config(module)}):
        return tvm.tirx.build(module, target=reordering, pipeline=nested_calls.PIPELINE)
