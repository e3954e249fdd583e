"""Jitted functions of torch compute what torch computes, and compile each signature once."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tuner
from tests.cli import ROOT, Cli
from tests.tuner.jit.modules import Perceptron, close, eager
from tests.tuner.jit.torch.test_torch_programs import written
from tuner.jit.signature_cache import CacheInfo

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]

Jit = Callable[..., Any]

_OTHER_PROCESS = """
import sys
import torch, tuner
from tests.tuner.jit.modules import Perceptron
module = Perceptron().eval()
jitted = tuner.jit(module, data_dir=sys.argv[1])
x = torch.ones(2, 6)
with torch.no_grad():
    torch.testing.assert_close(jitted(x), module(x))
info = jitted.cache_info()
print(info.misses, info.store_hits)
"""


def counts(info: CacheInfo) -> tuple[int, int, int, int]:
    """Return hits, store hits, misses, and signatures in memory."""
    return info.hits, info.store_hits, info.misses, info.currsize


@pytest.mark.slow("compiles kernels for many seconds")
def test_each_batch_size_is_compiled_once(jit: Jit) -> None:
    """In a loop over two batch sizes, no library is compiled twice.

    From the second size on, a graph for all sizes serves, which loads the first library again.
    """
    module = Perceptron(seed=1).eval()
    jitted = jit(module)

    for n_rows in (4, 4, 3, 4, 3):
        x = torch.randn(n_rows, 6)
        close(jitted(x), eager(module, x))

    info = jitted.cache_info()
    assert counts(info) == (2, 1, 2, 3)
    assert info.seconds_saved > 0.0


@pytest.mark.slow("compiles kernels for many seconds")
def test_another_function_and_another_process_use_the_build_cache(jit: Jit, data_dir: Path) -> None:
    """Neither compiles the same module again."""
    first, second = jit(Perceptron().eval()), jit(Perceptron().eval())
    x = torch.ones(2, 6)

    close(first(x), second(x))
    done = subprocess.run(
        [sys.executable, "-c", _OTHER_PROCESS, str(data_dir)],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip

    assert counts(second.cache_info()) == (0, 1, 0, 1)
    assert done.stdout.split() == ["0", "1"], done.stderr


@pytest.mark.slow("compiles kernels for many seconds")
def test_results_are_never_stale(jit: Jit) -> None:
    """The next call reflects each change of weights, buffers, attributes and layers."""
    module = Perceptron().eval()
    jitted = jit(module)
    x = torch.ones(2, 6)
    jitted(x)

    def replace_weight() -> None:
        module.out.weight = nn.Parameter(torch.randn(3, 5))

    def replace_layer() -> None:
        module.hidden = nn.Linear(6, 5)

    changes: list[Callable[[], Any]] = [
        lambda: torch.optim.SGD(module.parameters(), lr=0.5).step(),
        lambda: module.out.weight.data.copy_(module.out.weight.data * 2.0),
        lambda: setattr(module.out.bias, "data", torch.ones(3)),
        lambda: module.shift.add_(1.0),
        lambda: setattr(module, "scale", 3.0),
        lambda: module.load_state_dict(Perceptron(seed=9).state_dict()),
        replace_weight,
        replace_layer,
    ]
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    for number, change in enumerate(changes):
        change()
        if number == 1:
            # Torch does not count writes through .data; users clear the cache after them.
            jitted.cache_clear()
        close(jitted(x), eager(module, x))
        close(jitted(x), eager(module, x))


@pytest.mark.slow("compiles kernels for many seconds")
def test_results_belong_to_the_caller(jit: Jit) -> None:
    """Neither a later call nor a write into a result changes another result or the library."""
    weights = torch.arange(6.0)
    jitted = jit(lambda x: (x.clone(), weights * 2.0, x + weights))
    x = torch.ones(6)

    first = jitted(x)
    kept = [tensor.clone() for tensor in first]
    for tensor in jitted(x * 5.0):
        tensor.zero_()

    close(list(first), kept)
    close(list(jitted(x)), kept)
    close(x, torch.ones(6))


@pytest.mark.in_ci
@pytest.mark.slow("5 s of builds")
def test_arguments_of_any_layout(jit: Jit) -> None:
    """Strided, misaligned and negated tensors and parameters give the result of torch."""
    jitted = jit(lambda x: x * 2.0 + 1.0)
    base = torch.randn(4, 8)
    views = [
        base,
        base.t().contiguous().t(),
        torch.randn(33)[1:].reshape(4, 8),
        torch.randn(8, 16)[::2, ::2],
        torch.complex(base, base).conj().imag,
        nn.Parameter(base),
    ]

    for view in views:
        close(eager(jitted, view), eager(lambda x: x * 2.0 + 1.0, view))

    assert jitted.cache_info().misses == 1


@pytest.mark.in_ci
@pytest.mark.slow("10 s of builds")
def test_structures_scalars_and_dtypes(jit: Jit) -> None:
    """Nested arguments and results, plain values and integers are part of the signature."""

    def function(pair: Any, word: Any = None, *, power: Any = 2) -> Any:
        total = pair[0] + pair[1]["b"]
        logic = total > 0
        return {"sum": total * power, "rest": [logic, total.long() + 1]}, word, power, total

    jitted = jit(function)
    pair = (torch.randn(3), {"b": torch.randn(3)})

    for options in ({}, {"power": 2}, {"power": 2.0}, {"power": True}, {"word": "x"}):
        actual, expected = jitted(pair, **options), function(pair, **options)
        close((actual[0], actual[3]), (expected[0], expected[3]))
        assert actual[1:3] == expected[1:3]
        assert type(actual[2]) is type(expected[2])

    # Equal programs are one library.
    assert jitted.cache_info().misses == 3


def test_decorators(data_dir: Path) -> None:
    """The decorator takes options; the name and the docstring of a function stay."""

    @tuner.jit(data_dir=data_dir)
    def double(x: Any) -> Any:
        """Twice."""
        return x * 2.0

    assert (double.name, double.__doc__) == ("double", "Twice.")
    close(double(torch.ones(3)), torch.full((3,), 2.0))
    assert tuner.jit(torch.nn.ReLU()).name == "ReLU"


def test_threads_compile_once(jit: Jit) -> None:
    """Eight threads with one new signature compile it once, with right results for each."""
    module = Perceptron(seed=3).eval()
    jitted = jit(module)
    inputs = [torch.full((2, 6), float(number)) for number in range(8)]
    results: dict[int, Any] = {}

    def work(number: int) -> None:
        for _ in range(20):
            results[number] = jitted(inputs[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for number, x in enumerate(inputs):
        close(results[number], eager(module, x))
    info = jitted.cache_info()
    assert (info.misses, info.hits + info.store_hits) == (1, 159)


def test_more_signatures_than_fit(jit: Jit) -> None:
    """The least recently used one is dropped, with one warning."""
    jitted = jit(lambda x: x + 1.0, maxsize=2)
    jitted(torch.ones(1))
    jitted(torch.ones(2))
    jitted(torch.ones(1))

    with pytest.warns(RuntimeWarning, match="more than 2 signatures"):
        jitted(torch.ones(3))
    jitted(torch.ones(1))
    assert counts(jitted.cache_info()) == (2, 0, 3, 2)
    jitted(torch.ones(2))
    assert counts(jitted.cache_info()) == (2, 1, 3, 2)

    jitted.cache_clear()
    assert counts(jitted.cache_info()) == (0, 0, 0, 0)


def test_jitted_functions_are_traced_through(jit: Jit) -> None:
    """A jitted function inside another is compiled with it."""
    module = Perceptron(seed=8).eval()
    inner = jit(module)
    outer = jit(lambda x: inner(x) + 1.0)
    x = torch.ones(2, 6)

    for _ in range(2):
        close(outer(x), eager(module, x) + 1.0)
        # The outer function depends on the module without naming it.
        with torch.no_grad():
            module.out.weight.mul_(3.0)
    assert inner.cache_info().currsize == 0


@pytest.mark.slow("a minute of real tuning")
def test_refresh_finds_better_records(tmp_path: Path) -> None:
    """Tuned libraries replace fallbacks; a second refresh changes nothing."""
    cli = Cli(tmp_path)
    module = Perceptron(seed=2).eval()
    jitted = tuner.jit(module, data_dir=cli.data_dir)
    x = torch.randn(4, 6)
    close(jitted(x), eager(module, x))
    assert jitted.refresh() == 0
    fallbacks = jitted.cache_info().fallbacks
    written(lambda x: eager(module, x), tmp_path, x)

    options = ("--trials", "8", "--trials-per-round", "4", "--cost-model", "random")
    tuned = cli("tune", str(tmp_path / "function.pt2"), *options)
    assert tuned.status == 0, tuned.err

    assert jitted.refresh() == 1
    close(jitted(x), eager(module, x))
    info = jitted.cache_info()
    assert (info.swaps, info.currsize, info.hits) == (1, 1, 1)
    assert info.fallbacks < fallbacks
    assert jitted.refresh() == 0
