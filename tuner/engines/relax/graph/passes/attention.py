"""Regions that are one subgraph: attention, and on GPUs norms and pairs of products.

Attention is a product, a softmax of it and the product with that. Apart, the kernels write all
scores to memory and read them again, and copy queries, keys and values into the order that each
product needs. In one kernel a few rows of scores stay in the cache.

A product whose sums are shared by blocks has a second kernel that adds their parts. Where rows are
normalised, it holds whole ones, and computes the norm.

Two products whose results meet element by element, as the branches of a residual block or the gate
of a perceptron do, are the sums of one kernel: none of them goes through memory.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.passes import masked_softmax
from tuner.engines.relax.graph.passes.visitor import CallVisitor, dtype_of, name_of, uses_of
from tuner.engines.relax.ir.tensor_types import is_fixed, shape_of

#: Attribute of the functions that become one kernel each.
REGION = "tuner.region"
#: Name of the kernels of attention.
ATTENTION = "attention"

_VIEWS = {"permute_dims", "strided_slice", "split", "broadcast_to"}
_RESHAPES = {"reshape", "expand_dims", "squeeze"}
_UNARY = {"abs", "clip", "exp", "isnan", "logical_not", "negative", "tanh", "sigmoid"}
_BINARY = {"add", "subtract", "multiply", "divide", "maximum", "minimum", "where"}
_NORMS = {"nn.layer_norm", "nn.rms_norm", "nn.group_norm", "nn.instance_norm"}
# Activations that follow norms, and what picks the elements that a norm is of.
_ACTIVATIONS = {
    *("nn.relu", "nn.leakyrelu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.softplus"),
    *("erf", "log", "sqrt", "rsqrt", "power", "square"),
}
_CHOICES = {"take", "less"}
_SOFTMAX = {"nn.softmax", masked_softmax.NAME}
_INSIDE = _UNARY | _BINARY | _RESHAPES | _SOFTMAX
_HALF = ("float16", "bfloat16")
_PRODUCTS, _N_PAIRED = {"matmul", "nn.conv2d"}, 2
_MATRIX = 2
# Tensors in which keys or values may lie.
_MAX_PARTS = 4
# Sums before a norm: more fill the GPU without parts, and a float32 of each would be moved for
# nothing. Operators between a product and a norm.
_MAX_SUMS, _MAX_BETWEEN = 1 << 19, 16

Fits = Callable[[Sequence[int], int], bool]


@dataclass(frozen=True)
class _Region:
    """Bindings that become one function.

    Attributes:
        variables: Variables that it binds, in their order.
        results: Those that are read elsewhere: the result, and parts of keys or values, or the
            operand of a norm.
        name: Name of its kernel.
    """

    variables: tuple[relax.Var, ...]
    results: tuple[relax.Var, ...]
    name: str = ATTENTION


def outline_attention(
    module: tvm.IRModule,
    fits: Fits,
    apart: Collection[relax.Call] = (),
    *,
    is_for_gpu: bool = False,
) -> tuple[tvm.IRModule, dict[str, list[relax.Call]]]:
    """Give every region a function of its own, with attribute :data:`REGION`.

    Args:
        module: Module with operators of Relax.
        fits: Returns whether one kernel is faster, by the shape of the scores (heads, rows,
            keys) and the terms of each.
        apart: Calls of the module whose region gets no function.
        is_for_gpu: True if operands may be of half precision, with sums in float32, keys and
            values may be parts in several tensors, as a cache and what follows it, and products
            with norms are regions.

    Returns:
        The new module, and the calls of the old one that each function computes, by its name.
    """
    outliner = _Outliner(module, fits, set(apart), is_for_gpu=is_for_gpu)
    return outliner.run(module), outliner.results


def seal_regions(module: tvm.IRModule) -> tvm.IRModule:
    """Have TVM fuse each region as a whole, and nothing else with it."""
    functions = {
        variable: function.without_attr(REGION).with_attr("Primitive", True)
        if isinstance(function, relax.Function) and REGION in (function.attrs or {})
        else function
        for variable, function in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


@mutator
class _Outliner(CallVisitor):
    """Mutator that calls a new function where a region has its result.

    Attributes:
        results: Original calls that each new function computes, by its name.
    """

    def __init__(
        self, module: tvm.IRModule, fits: Fits, apart: set[relax.Call], *, is_for_gpu: bool
    ) -> None:
        super().__init__(module)
        self._is_for_gpu = is_for_gpu
        self._conversions = {"astype"} if is_for_gpu else set()
        self._joins = {"concat"} if is_for_gpu else set()
        self._elementwise = _UNARY | _BINARY | _ACTIVATIONS | self._conversions
        self.results: dict[str, list[relax.Call]] = {}
        self._fits = fits
        self._apart = apart
        self._bound: dict[relax.Var, relax.Expr] = {}
        self._order: dict[relax.Var, int] = {}
        self._users: dict[relax.Var, list[relax.Var]] = {}
        self._outputs: set[relax.Var] = set()
        self._regions: dict[relax.Call, _Region] = {}

    def prepare(self, function: relax.Function) -> None:
        """Find the regions of a function."""
        super().prepare(function)
        self._bound, self._users = uses_of(function)
        self._order = {variable: place for place, variable in enumerate(self._bound)}
        self._outputs = set(relax.analysis.free_vars(function.body.body))
        self._regions = {}
        taken: set[relax.Var] = set()
        for variable, bound in self._bound.items():
            region = self._region(variable) if name_of(bound) == "matmul" else None
            if self._is_for_gpu and name_of(bound) in _NORMS:
                region = self._normed(variable)
            elif self._is_for_gpu and name_of(bound) in _BINARY:
                region = self._paired(variable)
            if region is not None and taken.isdisjoint(region.variables):
                taken.update(region.variables)
                self._regions[self._bound[region.results[0]]] = region

    def rewrite(self, original: relax.Call, call: relax.Call) -> relax.Expr:
        """Replace the result of a region by a call of its function."""
        region = self._regions.get(original)
        if region is None or original in self._apart:
            return call
        function, arguments = self._outlined(region)
        name = self.builder_.add_func(function, region.name)
        self.results.setdefault(name.name_hint, []).append(original)
        made = relax.Call(name, [self.visit_expr(each) for each in arguments])
        if len(region.results) == 1:
            return made
        fields = self.emit(made)
        for number, part in enumerate(region.results[1:], 1):
            self.set_var_remap(part, self.emit(relax.TupleGetItem(fields, number)))
        return relax.TupleGetItem(fields, 0)

    def _region(self, product: relax.Var) -> _Region | None:
        """Return the region whose second product a variable holds; None if it is not attention."""
        weights, values = self._bound[product].args
        inside = self._collect(weights)
        if not inside:
            return None
        (scores,) = [each for each in inside if name_of(self._bound[each]) == "matmul"]
        if not self._is_plain(product, scores, inside):
            return None
        inside.add(product)
        if any(not inside.issuperset(self._users[each]) for each in inside - {product}):
            return None
        for operand in (*self._bound[scores].args, values):
            inside.update(self._views(operand))
        behind = self._behind(product)
        inside.update(behind)
        variables = sorted(inside, key=self._order.__getitem__)
        result = behind[-1] if behind else product
        return _Region((*variables,), (result, *self._parts_after(result, variables)))

    def _parts_after(
        self, result: relax.Var, variables: Sequence[relax.Var]
    ) -> Iterator[relax.Var]:
        """Yield the parts of concatenations that only what is behind a result reads besides it."""
        for joined in variables:
            bound = self._bound[joined]
            for part in _tensors_of(bound) if name_of(bound) in self._joins else ():
                others = set(self._users[part]) - set(variables) if part in variables else ()
                if others and min(map(self._order.__getitem__, others)) > self._order[result]:
                    yield part

    def _normed(self, norm: relax.Var) -> _Region | None:
        """Return the region of a norm, what it follows from, and what follows element by element.

        It follows from a product, or else from values that no other kernel would compute as well.
        """
        call = self._bound[norm]
        operand, rank = call.args[0], len(shape_of(call))
        # Norms of half precision convert it: others read it as it was.
        converted = [operand] if self._is_widened(operand) else []
        operand = self._bound[operand].args[0] if converted else operand
        is_last = [int(axis) % rank for axis in call.attrs.axes] == [rank - 1]
        is_small = is_fixed(operand.ty) and math.prod(shape_of(call)) <= _MAX_SUMS
        inside = self._between(operand) if is_last and is_small else []
        inside = inside or self._before(operand, {norm, *converted})
        behind = self._tail(norm)
        result = behind[-1] if behind else norm
        others = set(self._users.get(operand, ())) - {norm, *converted}
        is_early = any(self._order[each] < self._order[result] for each in others)
        if not (inside or converted) or operand in self._outputs or is_early:
            return None
        variables = (*inside, *converted, norm, *behind)
        results = (result, operand) if others and inside else (result,)
        return _Region(variables, results, self._name_of(variables))

    def _is_widened(self, variable: Any) -> bool:
        """Return whether a variable is half precision in float32, for one operator alone."""
        call: Any = self._bound.get(variable) if isinstance(variable, relax.Var) else None
        is_wide = name_of(call) in self._conversions and dtype_of(variable) == "float32"
        return is_wide and dtype_of(call.args[0]) in _HALF and self._is_read_once(variable)

    def _paired(self, joint: relax.Var) -> _Region | None:
        """Return the region of two products of weights that meet, and what follows from them."""
        inside, products = {joint}, []
        pending = self._bound_among(self._bound[joint].args)
        while pending and len(inside) <= _MAX_BETWEEN:
            variable = pending.pop(pending.index(max(pending, key=self._order.__getitem__)))
            is_read = variable in self._outputs or not inside.issuperset(self._users[variable])
            if variable in inside or is_read or shape_of(variable) != shape_of(joint):
                continue
            call = self._bound[variable]
            if name_of(call) in _PRODUCTS and isinstance(call.args[1], GenericConst):
                inside.add(variable)
                products.append(variable)
            elif name_of(call) in self._elementwise:
                inside.add(variable)
                pending += self._bound_among(call.args)
        if pending or len(products) != _N_PAIRED or not is_fixed(joint.ty):
            return None
        variables = (*sorted(inside, key=self._order.__getitem__), *self._tail(joint))
        return _Region(variables, variables[-1:], self._name_of(variables))

    def _name_of(self, variables: Sequence[relax.Var]) -> str:
        names = [name_of(self._bound[each]).rpartition(".")[2] for each in variables]
        return "_".join(names).replace("astype", "cast")

    def _before(self, operand: relax.Expr, readers: Collection[relax.Var]) -> list[relax.Var]:
        """Return what an operand of a norm follows from element by element, gathers included.

        Nothing if a kernel before would compute the first of it, as that of a convolution does.
        """
        inside = {*readers}
        pending = self._bound_among([operand])
        while pending and len(inside) <= _MAX_BETWEEN:
            variable = pending.pop(pending.index(max(pending, key=self._order.__getitem__)))
            bound = self._bound[variable]
            is_read = variable in self._outputs or not inside.issuperset(self._users[variable])
            if variable in inside or (is_read and not variable.same_as(operand)):
                continue
            if name_of(bound) in self._elementwise | _CHOICES:
                inside.add(variable)
                pending += self._bound_among(bound.args)
            elif name_of(bound) not in _VIEWS | _RESHAPES:
                return []
        inside.difference_update(readers)
        return sorted(inside, key=self._order.__getitem__) if not pending else []

    def _tail(self, result: relax.Var) -> list[relax.Var]:
        """Return what follows from a result alone, up to the last value that others read."""
        tail: list[relax.Var] = []
        grown = [result]
        while len(grown) <= _MAX_BETWEEN and self._outputs.isdisjoint(grown):
            readers = {each for held in grown for each in self._users.get(held, ())} - set(grown)
            variable = min(readers, key=self._order.__getitem__, default=None)
            is_alike = variable is not None and name_of(self._bound[variable]) in self._elementwise
            if not is_alike or shape_of(variable) != shape_of(result):
                break
            others = readers - {variable}
            grown.append(variable)
            if not others:
                tail = grown[1:]
        return tail

    def _between(self, operand: relax.Expr) -> list[relax.Var]:
        """Return the last product before an operand, and what follows from it element by element.

        What lies between is read by the next operator alone.
        """
        readers: dict[relax.Var, relax.Var | None] = {}
        stack: list[tuple[relax.Expr, relax.Var | None]] = [(operand, None)]
        while stack and len(readers) <= _MAX_BETWEEN:
            variable, reader = stack.pop()
            bound = self._bound.get(variable) if isinstance(variable, relax.Var) else None
            if bound is None or variable in readers or shape_of(variable) != shape_of(operand):
                continue
            if reader is None or self._is_read_once(variable):
                readers[variable] = reader
                if name_of(bound) in _UNARY | _BINARY | self._conversions:
                    stack += [(each, variable) for each in bound.args]
        products = [each for each in readers if name_of(self._bound[each]) == "matmul"]
        chain = [max(products, key=self._order.__getitem__)] if products else []
        while chain and (reader := readers[chain[-1]]) is not None:
            chain.append(reader)
        return chain

    def _is_plain(self, product: relax.Var, scores: relax.Var, inside: set[relax.Var]) -> bool:
        (queries, keys), values = self._bound[scores].args, self._bound[product].args[1]
        n_values = math.prod(shape_of(values)[:-_MATRIX])
        if values.same_as(queries) or n_values > math.prod(shape_of(scores)[:-_MATRIX]):
            return False  # it has no schedule
        operands = {dtype_of(each) for each in (queries, keys, *self._bound[product].args)}
        sums = {dtype_of(each) for each in (product, scores)}
        is_wide = operands == {"float32"} or (
            bool(self._conversions) and operands in ({each} for each in _HALF)
        )
        if not is_wide or sums != {"float32"} or not all(is_fixed(each.ty) for each in inside):
            return False
        softmax = [each for each in inside if name_of(self._bound[each]) in _SOFTMAX]
        shape = shape_of(scores)
        axes = [
            -1 if name_of(call) == masked_softmax.NAME else int(call.attrs.axis)
            for call in (self._bound[each] for each in softmax)
        ]
        if len(axes) != 1 or axes[0] not in (-1, len(shape_of(softmax[0])) - 1):
            return False
        n_heads = math.prod(shape[:-_MATRIX])
        if any(shape_of(each)[-_MATRIX:] != shape[-_MATRIX:] for each in inside):
            return False
        if any(math.prod(shape_of(each)[:-_MATRIX]) != n_heads for each in inside):
            return False
        return self._fits([n_heads, *shape[-_MATRIX:]], shape_of(queries)[-1])

    def _collect(self, expr: relax.Expr) -> set[relax.Var]:
        """Return what follows from the first product before an expression, that and this included.

        Chains of elementwise operators may be as long as a network: each is looked at once, and no
        function calls itself.
        """
        follows: dict[relax.Var, bool] = {}
        stack, has_product = self._bound_among([expr]), False
        while stack:
            variable = stack[-1]
            call = self._bound[variable]
            is_product = name_of(call) == "matmul"
            operands = [] if is_product else self._bound_among(self._operands(call))
            unknown = [each for each in operands if each not in follows]
            if variable not in follows and unknown:
                stack += reversed(unknown)
                continue
            stack.pop()
            if variable in follows:
                continue
            is_first = is_product and not has_product
            has_product = has_product or is_product
            follows[variable] = is_first or any(follows[each] for each in operands)
        return {variable for variable, does in follows.items() if does}

    def _bound_among(self, exprs: Sequence[relax.Expr]) -> list[relax.Var]:
        return [each for each in exprs if isinstance(each, relax.Var) and each in self._bound]

    def _views(self, expr: relax.Expr) -> Iterator[relax.Var]:
        """Yield the variables that move an operand, up to the last one that is not only a view."""
        chain: list[relax.Var] = []
        n_kept = 0
        while isinstance(expr, relax.Var) and expr in self._bound:
            bound = self._bound[expr]
            if isinstance(bound, relax.TupleGetItem):
                bound = self._bound.get(bound.tuple_value)
            name = name_of(bound)
            if self._is_joined(expr):
                for part in _tensors_of(bound):
                    yield from self._views(part)
                chain.append(expr)
                n_kept = len(chain)
                break
            is_scaled = name == "multiply" and isinstance(bound.args[1], GenericConst)
            if name not in _VIEWS | _RESHAPES and not is_scaled:
                break
            chain.append(expr)
            if name in _VIEWS:
                n_kept = len(chain)
            expr = bound.args[0]
        yield from chain[:n_kept]

    def _is_joined(self, variable: relax.Var) -> bool:
        """Return whether a variable is a concatenation that need not be in memory."""
        bound = self._bound[variable]
        if name_of(bound) not in self._joins or not self._is_read_once(variable):
            return False
        parts = _tensors_of(bound)
        return len(parts) <= _MAX_PARTS and not any(
            name_of(self._bound.get(each)) in self._joins for each in parts
        )

    def _is_read_once(self, variable: relax.Var) -> bool:
        """Return whether one operator alone reads a variable: it need not be in memory."""
        return variable not in self._outputs and len(self._users[variable]) == 1

    def _behind(self, variable: relax.Var) -> list[relax.Var]:
        """Return the variables that move a result, up to the last one that is not only a view."""
        chain: list[relax.Var] = []
        n_kept = 0
        while variable in self._users and self._is_read_once(variable):
            (variable,) = self._users[variable]
            name = name_of(self._bound[variable])
            if name not in {"permute_dims"} | _RESHAPES | self._conversions:
                break
            chain.append(variable)
            if name not in _RESHAPES:
                n_kept = len(chain)
        return chain[:n_kept]

    def _operands(self, call: relax.Expr) -> list[relax.Expr]:
        """Return the operands of an operator that may lie between products; none of others."""
        return list(call.args) if name_of(call) in _INSIDE | self._conversions else []

    def _outlined(self, region: _Region) -> tuple[relax.Function, list[relax.Expr]]:
        """Return a function of a region, and the arguments of its call."""
        held: dict[relax.Expr, relax.Var] = {}
        arguments: list[relax.Expr] = []

        def inner(expr: relax.Expr, *, is_literal: bool) -> relax.Expr:
            is_constant = isinstance(expr, GenericConst)
            if not (is_constant and not is_literal) and not isinstance(expr, relax.Var):
                return expr
            if expr not in held:
                held[expr] = relax.Var(f"p{len(arguments)}", expr.ty)
                arguments.append(expr)
            return held[expr]

        builder = relax.BlockBuilder()
        calls = [(each, self._call_of(each)) for each in region.variables]
        inside = set(region.variables)
        for _, call in calls:
            for arg in _tensors_of(call):
                if arg not in inside:
                    inner(arg, is_literal=_is_literal(call, arg))
        parameters = list(held.values())
        with builder.function(ATTENTION, parameters):
            with builder.dataflow():
                for variable, call in calls:
                    args = [
                        inner(arg, is_literal=_is_literal(call, arg)) for arg in _tensors_of(call)
                    ]
                    if name_of(call) in self._joins:
                        args = [relax.Tuple(args)]
                    again = relax.Call(call.op, args, call.attrs, call.ty_args)
                    held[variable] = builder.emit(_without_units(builder, call, again))
                results = [builder.emit_output(held[each]) for each in region.results]
            builder.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
        function = builder.get()[ATTENTION].without_attr("global_symbol")
        return function.with_attr(REGION, True), arguments

    def _call_of(self, variable: relax.Var) -> relax.Call:
        """Return the call that computes a variable; a slice for a part of a split."""
        bound = self._bound[variable]
        if not isinstance(bound, relax.TupleGetItem):
            return bound
        split = self._bound[bound.tuple_value]
        parts = [shape_of_type(field) for field in bound.tuple_value.ty.fields]
        axis = int(split.attrs.axis) % len(parts[0])
        begin = sum(part[axis] for part in parts[: bound.index])
        end = begin + parts[bound.index][axis]
        return relax.op.strided_slice(split.args[0], axes=[axis], begin=[begin], end=[end])


def _tensors_of(call: relax.Call) -> list[relax.Expr]:
    """Return the operands of a call; a concatenation has them in a tuple."""
    first = call.args[0]
    return list(first.fields) if isinstance(first, relax.Tuple) else list(call.args)


def _without_units(
    builder: relax.BlockBuilder, original: relax.Call, call: relax.Call
) -> relax.Expr:
    """Return a reshape that only adds or drops axes of one element as such; others as they are."""
    if name_of(call) != "reshape":
        return call
    source, shape = shape_of(original.args[0]), shape_of(original)
    if [each for each in source if each > 1] != [each for each in shape if each > 1]:
        return call
    value = call.args[0]
    if 1 in source:
        value = builder.emit(relax.op.squeeze(value, [n for n, x in enumerate(source) if x == 1]))
    return relax.op.expand_dims(value, [n for n, each in enumerate(shape) if each == 1])


def shape_of_type(kind: relax.TensorType) -> tuple[int, ...]:
    """Return the shape of a type of tensors with fixed extents."""
    return tuple(int(extent) for extent in kind.shape)


def _is_literal(call: relax.Call, arg: relax.Expr) -> bool:
    """Return whether an operator takes a constant as a number, not as a tensor."""
    return isinstance(arg, GenericConst) and not arg.ty.shape.values and name_of(call) != "where"
