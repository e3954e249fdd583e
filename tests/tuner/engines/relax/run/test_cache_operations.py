"""Operations on the caches change no tensor."""

from pathlib import Path

import numpy as np
import pytest
import tvm

from tuner.devices import cpu_caches
from tuner.engines.relax.run import cache_operations


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


@pytest.mark.parametrize("has_fast_flush", [False, True])
def test_an_eviction_takes_any_number_of_tensors(
    monkeypatch: pytest.MonkeyPatch, has_fast_flush: bool
) -> None:
    """Parts of cache lines are among them, and tensors without elements."""
    if has_fast_flush and not cpu_caches.has_fast_flush():
        pytest.skip("this CPU has no clflushopt")
    monkeypatch.setattr(cpu_caches, "has_fast_flush", lambda: has_fast_flush)
    arrays = [np.arange(n, dtype="float32") for n in (0, 1, 16, 17, 5000)]
    tensors = [tvm.runtime.tensor(array) for array in arrays]

    cache_operations.eviction(2)(tensors[0], *tensors)

    for tensor, array in zip(tensors, arrays, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_the_flags_of_the_cpu_tell_its_flush(tmp_path: Path) -> None:
    """A CPU that has another flush only, or a system without the file, has no fast one."""
    flags = tmp_path / "cpuinfo"
    read = cpu_caches.has_fast_flush.__wrapped__

    assert not read(flags)
    flags.write_text("flags : fpu clflush\n")
    assert not read(flags)
    flags.write_text("flags : fpu clflush clflushopt\n")
    assert read(flags)


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
