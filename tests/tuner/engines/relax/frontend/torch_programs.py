"""Programs of torch that apply functions, and the comparison of their results with torch's."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.tuner.engines.relax.networks import UNOPTIMISED, run_network
from tuner.engines.base import ModelFile
from tuner.engines.relax.graph.pipeline import lower

#: Functions of the inputs of a program, each with a tensor or a tuple of tensors, by name.
Functions = Mapping[str, Callable[..., Any]]


class Applied(torch.nn.Module):  # type: ignore[misc]
    """Functions of the same inputs as a module, which has all their results."""

    def __init__(self, functions: Functions) -> None:
        super().__init__()
        self.functions = dict(functions)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Apply the functions."""
        return tuple(each for results in self.results(*inputs).values() for each in results)

    def results(self, *inputs: torch.Tensor) -> dict[str, tuple[torch.Tensor, ...]]:
        """Return the results of each function."""
        results = {name: function(*inputs) for name, function in self.functions.items()}
        return {n: each if isinstance(each, tuple) else (each,) for n, each in results.items()}


def save_program(
    network: Functions | torch.nn.Module,
    folder: Path,
    *inputs: torch.Tensor,
    is_core: bool = False,
) -> ModelFile:
    """Write the program of a module or of some functions; with core operators alone if asked."""
    module = network if isinstance(network, torch.nn.Module) else Applied(network)
    program = torch.export.export(module.eval(), inputs)
    torch.export.save(program.run_decompositions() if is_core else program, folder / "m.pt2")
    names = program.graph_signature.user_inputs
    return ModelFile(
        str(folder / "m.pt2"),
        "pt2",
        {
            name: (tuple(each.shape), str(each.dtype).removeprefix("torch."))
            for name, each in zip(names, inputs, strict=True)
        },
    )


def check_results(functions: Functions, folder: Path, *inputs: torch.Tensor) -> None:
    """Check that the functions of a lowered program have the results of torch, and their dtypes."""
    file = save_program(functions, folder, *inputs)
    module = lower(file, UNOPTIMISED, is_whole=True)
    actual = iter(run_network(module, *(each.numpy() for each in inputs)))
    for name, results in Applied(functions).results(*inputs).items():
        for expected in results:
            np.testing.assert_allclose(
                next(actual), expected.numpy(), rtol=1e-6, err_msg=name, strict=True
            )
    assert not list(actual)


def grouped(*groups: Functions) -> Functions:
    """Return functions of several inputs, each group of them of an input of its own."""
    return {
        f"{name}, input {number}": lambda *inputs, f=function, n=number: f(inputs[n])
        for number, functions in enumerate(groups)
        for name, function in functions.items()
    }


def check_groups(folder: Path, *groups: tuple[Functions, torch.Tensor]) -> None:
    """Check functions, each of one input, in one program of all inputs."""
    functions, inputs = zip(*groups, strict=True)
    check_results(grouped(*functions), folder, *inputs)
