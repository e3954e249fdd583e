"""Kernel calls of a program whose memory was planned, and the memory that each of them takes."""

from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tuner.errors import WorkError
from tuner.library.manifest import BEGIN_CALL

# Tensors that begin where their first argument does, and calls without effect on memory.
_VIEWS = ("relax.vm.alloc_tensor", "vm.builtin.reshape")
_NOTHING = (
    "relax.null_value",
    "relax.vm.kill_object",
    "vm.builtin.check_tensor_info",
    "vm.builtin.match_shape",
    BEGIN_CALL,
)


@dataclass
class ProgramCalls:
    """The kernel calls of a program that :func:`take_memory` has changed.

    Blocks of memory are the parameters of the program, then its constants.

    Attributes:
        calls: Name of the function and blocks of its arguments, in the order of the calls.
        constants: Constants that kernels read or the program returns.
        returned: Block and type of each output; None for the block of a shape.
    """

    calls: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    returned: list[tuple[int | None, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, function: relax.Function) -> "ProgramCalls":
        """Read the calls of a program.

        Raises:
            WorkError: If it does something else than calling kernels.
        """
        read = cls()
        read._read(function)
        return read

    def _read(self, function: relax.Function) -> None:
        self._n_params = len(function.params)
        self._places: dict[Any, int] = {p: place for place, p in enumerate(function.params)}
        tuples: dict[relax.Var, Any] = {}
        for part in function.body.blocks:
            for binding in part.bindings:
                if isinstance(binding.value, relax.Tuple):
                    tuples[binding.var] = binding.value.fields
                else:
                    self._bind(binding.var, binding.value)
        result = function.body.body
        for leaf in tuples.get(result, [result]):
            is_tensor = leaf in self._places or isinstance(leaf, GenericConst)
            self.returned.append((self._place(leaf) if is_tensor else None, leaf.ty))

    def _bind(self, variable: relax.Var, value: Any) -> None:
        if isinstance(value, relax.Var | GenericConst):
            self._places[variable] = self._place(value)
            return
        if not isinstance(value, relax.Call):
            # A shape that is returned has no memory.
            if isinstance(value, relax.ShapeExpr):
                return
            raise WorkError(f"the network has a {type(value).__name__}")
        if isinstance(value.op, tvm.ir.GlobalVar):
            blocks = tuple(map(self._place, value.args))
            self.calls.append((str(value.op.name_hint), blocks))
            return
        name = str(getattr(value.op, "name", "") or getattr(value.op, "global_symbol", ""))
        if name in _VIEWS:
            self._places[variable] = self._place(value.args[0])
        elif name not in _NOTHING:
            raise WorkError(f"the network calls {name}")

    def _place(self, value: Any) -> int:
        """Return the block of a tensor or a constant."""
        if isinstance(value, GenericConst) and value not in self._places:
            self._places[value] = self._n_params + len(self.constants)
            self.constants.append(value.value)
        if value not in self._places:
            raise WorkError(f"a kernel of the network takes {value}")
        return self._places[value]
