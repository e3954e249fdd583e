"""Scatters to a part of a tensor, which TVM's kernels write to other places than intended.

The kernels count positions in front of the axis of the scatter, and behind it, by the lengths of
the indices. They are those of the data if the two differ on the first axis of either group alone.
"""

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.layout.scope import with_attrs
from tuner.engines.relax.rewrites.visitor import CallVisitor, name_of
from tuner.engines.relax.tensor_types import shape_of


def split_scatters(module: tvm.IRModule) -> tvm.IRModule:
    """Scatter to the part of a tensor that the indices cover, and join it with the rest.

    Constants must not be folded before: TVM folds a scatter by the same kernel.
    """
    return _Splitter(module).run(module)


@mutator
class _Splitter(CallVisitor):
    """Mutator that cuts the data of a scatter along every axis that its kernel misreads."""

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Split one scatter; one that its kernel reads right stays."""
        return self._split(call) if name_of(call) == "scatter_elements" else call

    def _split(self, call: relax.Call) -> relax.Expr:
        data, indices, updates = call.args
        axis = _misread_axis(call)
        if axis is None:
            return call
        end, size = (shape_of(value)[axis] for value in (indices, data))
        part, rest = (
            self.emit(relax.op.strided_slice(data, axes=[axis], begin=[first], end=[last]))
            for first, last in ((0, end), (end, size))
        )
        scattered = self.emit(self._split(with_attrs(call, [part, indices, updates])))
        return relax.op.concat([scattered, rest], axis)


def _misread_axis(call: relax.Call) -> int | None:
    """Return the first axis on which the kernel of a scatter takes the indices for the data."""
    data, indices = (shape_of(value) for value in call.args[:2])
    axis = int(call.attrs.axis) % len(data)
    pairs = enumerate(zip(indices, data, strict=True))
    misread = (n for n, (some, size) in pairs if 0 < some < size and n not in (0, axis, axis + 1))
    return next(misread, None)
