"""Operations on the caches change no tensor."""

import numpy as np
import pytest
import tvm

from tuner.engines.relax import cache_operations

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]


def test_every_core_reads_the_first_word_of_each_of_its_lines() -> None:
    """The maximum of each share proves that it was read."""
    kernel = cache_operations.read_lines(2, 8, 16)
    values = np.arange(2 * 8 * 16, dtype="float32").reshape(2, 8, 16)
    result = tvm.runtime.empty((2,), "float32")

    kernel(tvm.runtime.tensor(values), result)

    np.testing.assert_array_equal(result.numpy(), values[:, :, 0].max(axis=1))


def test_one_word_of_every_whole_line_is_rewritten() -> None:
    """With another key than 0 the words that are stored show."""
    for n_words in (16, 40, 16 * 7 + 1):
        words = tvm.runtime.tensor(np.zeros(n_words, "int32"))

        cache_operations.rewrite_lines(2)(words, 5)

        expected = np.zeros(n_words, "int32")
        expected[: n_words // 16 * 16 : 16] = 5
        np.testing.assert_array_equal(words.numpy(), expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool", "int64"])
@pytest.mark.parametrize("shape", [(), (3,), (5, 7, 11), (1, 64, 64)])
def test_no_operation_changes_a_value(dtype: str, shape: tuple[int, ...]) -> None:
    """Tensors of all dtypes and sizes keep their values, those below a cache line too."""
    values = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    tensor = tvm.runtime.tensor(values)
    operations = cache_operations.operations()

    operations.rewrite(tensor)
    operations.sweep(0)
    operations.sweep(3)
    operations.evict([tensor])

    np.testing.assert_array_equal(tensor.numpy(), values)
