"""Loading and running of built libraries, in a process of this environment."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.contrib import graph_executor

from tuner.engines.base import NetworkRun
from tuner.engines.relay.codegen.link import files_of
from tuner.errors import RequestError
from tuner.library import manifest
from tuner.library.arrays import read_arrays, write_arrays
from tuner.library.processors import check_library

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Program:
    """A graph of a library with its weights; see :class:`tuner.library.manifest.Program`."""

    inputs: manifest.Inputs
    graph: Any

    def copy_inputs(self, arrays: Mapping[str, Array]) -> None:
        """Copy arrays to the inputs of the graph; unused ones are dropped."""
        for name in self.inputs:
            if self.graph.get_input_index(name) >= 0:
                self.graph.set_input(name, np.asarray(arrays[name], order="C"))

    def run(self) -> None:
        """Run on the copied inputs."""
        self.graph.run()

    def output_specs(self) -> list[tuple[tuple[int, ...], str]]:
        """Return shape and dtype of each output."""
        outputs = [self.graph.get_output(i) for i in range(self.graph.get_num_outputs())]
        return [(tuple(output.shape), str(output.dtype)) for output in outputs]

    def fetch(self) -> list[Array]:
        """Copy the outputs."""
        return [self.graph.get_output(i).numpy() for i in range(self.graph.get_num_outputs())]


class Library:
    """A compiled network; not thread-safe.

    Raises:
        RequestError: If the folder has no library, or the library is damaged.
    """

    def __init__(self, folder: Path) -> None:
        described = manifest.read(folder)
        check_library(described, folder)
        files = (files_of(program.entry) for program in described.programs)
        manifest.verify(folder, described, chain.from_iterable(files))
        self.outputs = described.returned
        self.programs = tuple(
            Program(program.inputs, _load(folder, program.entry)) for program in described.programs
        )

    @property
    def inputs(self) -> manifest.Inputs:
        """Shape and dtype by input name, of the first program."""
        return self.programs[0].inputs

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the network on an array for each input; return an array for each output."""
        program = self.program_for({name: array.shape for name, array in inputs.items()})
        program.copy_inputs(inputs)
        program.run()
        return dict(zip(self.outputs, program.fetch(), strict=True))

    def program_for(self, shapes: Mapping[str, tuple[int, ...]]) -> Program:
        """Return the program for inputs of these shapes.

        Raises:
            RequestError: If no program has these shapes.
        """
        for program in self.programs:
            expected = {name: shape for name, (shape, _) in program.inputs.items()}
            if all(tuple(shapes[name]) == shape for name, shape in expected.items()):
                return program
        raise RequestError(f"no program of the library takes inputs of shapes {dict(shapes)}")


def _load(folder: Path, entry: str) -> Any:
    library, graph, weights = files_of(entry)
    module = tvm.runtime.load_module(str(folder / library))
    loaded = graph_executor.create((folder / graph).read_text(), module, tvm.cpu())
    loaded.load_params((folder / weights).read_bytes())
    return loaded


_loaded: dict[str, Library] = {}


def library_in(folder: str) -> Library:
    """Load a library once per process, so that the turns of a comparison use a warm one."""
    if folder not in _loaded:
        _loaded[folder] = Library(Path(folder))
    return _loaded[folder]


def run_network(request: NetworkRun) -> tuple[float, ...]:
    """Run a library and time it; see :class:`Engine`."""
    library = library_in(request.library)
    arrays = read_arrays(request.inputs)
    program = library.program_for({name: array.shape for name, array in arrays.items()})
    program.copy_inputs(arrays)
    for _ in range(2):
        program.run()
    if request.outputs:
        named = dict(zip(library.outputs, program.fetch(), strict=True))
        write_arrays(request.outputs, named)
    return tuple(_time(program) for _ in range(request.n_runs))


def _time(program: Program) -> float:
    start = time.perf_counter()
    program.run()
    return time.perf_counter() - start
