"""Models that ``torch.compile`` compiles with the backend ``tuner`` compute what eager computes."""

import copy
import logging
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.cli import ROOT
from tests.tuner.jit.modules import Perceptron, close
from tuner.errors import ModelError
from tuner.jit.options import JitOptions
from tuner.jit.torch.torch_backend import Backend, compile_graph

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]


@pytest.fixture
def backend(data_dir: Path) -> Iterator[Backend]:
    """A backend whose libraries are in the data directory of the module."""
    torch._dynamo.reset()
    with torch.no_grad():
        yield Backend(JitOptions(data_dir=data_dir))


def test_the_backend_is_known_by_its_name(data_dir: Path) -> None:
    """The entry point that torch looks for takes a graph, its inputs and the options."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"]["torch_dynamo_backends"].items()
    assert name == "tuner"
    assert EntryPoint(name, value, "torch_dynamo_backends").load() is compile_graph

    compiled = torch.compile(
        lambda x: x + 1.0, backend=compile_graph, options={"data_dir": data_dir, "strict": True}
    )
    close(compiled(torch.ones(3)), torch.full((3,), 2.0))


def broken(x: Any, *, scale: int = 2) -> Any:
    """Decide by a value, which breaks the graph; return a dictionary."""
    half = x[:, :3]
    total = (x * scale).sum()
    if total > 0:
        half = half + 1.0
    return {"half": half, "rest": [total, x.shape[0], None]}


class Cached(nn.Module):  # type: ignore[misc]
    """A module that writes its input into a buffer at a position, and reads it by indices."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 6))
        self.inner = Perceptron()

    def forward(self, x: Any, indices: Any, at: int) -> Any:
        """Return logits of all rows, and a view of the chosen rows of an argument."""
        self.rows[at : at + 2] = x
        return self.inner(self.rows)[indices], x.view(-1)


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (broken, [((torch.ones(2, 6),), {}), ((-torch.ones(2, 6),), {"scale": 3})]),
        (Cached(), [((torch.ones(2, 6), torch.tensor([3, 0]), at), {}) for at in (0, 1, 2)]),
        (lambda x, p: (x * p, p), [((torch.ones(2), p), {}) for p in (1.5, 2.5, 3.5, 2)]),
    ],
    ids=["breaks", "writes", "numbers"],
)
def test_results_and_effects_are_those_of_eager(
    backend: Backend, function: Any, calls: list[Any]
) -> None:
    """Graph breaks, nested results, views, numbers, and buffers that change in place."""
    is_module = isinstance(function, nn.Module)
    reference = copy.deepcopy(function) if is_module else function
    compiled = torch.compile(function, backend=backend)

    for args, named in calls:
        actual, expected = compiled(*args, **named), reference(*args, **named)
        close(actual, expected)

    assert backend.cache.info().misses > 0
    if is_module:
        close(dict(function.named_buffers()), dict(reference.named_buffers()))


def test_a_new_shape_says_what_it_compiles(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """Each shape is compiled once; from the second on, dynamo traces nothing more."""
    compiled = torch.compile(lambda x: x.reshape(-1, 2).sum(0) * x.shape[0], backend=backend)

    with caplog.at_level(logging.INFO, "tuner.jit"):
        for n_rows in (4, 6, 8, 6, 8):
            x = torch.randn(n_rows, 2)
            close(compiled(x), x.sum(0) * n_rows)

    assert [r.getMessage() for r in caplog.records if "compiled" in r.getMessage()] == [
        f"function is compiled for {n_rows}x2" for n_rows in (4, 6, 8)
    ]
    info = backend.cache.info()
    assert (info.hits, info.currsize) == (2, 3)


def test_modules_that_share_a_graph_keep_their_weights(backend: Backend) -> None:
    """Weights are part of the signature; a library of former weights is dropped."""
    first, second = (Perceptron(seed).eval() for seed in (0, 1))
    compiled = torch.compile(lambda module, x: module(x), backend=backend)
    x = torch.ones(2, 6)

    for module in (first, second, first, second):
        close(compiled(module, x), module(x))
    first.out.weight.mul_(2.0)
    close(compiled(first, x), first(x))

    assert (backend.cache.info().hits, backend.cache.info().currsize) == (2, 2)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (nn.Linear(3, 3), r"needs gradients: .*torch\.no_grad"),
        (lambda x: x + torch.rand_like(x) * 0.0, "draws random numbers"),
        (lambda x: (x.mul_(1.0), x + 1.0), "changes a tensor in place"),
        (lambda x: torch.linalg.eigvals(x.T @ x).real.sum(), "no formula of aten.linalg_eig"),
    ],
)
def test_what_cannot_be_compiled_runs_in_eager(data_dir: Path, function: Any, reason: str) -> None:
    """A warning has the reason, once."""
    torch._dynamo.reset()
    x = torch.ones(2, 3)
    compiled = torch.compile(function, backend=Backend(JitOptions(data_dir=data_dir)))

    with pytest.warns(RuntimeWarning, match=reason):
        result = compiled(x)
    close(result, function(x))
    close(compiled(x), function(x))


def test_strict_options_make_it_an_error(data_dir: Path) -> None:
    """Nothing runs in eager then."""
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: x + torch.rand_like(x),
        backend=Backend(JitOptions(data_dir=data_dir, strict=True)),
    )

    with pytest.raises(
        (ModelError, torch._dynamo.exc.BackendCompilerFailed), match="draws random numbers"
    ):
        compiled(torch.ones(2, 3))
