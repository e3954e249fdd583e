"""Features survive the database, and can be stacked in one matrix."""

import zlib

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tuner.cost_models import features


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(0, 6), st.integers(0, 9)),
        elements=st.floats(width=32, allow_nan=True),
    )
)
def test_pack_is_lossless(array: npt.NDArray[np.float32]) -> None:
    """Every bit is restored, including infinity and NaN."""
    restored = features.unpack(features.pack(array))

    assert restored.shape == array.shape
    assert restored.dtype == np.float32
    assert restored.tobytes() == array.tobytes()


def test_unpacked_features_can_be_changed() -> None:
    """The array owns its memory."""
    restored = features.unpack(features.pack(np.zeros((2, 3), np.float32)))

    restored[0, 0] = 1


def test_pack_takes_any_memory_layout() -> None:
    """A transposed view packs by its values."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4)

    np.testing.assert_array_equal(features.unpack(features.pack(array.T)), array.T)


@pytest.mark.parametrize(
    "array", [np.zeros((2, 3)), np.zeros(3, np.float32), np.zeros((1, 70000), np.float32)]
)
def test_pack_refuses_other_types_and_shapes(array: npt.NDArray[np.float32]) -> None:
    """Another type would lose digits, another shape could not be restored."""
    with pytest.raises(ValueError, match=r"^features "):
        features.pack(array)


@given(st.binary(max_size=64))
def test_unpack_refuses_garbage(blob: bytes) -> None:
    """Bytes that were never packed raise ValueError and nothing else."""
    with pytest.raises(ValueError, match="packed features"):
        features.unpack(blob)


@given(st.binary(max_size=64))
def test_unpack_refuses_garbage_behind_a_header(body: bytes) -> None:
    """A valid header is not sufficient."""
    header = features.pack(np.ones((2, 8), np.float32))[:6]

    with pytest.raises(ValueError, match="damaged"):
        features.unpack(header + body)


def test_unpack_refuses_a_cut_or_longer_blob() -> None:
    """A missing or an extra byte is refused."""
    blob = features.pack(np.arange(32, dtype=np.float32).reshape(2, 16))

    for bad in [*(blob[:n] for n in range(len(blob))), blob + b"x"]:
        with pytest.raises(ValueError, match="packed features"):
            features.unpack(bad)


def test_unpack_refuses_more_than_the_header_says() -> None:
    """A small blob cannot allocate much memory."""
    header = features.pack(np.ones((1, 1), np.float32))[:6]

    with pytest.raises(ValueError, match="not 1 x 1"):
        features.unpack(header + zlib.compress(bytes(1 << 20)))


def test_stack_keeps_the_borders() -> None:
    """Candidates of different sizes stay separate."""
    arrays = [np.full((n, 4), n, np.float64) for n in (2, 1, 3)]

    rows, starts, counts = features.stack(arrays)

    assert rows.dtype == np.float32
    assert starts.tolist() == [0, 2, 3]
    assert counts.tolist() == [2, 1, 3]
    np.testing.assert_array_equal(rows[starts, 0], [2, 1, 3])


def test_stack_leaves_its_input_alone() -> None:
    """Repaired values are in the copy."""
    array = np.full((1, 2), np.nan, np.float32)

    features.stack([array])

    assert np.isnan(array).all()
