"""Loading of a library in a process of the engine's environment, and calls of it from here.

A process can load only one TVM, so that TVM 0.19 needs its own process. Arrays pass through shared
memory, which costs two copies per call.
"""

import mmap
import os
import weakref
from collections.abc import Mapping
from multiprocessing import reduction
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from tuner.engines.environments import RELAY
from tuner.engines.relay import library_process, shared_arrays
from tuner.errors import TunerError, WorkError
from tuner.library import manifest
from tuner.settings import read_settings
from tuner.workers.spawn_context import WorkerContext

Array = np.ndarray[Any, Any]

_ENDED = "the process of the library has ended; load the library again"


class Library:
    """A compiled network in another process; see :class:`tuner.library.loading.Library`.

    Attributes:
        process: Process of the library; it ends with this object or the process that loaded it.
    """

    def __init__(self, folder: Path) -> None:
        described = manifest.read(folder)
        self.outputs = tuple(described.outputs)
        self.inputs = described.inputs
        self._programs = [program.inputs for program in described.programs]
        settings = read_settings({"engine": RELAY})
        context = WorkerContext(settings.interpreter)
        self._connection, theirs = context.Pipe()
        self.process = context.Process(
            target=library_process.serve,
            args=(str(folder.absolute()), theirs, os.getpid()),
            daemon=True,  # Python joins other threads when it exits
        )
        self.process.start()
        theirs.close()
        weakref.finalize(self, _end, self.process, os.getpid())
        self._signatures = self._started()
        descriptor = reduction.recv_handle(self._connection)
        self._memory = mmap.mmap(descriptor, shared_arrays.n_bytes(self._signatures))
        os.close(descriptor)

    def __call__(
        self, inputs: Mapping[str, Array] | None = None, **named: Array
    ) -> dict[str, Array]:
        """Run the network; see :class:`tuner.library.loading.Library`.

        Raises:
            WorkError: If it failed, or its process ended; an interrupted call ends the process.
        """
        arrays = {**(inputs or {}), **named}
        number = self._number_of(arrays)
        inputs_view, outputs_view = shared_arrays.views(self._signatures[number], self._memory)
        for view, name in zip(inputs_view, self.inputs, strict=True):
            view[...] = arrays[name]
        problem = self._answer_to(number)
        if problem:
            raise WorkError(f"the library failed: {problem}")
        return {name: view.copy() for name, view in zip(self.outputs, outputs_view, strict=True)}

    def _started(self) -> list[shared_arrays.Signature]:
        answer = self._received()
        if isinstance(answer, TunerError):
            raise answer
        signatures: list[shared_arrays.Signature] = answer
        return signatures

    def _answer_to(self, number: int) -> Any:
        try:
            self._connection.send(number)
            return self._received()
        except ConnectionError as error:
            raise WorkError(_ENDED) from error
        except BaseException:
            # The next call would mistake a leftover answer for its own.
            _end(self.process, os.getpid())
            raise

    def _received(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, ConnectionError) as error:
            raise WorkError(_ENDED) from error

    def _number_of(self, arrays: Mapping[str, Array]) -> int:
        """Return the number of the program for arrays of these shapes.

        Raises:
            ValueError: If there is none.
        """
        given = _described(arrays, self.inputs)
        for number, inputs in enumerate(self._programs):
            if given == dict(inputs):
                return number
        choices = "; or ".join(
            ", ".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in inputs.items())
            for inputs in self._programs
        )
        raise ValueError(f"inputs must be {choices}; got {given}")


def load(folder: Path) -> Library:
    """Load a library; see :func:`tuner.library.loading.load`."""
    return Library(folder)


def _described(arrays: Mapping[str, Array], inputs: manifest.Inputs) -> dict[str, Any]:
    """Return shape and dtype by name, if the names are those of the inputs."""
    unknown = sorted(set(arrays) - set(inputs))
    if unknown:
        raise ValueError(f"unknown input {unknown[0]!r}; inputs are {', '.join(inputs)}")
    for name, (shape, dtype) in inputs.items():
        if name not in arrays:
            raise ValueError(f"input {name!r} of shape {shape} and dtype {dtype} is missing")
        if not hasattr(arrays[name], "dtype"):
            given = type(arrays[name]).__name__
            raise ValueError(f"input {name!r} must be an array, got {given}")
    return {name: (tuple(arrays[name].shape), str(arrays[name].dtype)) for name in inputs}


def _end(process: BaseProcess, owner: int) -> None:
    """End the process of a library, unless called in a fork of its owner."""
    if os.getpid() == owner:
        process.kill()
        process.join()
