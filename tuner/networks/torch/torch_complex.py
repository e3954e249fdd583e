"""Rewriting of exported programs with complex numbers as programs of real and imaginary parts."""

import functools
import math
import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    make_fx,
    track_tensor_tree,
)
from torch.utils import _pytree as pytree

from tuner.errors import ModelError, summary
from tuner.networks.onnx.operators.fourier import basis

_aten = torch.ops.aten
_MAX_TABLE_ELEMENTS = 2**24
_TOLERANCE = 1e-3
# torch's text where an operator has no formula of parts.
_LACKING = re.compile(r"Multiple dispatch failed for 'torch\._ops\.(\w+\.\w+)")
# Exponent of the length in the factor of a transform, by torch's code of a normalisation.
_EXPONENTS = {0: 0.0, 1: -0.5, 2: -1.0}
_ARITHMETIC = (_aten.add, _aten.sub, _aten.mul)
# Arguments of `basis`.
_Key = tuple[int, int, int, bool, bool]


def as_real(program: Any) -> Any:
    """Return a program without complex numbers; one that has none is returned as it is.

    Raises:
        ModelError: If an input or output is complex, or an operator cannot be computed by parts.
    """
    nodes = {node.name: node for node in program.graph.nodes}
    if not any(map(_is_complex, nodes.values())):
        return program
    signature = program.graph_signature
    for name in (*signature.user_inputs, *signature.user_outputs):
        if name in nodes and _is_complex(nodes[name]):
            raise ModelError(
                f"{name!r} is complex: export the program with its parts, by torch.view_as_real",
                code="not-a-tensor",
            )
    values = [nodes[name].meta["val"] if name in nodes else name for name in signature.user_inputs]
    for name, value in zip(signature.user_inputs, values, strict=True):
        if not isinstance(value, torch.Tensor):
            raise ModelError(
                f"cannot import complex numbers beside the input {name!r}, which is not a tensor",
                code="not-a-tensor",
            )
    arguments = tuple(torch.zeros(each.shape, dtype=each.dtype) for each in values)
    try:
        with torch.no_grad():
            functional = _decomposed(program)
            if functional.graph_signature.buffers_to_mutate:
                raise NotImplementedError("the program changes buffers")
            core = functional.module()
            _split_constants(core)
            run = functools.partial(_Parts(core).run, enable_io_processing=False)
            traced = make_fx(run)(*arguments)
            traced.graph.eliminate_dead_code()
            placeholders = [each for each in traced.graph.nodes if each.op == "placeholder"]
            for node, name in zip(placeholders, signature.user_inputs, strict=True):
                node.target = node.name = name
            used = {each.target for each in traced.graph.nodes if each.op == "get_attr"}
            for name in {name for name, _ in traced.named_buffers()} - used:
                delattr(traced, name)
            traced.recompile()
            real = torch.export.export(traced, arguments)
            if left := next(filter(_is_complex, real.graph.nodes), None):
                raise NotImplementedError(f"{left.target} of complex numbers")
    # torch documents no exceptions, nor which operators have formulas of parts.
    except Exception as error:
        lacking = _LACKING.search(str(error))
        reason = f"no formula of {lacking[1]}" if lacking else summary(error, max_chars=200)
        raise ModelError(
            f"cannot import the model's complex numbers: {reason}", code="unsupported-operator"
        ) from error
    _check_agreement(program, real, arguments)
    return real


def _decomposed(program: Any) -> Any:
    """Return a program with torch's core operators of complex numbers; the others stay."""
    known, table = torch.export.default_decompositions(), None
    while True:
        used = {
            node.target
            for node in program.graph.nodes
            if any(map(_is_complex, (node, *node.all_input_nodes)))
        }
        needed = {each: known[each] for each in used if each in known}
        if table is not None and needed.keys() <= table.keys():
            return program
        table = {**(table or {}), **needed}
        program = program.run_decompositions(table)


def _check_agreement(program: Any, real: Any, arguments: tuple[torch.Tensor, ...]) -> None:
    """Check that two programs compute the same from random inputs.

    Raises:
        ModelError: If an output differs.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = [
        torch.randn(each.shape, dtype=each.dtype, generator=generator)
        if each.is_floating_point()
        else each
        for each in arguments
    ]
    names = program.graph_signature.user_outputs
    args, kwargs = pytree.tree_unflatten(drawn, program.call_spec.in_spec)
    with torch.no_grad():
        results = [
            pytree.tree_leaves(program.module()(*args, **kwargs)),
            pytree.tree_leaves(real.module()(*drawn)),
        ]
    for name, expected, actual in zip(names, *results, strict=True):
        if not isinstance(expected, torch.Tensor):
            continue
        finite = expected.double().nan_to_num(0.0, 0.0, 0.0)
        limit = _TOLERANCE * float(finite.abs().max()) if expected.numel() else 0.0
        if not torch.allclose(actual.double(), expected.double(), 0.0, limit, equal_nan=True):
            raise ModelError(
                f"the parts of complex numbers give another {name!r} than the program",
                code="unsupported-operator",
            )


def _split_constants(module: fx.GraphModule) -> None:
    """Add parts of complex constants and matrices of Fourier transforms to a module, in place."""
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = operator.attrgetter(node.target)(module)
            if isinstance(value, torch.Tensor) and value.is_complex():
                module.register_buffer(_parts_of(node.target), torch.view_as_real(value.detach()))
        for _, key in _steps(node):
            n, n_parts, size, inverse, onesided = key
            if n * n_parts * size * 2 > _MAX_TABLE_ELEMENTS:
                raise ValueError(f"a Fourier transform of {size} elements is too long")
            matrix = basis(n, n_parts, size, inverse=inverse, onesided=onesided)
            dtype = node.args[0].meta["val"].dtype
            rows = torch.from_numpy(matrix.reshape(n * n_parts, -1)).to(dtype.to_real())
            module.register_buffer(_name_of(key, dtype), rows)


class _Parts(fx.Interpreter):  # type: ignore[misc]  # torch has no types
    """Interpreter of a graph in which a complex value is a pair of real ones."""

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        if hasattr(self.module, _parts_of(target)):
            return _pair(getattr(self.module, _parts_of(target)))
        return super().get_attr(target, args, kwargs)

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        # The assertion names the dtype of a complex tensor before a conversion.
        if n.target is _aten._assert_tensor_metadata.default:
            return None
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if steps := _steps(n):
            return self._transform(n, args[0], steps)
        has_pair = any(
            isinstance(each, _pair_type()) for each in pytree.tree_leaves((args, kwargs))
        )
        if _is_complex(n):
            return self._compute(n, args, kwargs, has_pair)
        if has_pair or not isinstance(n.target, torch._ops.OpOverload):
            return n.target(*args, **kwargs)
        return _record(n.target, *args, **kwargs)

    def _compute(self, n: fx.Node, args: Any, kwargs: Any, has_pair: bool) -> Any:
        """Return the pair that an operator results in."""
        packet = getattr(n.target, "overloadpacket", None)
        if packet in _FORMULAS:
            return _FORMULAS[packet](*args, **kwargs)
        if "alpha" in kwargs:
            kwargs = {**kwargs}
            args = (args[0], _times(args[1], kwargs.pop("alpha")))
        dtype = next(filter(torch.is_complex, pytree.tree_leaves(n.meta["val"]))).dtype.to_real()
        if has_pair or not {"dtype", "device"} & {*kwargs}:
            is_arithmetic = packet in _ARITHMETIC
            as_pair = functools.partial(_as_pair, dtype=dtype, is_arithmetic=is_arithmetic)
            return n.target(*pytree.tree_map(as_pair, args), **kwargs)
        kwargs = {**kwargs, "dtype": dtype}
        real = n.target(*pytree.tree_map(_real_part, args), **kwargs)
        leaves = pytree.tree_leaves((args, kwargs))
        numbers = [each.imag for each in leaves if isinstance(each, complex)]
        return _pair_type()(real, torch.full_like(real, *(numbers or [0.0])))

    def _transform(self, node: fx.Node, x: Any, steps: list[tuple[int, _Key]]) -> Any:
        """Transform along each axis by a product with a matrix."""
        dtype = node.args[0].meta["val"].dtype
        pairs = torch.stack([x.re, x.im], -1) if _is_complex(node.args[0]) else x.unsqueeze(-1)
        for axis, key in steps:
            matrix = getattr(self.module, _name_of(key, dtype))
            n_parts = 1 if key[3] and key[4] else 2
            rows = pairs.movedim(axis, -2).flatten(-2) @ matrix
            pairs = rows.unflatten(-1, (-1, n_parts)).movedim(-2, axis)
        count = math.prod(key[2] for _, key in steps)
        # The matrix of an inverse transform has the factor already.
        factor = count ** (_EXPONENTS[node.args[2]] + steps[0][1][3])
        pairs = pairs * factor if factor != 1 else pairs
        return _pair(pairs) if _is_complex(node) else pairs.squeeze(-1)


def _record(operator_: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an operator of real numbers that stays one in the graph that is traced."""
    mode = get_proxy_mode()
    with disable_proxy_modes_tracing():
        result = operator_(*args, **kwargs)
    args, kwargs = pytree.tree_map(mode.tracer.unwrap_proxy, (args, kwargs))
    proxy = mode.tracer.create_proxy("call_function", operator_, args, kwargs)
    return track_tensor_tree(result, proxy, constant=None, tracer=mode.tracer)


def _steps(node: fx.Node) -> list[tuple[int, _Key]]:
    """Return axes and matrices of a Fourier transform in order; of other nodes, none."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet not in (_aten._fft_r2c, _aten._fft_c2c, _aten._fft_c2r):
        return []
    source, axes, _, option = node.args
    shape = source.meta["val"].shape
    inverse = packet == _aten._fft_c2r or (packet == _aten._fft_c2c and not option)
    steps = [(a % len(shape), (shape[a], 2, shape[a], inverse, False)) for a in axes]
    axis, n = steps[-1][0], shape[axes[-1]]
    if packet == _aten._fft_r2c:
        return [(axis, (n, 1, n, False, bool(option))), *steps[:-1]]
    if packet == _aten._fft_c2r:
        steps[-1] = (axis, (n, 2, option, True, True))
    return steps


def _polar(magnitude: torch.Tensor, angle: torch.Tensor) -> Any:
    return _pair_type()(magnitude * angle.cos(), magnitude * angle.sin())


def _pair_type() -> Any:
    from torch._subclasses.complex_tensor import ComplexTensor

    return ComplexTensor


def _pair(parts: torch.Tensor) -> Any:
    return _pair_type()(parts[..., 0], parts[..., 1])


def _power(base: Any, exponent: Any) -> Any:
    # The formula of other powers has no value for a base of 0.
    if not isinstance(base, _pair_type()) or exponent not in range(1, 9):
        raise NotImplementedError("a power of complex numbers")
    return functools.reduce(operator.mul, [base] * int(exponent))


def _quotient(dividend: Any, divisor: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is not None:
        raise NotImplementedError("a rounded quotient of complex numbers")
    if isinstance(divisor, _pair_type()):
        divisor = _reciprocal(divisor)
        if isinstance(dividend, complex):
            dividend = _as_pair(dividend, divisor.re.dtype, is_arithmetic=True)
        if isinstance(dividend, _pair_type()):
            return dividend * divisor
        return _pair_type()(dividend * divisor.re, dividend * divisor.im)
    if isinstance(divisor, complex):
        if not divisor:
            raise NotImplementedError("a quotient by a complex number of zero")
        return _times(dividend, 1 / divisor)
    return _pair_type()(dividend.re / divisor, dividend.im / divisor)


def _times(value: Any, factor: complex) -> Any:
    is_tensor, is_pair = isinstance(value, torch.Tensor), isinstance(value, _pair_type())
    if not isinstance(factor, complex) or not is_tensor:
        return _pair_type()(value.re * factor, value.im * factor) if is_pair else value * factor
    by_real, by_imaginary = _times(value, factor.real), _times(value, factor.imag)
    if not is_pair:
        return _pair_type()(by_real, by_imaginary)
    return _pair_type()(by_real.re - by_imaginary.im, by_real.im + by_imaginary.re)


def _added_product(product: Callable[..., Any]) -> Callable[..., Any]:
    """Return the formula of a product that is added to a tensor."""

    def compute(addend: Any, *factors: Any, beta: complex = 1, alpha: complex = 1) -> Any:
        result = _times(product(*factors), alpha)
        # torch ignores the tensor then, and any NaN in it.
        return result if beta == 0 else result + _times(addend, beta)

    return compute


def _of_vector(matrix: Any, vector: Any) -> Any:
    return torch.mm(matrix, vector.unsqueeze(-1)).squeeze(-1)


def _put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    parts = ((x.re, values.re), (x.im, values.im))
    return _pair_type()(*(_aten.index_put(x, indices, v, accumulate) for x, v in parts))


def _reciprocal(value: Any) -> Any:
    re, im, scale = _scaled(value)
    norm = (re * re + im * im) * scale
    return _pair_type()(re / norm, -im / norm)


def _sign(value: Any) -> Any:
    re, im, _ = _scaled(value)
    norm = (re * re + im * im).sqrt()
    norm = torch.where(norm == 0, 1.0, norm)
    return _pair_type()(re / norm, im / norm)


def _scaled(value: Any) -> tuple[Any, Any, Any]:
    """Divide both parts by the larger, for squares of large and small numbers are out of range."""
    scale = torch.maximum(value.re.abs(), value.im.abs())
    scale = torch.where((scale == 0) | scale.isinf(), 1.0, scale)
    return value.re / scale, value.im / scale, scale


def _as_pair(value: Any, dtype: torch.dtype, is_arithmetic: bool) -> Any:
    """Return an operand of an operator with a complex result; numbers may be indices or sizes."""
    if isinstance(value, int | float | complex) and is_arithmetic:
        value = torch.tensor([value.real, value.imag], dtype=dtype)
        return _pair(value)
    is_real = isinstance(value, torch.Tensor) and not value.is_complex()
    if is_real and (is_arithmetic or value.is_floating_point()):
        return _pair_type()(value.to(dtype), torch.zeros_like(value, dtype=dtype))
    return value


def _real_part(value: Any) -> Any:
    return value.real if isinstance(value, complex) else value


def _is_complex(node: Any) -> bool:
    return any(
        isinstance(each, torch.Tensor) and each.is_complex()
        for each in pytree.tree_leaves(node.meta.get("val"))
    )


def _parts_of(target: Any) -> str:
    return f"{target}_parts".replace(".", "_")


def _name_of(key: _Key, dtype: torch.dtype) -> str:
    return "fourier_" + "_".join(map(str, (*map(int, key), str(dtype.to_real())[6:])))


#: Functions in place of operators that make complex numbers, or have no formula for a zero.
_FORMULAS: dict[Any, Callable[..., Any]] = {
    _aten.addbmm: _added_product(lambda left, right: torch.bmm(left, right).sum(0)),
    _aten.addmm: _added_product(torch.mm),
    _aten.addmv: _added_product(_of_vector),
    _aten.baddbmm: _added_product(torch.bmm),
    _aten.div: _quotient,
    _aten.index_put: _put,
    _aten.reciprocal: _reciprocal,
    _aten.sgn: _sign,
    _aten.complex: lambda re, im: _pair_type()(*torch.broadcast_tensors(re, im)),
    _aten.mv: _of_vector,
    _aten.polar: _polar,
    _aten.pow: _power,
    _aten.view_as_complex: _pair,
}
