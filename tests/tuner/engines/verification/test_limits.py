"""Integer inputs get values that their use allows, and all of these."""

import numpy as np

from tuner.engines.verification import input_sets
from tuner.engines.verification.input_sets import InputSet, InputSpec
from tuner.engines.verification.interpreter.program import (
    Axis,
    Block,
    Buffer,
    Call,
    Constant,
    Expression,
    Load,
    Loop,
    Program,
    Store,
    Variable,
)
from tuner.engines.verification.limits import Highs, Limits

ROWS = Buffer("rows", (5, 3), "int64")
DATA = Buffer("data", (40, 7), "float32")
OUTPUT = Buffer("output", (5,), "float32")


def constant(value: int) -> Constant:
    """Return an index."""
    return Constant(value, "int64")


def over(
    buffer: Buffer, *indices: Expression, value: Expression, axes: tuple[Variable, ...]
) -> Block:
    """Return a block that assigns a value for all values of its axes."""
    extents = dict(zip(indices, buffer.shape, strict=True))
    return Block(
        tuple(Axis(each, extents[each], False, each) for each in axes),
        Constant(1, "bool"),
        (),
        (Store(buffer, indices, value),),
    )


def test_rows_that_index_several_axes_are_limited_by_position() -> None:
    """The first number of a row indexes 40 elements, the second 7, the third none."""
    i = Variable("i", "int64")
    value = Load(DATA, (Load(ROWS, (i, constant(0))), Load(ROWS, (i, constant(1)))))
    program = Program((ROWS, DATA), (OUTPUT,), (over(OUTPUT, i, value=value, axes=(i,)),))

    limits = Limits(program)

    assert limits.highs(ROWS) == Highs(1, (39, 6, None))
    assert limits.low[ROWS] == 0
    assert limits.highs(DATA) is None


def test_an_axis_of_one_row_fixes_no_position() -> None:
    """Its loop has one value, and tells nothing of the numbers in a row."""
    batch, i = Variable("batch", "int64"), Variable("i", "int64")
    rows, output = Buffer("rows", (1, 5, 2), "int64"), Buffer("output", (1, 5), "float32")
    value = Load(DATA, tuple(Load(rows, (batch, i, constant(number))) for number in (0, 1)))
    body = over(output, batch, i, value=value, axes=(batch, i))

    assert Limits(Program((rows, DATA), (output,), (body,))).highs(rows) == Highs(2, (39, 6))


def test_positions_survive_a_cast_and_a_transpose() -> None:
    """Values that are stored in between stay where they index."""
    i, j, k = (Variable(name, "int64") for name in "ijk")
    turned = Buffer("turned", (3, 5), "int32")
    cast = Call("Cast", (Load(ROWS, (k, j)),), "int32")
    value = Load(DATA, (Load(turned, (constant(2), i)), Load(turned, (constant(0), i))))
    blocks = (
        over(turned, j, k, value=cast, axes=(j, k)),
        over(OUTPUT, i, value=value, axes=(i,)),
    )

    limits = Limits(Program((ROWS, DATA), (OUTPUT,), blocks))

    assert limits.highs(ROWS) == Highs(1, (6, None, 39))


def test_a_position_that_varies_is_within_the_smallest_extent() -> None:
    """An index of unknown position limits all."""
    i, j = Variable("i", "int64"), Variable("j", "int64")
    output = Buffer("output", (5, 3), "float32")
    value = Load(DATA, (Load(ROWS, (i, constant(0))), Load(ROWS, (i, j))))
    program = Program((ROWS, DATA), (output,), (over(output, i, j, value=value, axes=(i, j)),))

    assert Limits(program).highs(ROWS) == Highs(1, (6, 6, 6))


def test_inputs_of_a_flat_index_stay_within_their_strides() -> None:
    """An element of (40, 7) is at 7 * row + column, as ScatterND of TVM computes it."""
    i = Variable("i", "int64")
    row, column = (Load(ROWS, (i, constant(number))) for number in (0, 1))
    flat = Call("Add", (Call("Mul", (row, constant(7)), "int64"), column), "int64")
    indices = tuple(
        Call(operation, (flat, constant(7)), "int64") for operation in ("FloorDiv", "FloorMod")
    )
    output = Buffer("output", (40, 7), "float32")
    scatter = Loop(i, constant(0), constant(5), (Store(output, indices, Load(OUTPUT, (i,))),))

    limits = Limits(Program((ROWS, OUTPUT), (output,), (scatter,)))

    assert limits.highs(ROWS) == Highs(1, (39, 6, None))


def test_an_index_leaves_room_for_a_loop() -> None:
    """A window of 3 elements from an index on ends within 40."""
    i, j = Variable("i", "int64"), Variable("j", "int64")
    starts, data = Buffer("starts", (5,), "int64"), Buffer("data", (40,), "float32")
    output = Buffer("output", (5, 3), "float32")
    value = Load(data, (Call("Add", (Load(starts, (i,)), j), "int64"),))
    program = Program((starts, data), (output,), (over(output, i, j, value=value, axes=(i, j)),))

    assert Limits(program).highs(starts) == Highs(0, (37,) * 5)


def test_a_position_that_loops_fix_is_known() -> None:
    """(i + 5) // 5 is 1 for each i below 5."""
    i = Variable("i", "int64")
    second = Call("FloorDiv", (Call("Add", (i, constant(5)), "int64"), constant(5)), "int64")
    value = Load(DATA, (Load(ROWS, (i, second)), constant(0)))
    program = Program((ROWS, DATA), (OUTPUT,), (over(OUTPUT, i, value=value, axes=(i,)),))

    assert Limits(program).highs(ROWS) == Highs(1, (None, 39, None))


def test_drawn_integers_reach_the_largest_of_their_position() -> None:
    """Both ends of the range of each position occur."""
    spec = InputSpec((200, 3), "int64", 0, 39, axis=1, highs=(39, 6, 2))

    (values,) = input_sets.draw(InputSet("whole", 0, (spec,)))

    assert values.max(axis=0).tolist() == [39, 6, 2]
    assert values.min(axis=0).tolist() == [0, 0, 0]


def test_descriptions_by_position_survive_their_text() -> None:
    """The text of a reference file gives an equal set."""
    made = InputSet("real", 1, (InputSpec((2, 3), "int64", 0, 9, axis=0, highs=(9, 4)),))

    assert InputSet.load(made.dump()) == made
    assert np.all(input_sets.draw(made)[0] <= np.array([[9], [4]]))
