"""Loading of a library in a process of the engine's environment, and calls of it from here.

A process can load only one TVM, so that TVM 0.19 needs its own process. Arrays pass through shared
memory, which costs two copies per call.
"""

import fcntl
import mmap
import os
import socket
import subprocess
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tuner.engines.environments import RELAY
from tuner.engines.relay.library import library_process, shared_arrays
from tuner.errors import RequestError, WorkError
from tuner.library import manifest
from tuner.library.wrapper import NamedLibrary
from tuner.settings import read_settings
from tuner.workers import messages
from tuner.workers.processes import process_start

Array = np.ndarray[Any, Any]

_ENDED = "the process of the library has ended; load the library again"


class Library(NamedLibrary):
    """A compiled network in another process; see :class:`tuner.library.loading.Library`.

    Attributes:
        process: Process of the library; it ends with this object or the process that loaded it.
    """

    def __init__(self, folder: Path) -> None:
        described = manifest.read(folder)
        self.outputs = described.returned
        self.inputs = described.inputs
        self._programs = [program.inputs for program in described.programs]
        settings = read_settings({"engine": RELAY})
        self._connection, theirs = socket.socketpair()
        with theirs:
            self.process = process_start.start(
                settings.interpreter,
                None,
                theirs,
                library_process.__name__,
                str(folder.absolute()),
            )
        weakref.finalize(self, _end, self.process, self._connection, os.getpid())
        self._signatures: list[shared_arrays.Signature] = self._received(
            list[shared_arrays.Signature]
        )
        self._memory = self._received_memory(shared_arrays.n_bytes(self._signatures))

    def run_arrays(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Run the network in its process.

        Raises:
            WorkError: If it failed, or its process ended; an interrupted call ends the process.
        """
        number = self._number_of(arrays)
        inputs_view, outputs_view = shared_arrays.views(self._signatures[number], self._memory)
        for view, name in zip(inputs_view, self.inputs, strict=True):
            view[...] = arrays[name]
        problem = self._answer_to(number)
        if problem:
            raise WorkError(f"the library failed: {problem}")
        return {name: view.copy() for name, view in zip(self.outputs, outputs_view, strict=True)}

    def _answer_to(self, number: int) -> str:
        try:
            messages.send(self._connection, messages.encode(number))
            problem: str = self._received(str)
        except OSError as error:
            raise WorkError(_ENDED) from error
        except BaseException:
            # The next call would mistake a leftover answer for its own.
            _end(self.process, self._connection, os.getpid())
            raise
        return problem

    def _received(self, returns: Any) -> Any:
        """Wait for an answer of the process, which may run any code.

        Raises:
            WorkError: If it ended or sent something else.
        """
        try:
            message = messages.receive(self._connection, messages.max_bytes(returns))
            if message is not None:
                return messages.decode(message, returns)
        except messages.GarbageError as error:
            raise WorkError(f"the process of the library sent something else: {error}") from error
        except ConnectionError as error:
            raise WorkError(_ENDED) from error
        raise WorkError(_ENDED)

    def _received_memory(self, n_bytes: int) -> mmap.mmap:
        """Map the memory of the process, which must not shrink: reading it would end this one.

        Raises:
            WorkError: If the process sent something else.
        """
        _, descriptors, _, _ = socket.recv_fds(self._connection, 1, 1)
        try:
            (descriptor,) = descriptors
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                return mmap.mmap(descriptor, n_bytes)
        except (ValueError, OSError) as error:
            raise WorkError(f"the process of the library shares no memory: {error}") from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        raise WorkError("the process of the library shares memory that can shrink")

    def run_on_device(self, *_arguments: object, **_named: object) -> dict[str, Any]:
        """Refuse arrays on a GPU.

        Raises:
            RequestError: Always; the engine has no GPUs.
        """
        raise RequestError("the library runs on a CPU: call it with arrays of NumPy")

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
    """Return shape and dtype by name, if the names match the inputs."""
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


def _end(process: subprocess.Popen[bytes], connection: socket.socket, owner: int) -> None:
    """End the process of a library, unless called in a fork of its owner."""
    connection.close()
    if os.getpid() == owner:
        process.kill()
        process.wait()
