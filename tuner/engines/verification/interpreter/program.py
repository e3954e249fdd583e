"""Definition of a subgraph in plain Python, independent of the compiler it came from."""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, eq=False)
class Buffer:
    """A tensor that a program reads or writes."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class Constant:
    """A number."""

    value: float | int
    dtype: str


@dataclass(frozen=True, eq=False)
class Variable:
    """A loop variable, or a name for a value."""

    name: str
    dtype: str


@dataclass(frozen=True, eq=False)
class Load:
    """An element of a buffer."""

    buffer: Buffer
    indices: tuple["Expression", ...]

    @property
    def dtype(self) -> str:
        """Type of the element."""
        return self.buffer.dtype


@dataclass(frozen=True, eq=False)
class Call:
    """An operation on values; arithmetic and casts are operations, too."""

    operation: str
    args: tuple["Expression", ...]
    dtype: str


Expression = Constant | Variable | Load | Call


@dataclass(frozen=True, eq=False)
class Store:
    """An assignment to an element of a buffer."""

    buffer: Buffer
    indices: tuple[Expression, ...]
    value: Expression


@dataclass(frozen=True, eq=False)
class Bind:
    """A name for a value, valid in the statements that follow."""

    variable: Variable
    value: Expression


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop from ``start``, ``extent`` times."""

    variable: Variable
    start: Expression
    extent: Expression
    body: tuple["Statement", ...]


@dataclass(frozen=True, eq=False)
class Branch:
    """Statements under a condition, and those under its negation."""

    condition: Expression
    then: tuple["Statement", ...]
    otherwise: tuple["Statement", ...] = ()


@dataclass(frozen=True, eq=False)
class Axis:
    """An iteration axis of a block, its extent, and the value it is bound to."""

    variable: Variable
    extent: int
    is_reduction: bool
    binding: Expression


@dataclass(frozen=True, eq=False)
class Block:
    """Statements over axes; ``init`` runs where all reduction axes are 0."""

    axes: tuple[Axis, ...]
    predicate: Expression
    init: tuple["Statement", ...]
    body: tuple["Statement", ...]


Statement = Store | Bind | Loop | Branch | Block


@dataclass(frozen=True, eq=False)
class Program:
    """A subgraph: its inputs and outputs in the order of the kernel's arguments.

    Attributes:
        inputs: Buffers that it reads.
        outputs: Buffers that it writes.
        fast_math: True if its kernels are compiled with CUDA's fast mathematics.
    """

    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    body: tuple[Statement, ...]
    buffers: tuple[Buffer, ...] = field(default=())
    fast_math: bool = False


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Yield all statements, outer ones first."""
    for statement in body:
        yield statement
        match statement:
            case Loop():
                yield from statements(statement.body)
            case Branch():
                yield from statements(statement.then)
                yield from statements(statement.otherwise)
            case Block():
                yield from statements(statement.init)
                yield from statements(statement.body)
            case _:
                pass


def expressions(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all parts of it, indices of loads included."""
    yield expression
    match expression:
        case Load():
            parts = expression.indices
        case Call():
            parts = expression.args
        case _:
            parts = ()
    for part in parts:
        yield from expressions(part)


def variables(expression: Expression) -> set[Variable]:
    """Return the variables that an expression depends on."""
    return {part for part in expressions(expression) if isinstance(part, Variable)}
