"""Root blocks of kernels: schedules look for the block of this name, and some operators lack it."""

import tvm
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import PrimFunc

_ROOT = "root"


def add_root_blocks(module: tvm.IRModule) -> tvm.IRModule:
    """Return a module in which the outermost block of every kernel is its root.

    A scatter, for example, is one block of its own name with loops inside.
    """
    functions = {
        variable: _with_root(function) if isinstance(function, PrimFunc) else function
        for variable, function in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


def _with_root(function: PrimFunc) -> PrimFunc:
    body = function.body
    if not isinstance(body, SBlockRealize) or body.block.name_hint == _ROOT:
        return function
    return function.with_body(SBlockRealize([], True, SBlock([], [], [], _ROOT, body)))
