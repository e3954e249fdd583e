"""Redirection of the kernel calls of a lowered network to separately compiled objects."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.tirx import Evaluate, PrimFunc, decl_buffer

from tuner.engines.base import LinkedObject
from tuner.engines.packed import PackedKernel
from tuner.engines.relax.codegen.build import PACK
from tuner.engines.relax.codegen.objects import PACKER, load_devices, load_launches
from tuner.engines.relax.codegen.weights import WeightPool
from tuner.engines.relax.graph.definitions.step_loops import StepLoop
from tuner.engines.relax.graph.extract import step_name
from tuner.engines.relax.ir.blobs import DeviceModule
from tuner.errors import LinkError

#: Smaller constants stay in a program for a CPU: another argument costs as much as reading one.
LARGE_BYTES = 4096


@dataclass(frozen=True)
class LinkableObject:
    """The object of a workload with everything that a program needs to call it.

    Attributes:
        folder: Folder of its files.
        packed: Index, shape and dtype of the arguments that it takes packed.
        devices: Binaries for the GPU; none on CPU targets.
        variant: Variant that it computes; empty for the workload itself.
        launches: Its kernels and the size of the memory that they share; None on CPU targets, or
            if it does more than launching them.
    """

    folder: Path
    symbol: str
    packed: tuple[dict[str, Any], ...]
    devices: tuple[DeviceModule, ...] = ()
    variant: str = ""
    launches: tuple[Sequence[PackedKernel], int] | None = None

    @classmethod
    def load(cls, compiled: LinkedObject) -> Self:
        """Read the description that its compilation wrote."""
        folder = Path(compiled.folder)
        devices = tuple(load_devices(folder, compiled.info))
        packed, variant = tuple(compiled.info["packed"]), str(compiled.info.get("variant", ""))
        launches = load_launches(devices, compiled.info)
        return cls(folder, compiled.symbol, packed, devices, variant, launches)

    @cached_property
    def _packer(self) -> Any:
        return tvm.runtime.load_module(str(self.folder / PACKER))[PACK]

    def pack(self, values: list[Any]) -> list[Any]:
        """Pack weights in the layout that they had when the kernel was measured."""
        packed = [
            tvm.runtime.empty(tuple(packed["shape"]), packed["dtype"]) for packed in self.packed
        ]
        self._packer(*values, *packed)
        return packed


@dataclass(frozen=True)
class LoopCalls:
    """Calls that a loop makes.

    Attributes:
        symbols: Symbol of the object of a step by name of the call.
        n_runs: Runs of a step that the loop waits for.
    """

    symbols: dict[str, str]
    n_runs: int


@mutator
class CallRewriter(PyExprMutator):  # type: ignore[misc]
    """Mutator that makes ``main`` of a lowered network call objects and take its weights.

    Every call gets a unique name, because code generation declares the callee once per call.

    Attributes:
        entry: Name of the rewritten function.
        functions: Declarations of its callees, by global variable.
        symbols: Symbol of the object by name of the call.
        loops: Calls of a step by name of the loop that makes them, with how often they run.
        n_outputs: Number of outputs by name of the call.
        weights: Indices of the weights that it takes after its inputs.
    """

    def __init__(
        self,
        module: tvm.IRModule,
        number: int,
        objects: dict[str, LinkableObject],
        pool: WeightPool,
        min_bytes: int = LARGE_BYTES,
    ) -> None:
        super().__init__(module)
        self._module = module
        self._number = number
        self._objects = objects
        self._pool = pool
        self._min_bytes = min_bytes
        self._variables: list[relax.Var] = []
        self.entry = f"main_{number}"
        self.functions: dict[Any, Any] = {}
        self.symbols: dict[str, str] = {}
        self.loops: dict[str, LoopCalls] = {}
        self.n_outputs: dict[str, int] = {}
        self.weights: list[int] = []

    def rewrite(self) -> dict[Any, Any]:
        """Return the function by its global variable."""
        main = self._module["main"]
        body = self.visit_expr(main.body)
        rewritten = relax.Function(
            [*main.params, *self._variables], body, main.ret_ty, is_pure=True
        )
        rewritten = rewritten.with_attr("global_symbol", self.entry)
        return {tvm.ir.GlobalVar(self.entry): rewritten}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Redirect a kernel call to its object."""
        if getattr(call.op, "name", "") != "relax.call_tir":
            return call
        name = str(call.args[0].name_hint)
        arguments = list(call.args[1].fields)
        loop = StepLoop.of(self._module[name])
        if loop is not None:
            symbols = {}
            for direction in range(len(loop.steps)):
                linked = self._objects[step_name(name, direction)]
                symbols[f"{name}_{self._number}_{len(self.functions)}_{direction}"] = linked.symbol
                position = partial(loop.position, direction)
                arguments = self._pack_weights(linked, arguments, position)
            arguments = self._lift_weights(arguments)
            types = [
                ([int(size) for size in each.ty.shape], str(each.ty.dtype)) for each in arguments
            ]
            made = self._call(name, loop.define(types, list(symbols)), arguments, call)
            self.loops[str(made.args[0].name_hint)] = LoopCalls(symbols, loop.n_runs)
            return made
        if name not in self._objects:
            return self._call(name, self._module[name], arguments, call)
        linked = self._objects[name]
        arguments = self._lift_weights(self._pack_weights(linked, arguments))
        callee = f"call_{self._number}_{len(self.symbols)}"
        self.symbols[callee] = linked.symbol
        # An empty function with the signature of the object's function.
        function = self._module[name]
        changed = {packed["index"]: packed for packed in linked.packed}
        buffers = [
            decl_buffer(changed[index]["shape"], changed[index]["dtype"])
            if index in changed
            else decl_buffer([int(size) for size in param.shape], str(param.dtype))
            for index, param in enumerate(function.params)
        ]
        return self._call(callee, PrimFunc(buffers, Evaluate(0)), arguments, call)

    def _call(
        self, name: str, function: PrimFunc, arguments: list[Any], call: relax.Call
    ) -> relax.Expr:
        unique = name if name in self.symbols else f"{name}_{self._number}_{len(self.functions)}"
        function = function.with_attr("global_symbol", unique)
        variable = self.builder_.add_func(function, unique)
        self.functions[variable] = function
        kind = call.ty_args[0]
        results = list(kind.fields) if isinstance(kind, relax.TupleType) else kind
        self.n_outputs[unique] = len(results) if isinstance(results, list) else 1
        return relax.call_tir(variable, arguments, results)

    def _pack_weights(
        self,
        linked: LinkableObject,
        arguments: Sequence[relax.Expr],
        position: Callable[[int], int] = lambda index: index,
    ) -> list[relax.Expr]:
        """Replace the weights that an object takes packed.

        Args:
            arguments: Arguments of a call.
            position: Returns which of them is an argument of the object, given its index.
        """
        packed = list(arguments)
        indices = [position(each["index"]) for each in linked.packed]
        if indices:
            values = [self._constant(arguments[index]) for index in indices]
            for index, value in zip(indices, linked.pack(values), strict=True):
                packed[index] = self._lift(value)
        return packed

    def _lift_weights(self, arguments: Sequence[relax.Expr]) -> list[relax.Expr]:
        """Turn constants of enough bytes into arguments of the program."""
        lifted = list(arguments)
        for index, argument in enumerate(lifted):
            value = self._value(argument)
            if value is not None and _n_bytes(value) >= self._min_bytes:
                lifted[index] = self._lift(value)
        return lifted

    def _constant(self, argument: relax.Expr) -> Any:
        value = self._value(argument)
        if value is None:
            raise LinkError("a weight that is packed is computed by the network itself")
        return value

    def _value(self, argument: relax.Expr) -> Any:
        bound = self.lookup_binding(argument) if isinstance(argument, relax.Var) else argument
        return bound.value if isinstance(bound, GenericConst) else None

    def _lift(self, value: Any) -> relax.Var:
        """Turn a weight into an argument of the program; equal weights share one."""
        number = self._pool.add(value)
        if number not in self.weights:
            shape = [int(size) for size in value.shape]
            kind = relax.TensorType(shape, str(value.dtype))
            self.weights.append(number)
            self._variables.append(relax.Var(f"weight_{number}", kind))
        return self._variables[self.weights.index(number)]


def _n_bytes(value: Any) -> int:
    return int(value.numpy().nbytes)
