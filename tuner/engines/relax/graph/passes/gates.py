"""Long sums that scale channels, as squeeze and excitation has them, as kernels of their own.

TVM fuses what follows a product with it even where the result is larger. A thread that computes an
element of the result then sums again what all elements of a channel share.
"""

import math
from typing import Any

import tvm
from tvm import relax
from tvm.tirx import PrimFunc

from tuner.engines.relax.ir.tensor_types import is_fixed
from tuner.engines.relax.triton.expressions.kernel_blocks import KernelBlocks

# Patterns of TVM, see tvm/relax/op_attr_types.h.
_BROADCAST, _INJECTIVE, _FUSABLE = 1, 2, 4
# Steps of sums that are repeated, at most: by the model of the GPU, longer ones take more time than
# another kernel.
_MAX_STEPS = 64


def keep_gates_apart(module: tvm.IRModule) -> tvm.IRModule:
    """Have TVM fuse no product of more than 64 steps with a result that is larger.

    Args:
        module: Network of kernels with their patterns.
    """
    functions = dict(module.functions_items())
    for function in module.functions.values():
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
            _mark(function.body, functions)
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


def _mark(body: relax.SeqExpr, functions: dict[Any, Any]) -> None:
    """Change the pattern of kernels whose result is larger than the sums that it follows from."""
    # Elements and steps of sums, by the variables that follow from them element by element.
    sums: dict[relax.Var, tuple[int, int]] = {}
    for binding in (binding for block in body.blocks for binding in block.bindings):
        call: Any = getattr(binding, "value", None)
        if getattr(getattr(call, "op", None), "name", "") != "relax.call_tir":
            continue
        kernel = functions[call.args[0]]
        if not isinstance(call.ty, relax.TensorType) or not is_fixed(call.ty):
            continue
        n_elements = math.prod(map(int, call.ty.shape))
        pattern = int((kernel.attrs or {}).get("op_pattern", _FUSABLE + 1))
        if pattern == _FUSABLE:
            sums[binding.var] = n_elements, _n_steps(kernel)
        elif pattern <= _BROADCAST:
            before = [sums[each] for each in call.args[1] if each in sums]
            if any(n < n_elements and steps > _MAX_STEPS for n, steps in before):
                functions[call.args[0]] = kernel.with_attr("op_pattern", _INJECTIVE)
            elif before:
                sums[binding.var] = max(before)


def _n_steps(kernel: PrimFunc) -> int:
    blocks = KernelBlocks.of(kernel)
    if blocks is None:
        return 0
    return max((math.prod(a.extent for a in each.reduced) for each in blocks.reductions), default=0)
