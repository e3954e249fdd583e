"""A layout describes memory: what changes the layout alone leaves memory as it is."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.engines.relax.graph.layout.layouts import Layout, LayoutError, common_factors

SHAPES = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4)


def numbers(shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return a tensor whose elements all differ."""
    return np.arange(math.prod(shape)).reshape(shape)


@st.composite
def permuted(draw: st.DrawFn) -> Layout:
    """A tensor of any shape, with its axes in any order."""
    shape = draw(SHAPES)
    return Layout.permuted(shape, draw(st.permutations(range(len(shape)))))


@given(permuted(), st.data())
def test_reshape_keeps_memory(layout: Layout, data: st.DataObject) -> None:
    """A tensor reshaped, in its new layout, is the same memory."""
    extents = [n for extent in layout.shape for n in ((2, 2) if extent == 4 else (extent,))]
    n_axes = data.draw(st.integers(1, len(extents)))
    cuts = sorted(data.draw(st.integers(0, len(extents))) for _ in range(n_axes - 1))
    groups = zip([0, *cuts], [*cuts, len(extents)], strict=True)
    shape = tuple(math.prod(extents[start:end]) for start, end in groups)

    reshaped = layout.reshape(shape)

    assert reshaped is not None
    assert reshaped.shape == shape
    x = numbers(layout.shape)
    expected = layout.apply(x).ravel()
    np.testing.assert_array_equal(reshaped.apply(x.reshape(shape)).ravel(), expected)


@given(permuted(), st.data())
def test_permutation_keeps_memory(layout: Layout, data: st.DataObject) -> None:
    """A tensor with its axes permuted, in its new layout, is the same memory."""
    axes = data.draw(st.permutations(range(len(layout.shape))))
    x = numbers(layout.shape)

    moved = layout.permute(axes).apply(x.transpose(axes))

    np.testing.assert_array_equal(moved, layout.apply(x))


def test_reshape_and_back_is_the_same_layout() -> None:
    """Channels that were cut and joined again are whole."""
    layout = Layout.permuted((2, 6, 4, 5), (0, 2, 3, 1))

    cut = layout.reshape((2, 2, 3, 4, 5))

    assert cut is not None
    assert cut.permutation == (0, 3, 4, 1, 2)
    assert cut.reshape((2, 6, 4, 5)) == layout


def test_flattened_channels_are_factors_of_one_axis() -> None:
    """Flattening does not move the channels to the front."""
    flat = Layout.permuted((2, 6, 4, 5), (0, 2, 3, 1)).reshape((2, 120))

    assert flat is not None
    assert flat.factors == ((2,), (6, 20))
    assert flat.stored_shape == (2, 20, 6)
    assert not flat.is_whole(1)


def test_whole_axes_are_stored_in_one_dimension() -> None:
    """An axis that is made whole lies where its fastest factor was."""
    flat = Layout(((2,), (6, 20)), ((0, 0), (1, 1), (1, 0)))

    assert flat.whole([1]) == Layout.permuted((2, 120))


def test_shapes_without_common_factors_have_no_layout() -> None:
    """6x4 as 8x3 needs a copy if it is permuted."""
    assert common_factors((6, 4), (8, 3)) is None
    assert Layout.permuted((6, 4), (1, 0)).reshape((8, 3)) is None


def test_axes_that_are_cut_keep_their_extent() -> None:
    """Another extent has no meaning for the factors of an axis."""
    flat = Layout(((2,), (6, 20)), ((0, 0), (1, 1), (1, 0)))

    assert flat.with_shape((5, 1)).stored_shape == (5, 1, 1)
    with pytest.raises(LayoutError, match="factors"):
        flat.with_shape((2, 60))
