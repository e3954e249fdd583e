"""Interpreter of programs: expected outputs, and how far a kernel may be from them.

It shares nothing with the compiler of the candidates: no schedule, no code generator, no device.
Blocks over plain loops, which is what unscheduled subgraphs consist of, are evaluated for many
points at once; all other statements run one after the other.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tuner.engines.verification.dtypes import is_bool, is_float
from tuner.engines.verification.interpreter import numbers
from tuner.engines.verification.interpreter.evaluation import (
    Grid,
    Memory,
    Span,
    are_whole,
    sum_of_products,
)
from tuner.engines.verification.interpreter.numbers import UNKNOWN, Number
from tuner.engines.verification.interpreter.program import (
    Axis,
    Bind,
    Block,
    Branch,
    Buffer,
    Call,
    Constant,
    Expression,
    Load,
    Loop,
    Program,
    Statement,
    Store,
    Variable,
    variables,
)
from tuner.engines.verification.interpreter.slabs import Box, slabs
from tuner.errors import WorkError

Array = np.ndarray[Any, Any]

# Points that are evaluated at once, which bounds memory; and for factors of products.
_CHUNK = 1 << 20
_FACTOR_CHUNK = 1 << 22
# Points of the result from which on a product of matrices is fast.
_MIN_ROWS = 64
# Statements that may run one after the other.
_MAX_STEPS = 300_000

_EXTREMES = {"Max": np.maximum, "Min": np.minimum}


class _Reduction(NamedTuple):
    """Reduction of a block over its reduction axes.

    Attributes:
        operation: "Add", or the name of an extreme.
        term: Value that is reduced.
        factors: Both factors of the term and their type, if it is a product; None otherwise.
        dtype: Type of the result.
    """

    operation: str
    term: Expression
    factors: tuple[Expression, Expression, str] | None
    dtype: str


def run(
    program: Program,
    inputs: Mapping[Buffer, Array],
    *,
    independent: bool = True,
    growth: float = 0.0,
) -> list[Number]:
    """Compute the outputs of a program, and the errors that are allowed.

    Args:
        inputs: Values of its inputs, in their own types.
        independent: False if they have few different values; see :func:`numbers.sum_error`.
        growth: For algorithms that compute sums of products from fewer products: how much larger
            the magnitudes that they add are, at most. Nothing is exact then. 0 for others.

    Raises:
        WorkError: If the program contains what has no reference, or takes too long.
    """
    memory: Memory = {
        buffer: Number(inputs[buffer], None, buffer.dtype) for buffer in program.inputs
    }
    kept = {*program.inputs, *program.outputs}
    for boxes in _slabs(program, growth):
        _Run(memory, independent, growth, boxes).execute(program.body, {})
        for buffer in set(memory) - kept:
            del memory[buffer]
    missing = [buffer.name for buffer in program.outputs if buffer not in memory]
    if missing:
        raise WorkError(f"its definition does not write {missing[0]}")
    return [memory[buffer] for buffer in program.outputs]


def _slabs(program: Program, growth: float) -> list[dict[Block, Box]]:
    """Return the slabs that the program is computed in; one of everything if there are no parts."""
    body = program.body
    while len(body) == 1 and isinstance(root := body[0], Block) and not root.axes:
        body = root.body
    blocks = [_block_over_plain_loops(statement) for statement in body]
    if growth or None in blocks:
        return [{}]
    return slabs(program, [block for block in blocks if block is not None])


@dataclass
class _Run:
    """State of a run.

    Attributes:
        memory: Values of buffers.
        independent: See :func:`run`.
        growth: See :func:`run`.
        boxes: Elements of blocks to compute; all of those without an entry.
        n_steps: Statements that ran one after the other.
    """

    memory: Memory
    independent: bool
    growth: float
    boxes: dict[Block, Box]
    n_steps: int = 0

    def execute(self, body: Sequence[Statement], bound: dict[Variable, Number]) -> None:
        """Run statements one after the other."""
        for statement in body:
            block = _block_over_plain_loops(statement)
            if block is not None:
                _BlockRun(self, block, bound).execute()
                continue
            self.n_steps += 1
            if self.n_steps > _MAX_STEPS:
                raise WorkError(
                    f"its definition runs more than {_MAX_STEPS} statements one after the other"
                )
            grid = Grid(0, {}, self.memory, bound)
            match statement:
                case Bind():
                    bound[statement.variable] = grid.evaluate(statement.value)
                case Store():
                    _store(self.memory, grid, statement, grid.evaluate(statement.value))
                case Branch():
                    condition = grid.evaluate(statement.condition)
                    taken = statement.then if bool(condition.value) else statement.otherwise
                    self.execute(taken, dict(bound))
                case Loop():
                    start = int(grid.evaluate(statement.start).value)
                    for value in range(start, start + int(grid.evaluate(statement.extent).value)):
                        inner = Number(np.asarray(value), None, statement.variable.dtype)
                        self.execute(statement.body, {**bound, statement.variable: inner})
                case Block():
                    self._execute_block(statement, bound)

    def _execute_block(self, block: Block, bound: dict[Variable, Number]) -> None:
        grid = Grid(0, {}, self.memory, bound)
        if not bool(grid.evaluate(block.predicate).value):
            return
        values = {axis.variable: grid.evaluate(axis.binding) for axis in block.axes}
        inner = {**bound, **values}
        reduced = [values[axis.variable].value for axis in block.axes if axis.is_reduction]
        if block.init and not any(int(value) for value in reduced):
            self.execute(block.init, dict(inner))
        self.execute(block.body, inner)


def _block_over_plain_loops(statement: Statement) -> Block | None:
    """Return the block under a nest of loops that has one axis for each of them, or None."""
    loops: dict[Variable, Loop] = {}
    while isinstance(statement, Loop):
        if not (isinstance(statement.extent, Constant) and isinstance(statement.start, Constant)):
            return None
        loops[statement.variable] = statement
        if len(statement.body) != 1:
            return None
        (statement,) = statement.body
    if not isinstance(statement, Block) or not _is_plain(statement, loops):
        return None
    return statement


def _is_plain(block: Block, loops: dict[Variable, Loop]) -> bool:
    if not (isinstance(block.predicate, Constant) and block.predicate.value):
        return False
    if not all(isinstance(each, (Store, Bind)) for each in (*block.init, *block.body)):
        return False
    over = []
    for axis in block.axes:
        if isinstance(axis.binding, Constant) and axis.extent == 1:
            continue
        loop = loops.get(axis.binding) if isinstance(axis.binding, Variable) else None
        if loop is None or int(loop.start.value) or int(loop.extent.value) != axis.extent:  # type: ignore[union-attr]
            return False
        over.append(axis.binding)
    return len(over) == len(set(over)) == len(loops) and bool(block.axes)


class _BlockRun:
    """Evaluation of one block for all of its points."""

    def __init__(self, run: _Run, block: Block, bound: dict[Variable, Number]) -> None:
        self._memory = run.memory
        self._independent = run.independent
        self._growth = run.growth
        self._block = block
        self._bound = bound
        self._box = run.boxes.get(block, {})
        self._spatial = [axis for axis in block.axes if not axis.is_reduction]
        self._reduced = [axis for axis in block.axes if axis.is_reduction]

    def execute(self) -> None:
        if not all(map(len, self._box.values())):
            return  # the slab needs nothing of it
        reduction = self._as_reduction()
        if not self._reduced:
            for ranges in _chunks(self._ranges(self._spatial), _CHUNK):
                self._execute_body(self._grid(self._spatial, ranges), self._block.body)
        elif reduction is not None:
            self._reduce(*reduction)
        else:
            self._step_through()

    def _ranges(self, axes: Sequence[Axis]) -> tuple[range, ...]:
        return tuple(self._box.get(axis.variable, range(axis.extent)) for axis in axes)

    def _grid(self, axes: Sequence[Axis], ranges: Sequence[range]) -> Grid:
        spans = {
            axis.variable: Span(dim, part.start, part.stop)
            for dim, (axis, part) in enumerate(zip(axes, ranges, strict=True))
        }
        return Grid(len(axes), spans, self._memory, self._bound)

    def _execute_body(self, grid: Grid, body: Sequence[Statement]) -> None:
        for statement in body:
            if isinstance(statement, Bind):
                grid.bound[statement.variable] = grid.evaluate(statement.value)
            elif isinstance(statement, Store):
                _store(self._memory, grid, statement, grid.evaluate(statement.value))

    def _step_through(self) -> None:
        """Run the body for one point of the reduction axes after the other."""
        n_points = math.prod(axis.extent for axis in self._reduced)
        chunks = list(_chunks(self._ranges(self._spatial), _CHUNK))
        if n_points * len(chunks) > _MAX_STEPS:
            raise WorkError(f"its definition has a reduction of {n_points} steps")
        for ranges in chunks:
            self._execute_body(self._grid(self._spatial, ranges), self._block.init)
            for point in itertools.product(*self._ranges(self._reduced)):
                grid = self._grid(self._spatial, ranges)
                for axis, value in zip(self._reduced, point, strict=True):
                    at = np.asarray(value).reshape((1,) * len(self._spatial))
                    grid.bound[axis.variable] = Number(at, None, axis.variable.dtype)
                self._execute_body(grid, self._block.body)

    def _as_reduction(self) -> tuple[Store, str, Expression] | None:
        """Return the store, the operation and the reduced term of a sum or an extreme, or None."""
        body, init = self._block.body, self._block.init
        if len(body) != 1 or len(init) != 1:
            return None
        (store,), (start,) = body, init
        if not (isinstance(store, Store) and isinstance(start, Store)):
            return None
        update = store.value
        if not isinstance(update, Call) or update.operation not in ("Add", *_EXTREMES):
            return None
        before, term = update.args
        if not (isinstance(before, Load) and before.buffer is store.buffer):
            before, term = term, before
        if not (isinstance(before, Load) and before.buffer is store.buffer):
            return None
        if _loads(term, store.buffer) or is_bool(store.buffer.dtype):
            return None
        return store, update.operation, term

    def _reduce(self, store: Store, operation: str, term: Expression) -> None:
        """Reduce a term for all points of the spatial axes, then store with the initial value."""
        start = self._block.init[0]
        assert isinstance(start, Store)
        factors = _factors(term) if operation == "Add" else None
        reduction = _Reduction(operation, term, factors, store.buffer.dtype)
        limit = _CHUNK if factors is None else _FACTOR_CHUNK
        for ranges in _chunks(self._ranges(self._spatial), limit):
            total = self._total(ranges, reduction)
            grid = self._grid(self._spatial, ranges)
            first = grid.evaluate(start.value)
            value = numbers.apply(operation, (first, total), store.buffer.dtype)
            _store(self._memory, grid, store, value)

    def _total(self, ranges: tuple[range, ...], reduction: _Reduction) -> Number:
        """Reduce a term over all reduction axes, with the errors of its dtype."""
        factors, dtype = reduction.factors, reduction.dtype
        n_terms = math.prod(axis.extent for axis in self._reduced)
        value, error, magnitude = self._sums(ranges, reduction)
        if reduction.operation != "Add":
            return Number(value, error if error.any() else None, dtype)
        if not is_float(dtype):
            return numbers.wrapped(value, dtype, error if error.any() else None)
        if factors is not None and self._growth:
            # The products of such an algorithm mix the terms of neighbouring sums.
            largest = np.full(magnitude.shape, self._growth * magnitude.max(initial=0.0))
            return Number(value, error + numbers.sum_error(value, largest, n_terms, dtype), dtype)
        rounding = numbers.sum_error(
            value, magnitude, n_terms, dtype, independent=self._independent
        )
        if factors is None and not self._independent:
            grids = [
                self._grid([*self._spatial, *self._reduced], part)
                for part in self._parts(ranges, None)
            ]
            rounding = np.minimum(rounding, self._losses(reduction, grids, magnitude))
        return _with_rounding(value, error, magnitude, rounding, dtype)

    def _sums(self, ranges: tuple[range, ...], reduction: _Reduction) -> tuple[Array, Array, Array]:
        """Reduce a term over all reduction axes: values, errors and sums of magnitudes.

        Factors have all of their terms at a time unless those are many: sums of parts of the terms
        would be short products of matrices, each as large as the result.
        """
        n_spatial = len(self._spatial)
        axes = [*self._spatial, *self._reduced]
        totals: dict[tuple[range, ...], tuple[Array, ...]] = {}
        for part in self._parts(ranges, reduction.factors):
            reduced = self._part(self._grid(axes, part), part, reduction)
            within = part[:n_spatial]
            shape = tuple(map(len, within))
            full = tuple(
                np.broadcast_to(each.reshape(each.shape[:n_spatial]), shape) for each in reduced
            )
            before = totals.get(within)
            totals[within] = (
                full if before is None else _combined(reduction.operation, before, full)
            )
        if len(totals) == 1:
            value, error, magnitude = totals.popitem()[1]
            return value, error, magnitude
        kinds = next(iter(totals.values()))
        joined = tuple(np.empty(tuple(map(len, ranges)), each.dtype) for each in kinds)
        for within, total in totals.items():
            at = tuple(
                slice(part.start - whole.start, part.stop - whole.start)
                for part, whole in zip(within, ranges, strict=True)
            )
            for target, each in zip(joined, total, strict=True):
                target[at] = each
        value, error, magnitude = joined
        return value, error, magnitude

    def _parts(
        self, ranges: tuple[range, ...], factors: tuple[Expression, Expression, str] | None
    ) -> Iterator[tuple[range, ...]]:
        """Split a part of the result with all of its terms into parts that fit into memory."""
        reduced = self._ranges(self._reduced)
        whole, n_spatial = (*ranges, *reduced), len(ranges)
        if factors is None:
            yield from _chunks(whole, _CHUNK, keep=n_spatial)
            return
        axes = [*self._spatial, *self._reduced]
        used = [
            [dim for dim, axis in enumerate(axes) if axis.variable in variables(factor)]
            for factor in factors[:2]
        ]
        limit = max(_FACTOR_CHUNK, _MIN_ROWS * math.prod(map(len, reduced)))
        for part in _chunks(whole, limit, n_split=n_spatial, used=used):
            yield from _chunks(part, _FACTOR_CHUNK, keep=n_spatial, used=used)

    def _losses(self, reduction: _Reduction, grids: Sequence[Grid], magnitude: Array) -> Array:
        """Bound the rounding errors of a sum by its terms.

        An addition errs by no more than the smaller of what it adds, and than u times its result.
        Twice the bound for one term after the other covers sums of partial sums.
        """
        n_spatial = len(self._spatial)
        most = numbers.format_of(reduction.dtype).unit_roundoff * magnitude
        most = most.reshape(*magnitude.shape, *[1] * len(self._reduced))
        losses = np.zeros(magnitude.shape)
        for grid in grids:
            extents = grid.extents
            terms = np.broadcast_to(grid.evaluate(reduction.term).value, extents)
            lost = np.minimum(np.abs(terms), most)
            losses = losses + lost.sum(axis=tuple(range(n_spatial, len(extents))))
        return 2.0 * losses

    def _part(
        self, grid: Grid, part: tuple[range, ...], reduction: _Reduction
    ) -> tuple[Array, Array, Array]:
        """Reduce a term on one part of the grid: values, errors and sums of magnitudes."""
        operation, term, factors, dtype = reduction
        n_spatial = len(self._spatial)
        extents = tuple(len(each) for each in part)
        behind = tuple(range(n_spatial, len(part)))
        if factors is not None:
            a, b = grid.evaluate(factors[0]), grid.evaluate(factors[1])
            if _can_multiply(a, b, dtype):
                number, magnitude = sum_of_products(a, b, n_spatial, extents, (factors[2], dtype))
                return number.value, number.errors, magnitude
            return self._in_small_parts(part, reduction)
        number = grid.evaluate(term)
        value = np.broadcast_to(number.value, extents)
        if number.error is not None:
            error = np.broadcast_to(number.error, extents)
        else:
            error = np.zeros((1,) * len(part))
        if operation in _EXTREMES:
            worst = _reduced(np.max, error, behind)
            choose = _EXTREMES[operation]
            return choose.reduce(value, axis=behind, keepdims=True), worst, worst
        with np.errstate(all="ignore"):
            total = value.sum(axis=behind, keepdims=True)
            magnitude = np.abs(value).sum(axis=behind, keepdims=True, dtype=np.float64)
            if value.dtype == np.float64 and not are_whole(value):
                # Smaller than any error, it keeps the sum from being taken for exact.
                error = error + np.finfo(np.float64).tiny
            return total, _reduced(np.sum, error, behind), magnitude

    def _in_small_parts(
        self, part: tuple[range, ...], reduction: _Reduction
    ) -> tuple[Array, Array, Array]:
        """Reduce products that are not sums of finite numbers as any other term."""
        total: tuple[Array, Array, Array] | None = None
        for small in _chunks(part, _CHUNK, keep=len(self._spatial)):
            grid = self._grid([*self._spatial, *self._reduced], small)
            reduced = self._part(grid, small, reduction._replace(factors=None))
            total = reduced if total is None else _combined(reduction.operation, total, reduced)
        assert total is not None
        return total


def _with_rounding(
    value: Array, error: Array, magnitude: Array, rounding: Array, dtype: str
) -> Number:
    """Add the rounding of a sum; sums of exact whole numbers are exact while they are small."""
    exact = (error == 0.0) & (magnitude <= numbers.format_of(dtype).exact_integers)
    if exact.all():
        return Number(value, None, dtype)
    with np.errstate(all="ignore"):
        errors = np.where(exact, 0.0, error + rounding)
    errors = np.where(np.isnan(errors), UNKNOWN, errors)
    form = numbers.format_of(dtype)
    # A partial sum may overflow although the sum does not.
    errors = np.where(magnitude > form.largest, UNKNOWN, errors)
    return Number(value, errors, dtype)


def _combined(
    operation: str, a: tuple[Array, ...], b: tuple[Array, ...]
) -> tuple[Array, Array, Array]:
    if operation == "Add":
        value, error, magnitude = (x + y for x, y in zip(a, b, strict=True))
        return value, error, magnitude
    return _EXTREMES[operation](a[0], b[0]), np.maximum(a[1], b[1]), a[2]


def _reduced(reduce: Any, error: Array, behind: tuple[int, ...]) -> Array:
    result: Array = reduce(error, axis=behind, keepdims=True)
    return result


def _can_multiply(a: Number, b: Number, dtype: str) -> bool:
    if not is_float(dtype):
        return a.error is None and b.error is None
    return bool(np.isfinite(a.value).all() and np.isfinite(b.value).all())


def _factors(term: Expression) -> tuple[Expression, Expression, str] | None:
    """Return both factors of a product and its type; widening casts around it change nothing."""
    while isinstance(term, Call) and term.operation == "Cast" and _is_widening(term):
        (term,) = term.args
    if isinstance(term, Call) and term.operation == "Mul":
        return term.args[0], term.args[1], term.dtype
    return None


def _is_widening(term: Call) -> bool:
    inner = term.args[0].dtype
    if not (is_float(term.dtype) and is_float(inner)):
        return False
    return numbers.format_of(inner).unit_roundoff >= numbers.format_of(term.dtype).unit_roundoff


def _loads(expression: Expression, buffer: Buffer) -> bool:
    match expression:
        case Load():
            return expression.buffer is buffer or any(
                _loads(index, buffer) for index in expression.indices
            )
        case Call():
            return any(_loads(arg, buffer) for arg in expression.args)
        case _:
            return False


def _chunks(
    ranges: tuple[range, ...],
    limit: int,
    *,
    keep: int = 0,
    n_split: int | None = None,
    used: list[list[int]] | None = None,
) -> Iterator[tuple[range, ...]]:
    """Split a grid into parts of at most ``limit`` points.

    Args:
        limit: Largest number of points.
        keep: Number of leading dimensions that are not split.
        n_split: Number of leading dimensions behind which none is split; None to split all.
        used: Dimensions of several smaller grids that are limited, instead of the grid itself.
    """
    groups = used or [list(range(len(ranges)))]
    largest = max(groups, key=lambda dims: math.prod(len(ranges[dim]) for dim in dims))
    n_points = math.prod(len(ranges[dim]) for dim in largest)
    end = len(ranges) if n_split is None else n_split
    splittable = [dim for dim in largest if keep <= dim < end and len(ranges[dim]) > 1]
    if n_points <= limit or not splittable:
        yield ranges
        return
    dim = max(splittable, key=lambda each: len(ranges[each]))
    part, middle = ranges[dim], len(ranges[dim]) // 2
    for half in (part[:middle], part[middle:]):
        halves = (*ranges[:dim], half, *ranges[dim + 1 :])
        yield from _chunks(halves, limit, keep=keep, n_split=n_split, used=used)


def _store(memory: Memory, grid: Grid, store: Store, number: Number) -> None:
    """Assign to the elements of a buffer at all points of a grid."""
    buffer = store.buffer
    if buffer not in memory:
        # Memory that no slab writes is never touched.
        blank = np.zeros(buffer.shape, numbers.held(np.zeros(()), buffer.dtype).dtype)
        memory[buffer] = Number(blank, None, buffer.dtype)
    kept = memory[buffer]
    if number.error is not None and kept.error is None:
        kept = Number(kept.value, np.zeros(buffer.shape), buffer.dtype)
        memory[buffer] = kept
    indices = grid.indices(store.indices)
    shape = np.broadcast_shapes(*(index.shape for index in indices), number.value.shape)
    target: Any = tuple(indices)
    plain = _plain_slices(grid, store)
    if plain is not None:
        target, shape = plain, kept.value[plain].shape
        value = np.broadcast_to(number.value, shape)
    else:
        value = np.broadcast_to(number.value, shape)
    # Numpy assigns no array of one element to a scalar.
    shape = shape if kept.value.shape else ()
    kept.value[target] = value.reshape(shape)
    if kept.error is not None:
        kept.error[target] = np.broadcast_to(number.errors, value.shape).reshape(shape)


def _plain_slices(grid: Grid, store: Store) -> tuple[slice, ...] | None:
    """Return the part of a buffer that a store writes, if its indices are the grid's axes."""
    slices = []
    for dim, index in enumerate(store.indices):
        span = grid.spans.get(index) if isinstance(index, Variable) else None
        if span is None or span.dimension != dim:
            return None
        slices.append(slice(span.start, span.stop))
    return tuple(slices) if len(slices) == grid.n_dimensions else None
