"""Process of this environment that runs a library for another process."""

import mmap
import os
import signal
from multiprocessing import reduction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.engines.relay import shared_arrays
from tuner.errors import TunerError, error_text

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from tuner.engines.relay.network import Library


def serve(folder: str, connection: "Connection[Any, Any]", parent: int) -> None:
    """Load a library, share memory for its arrays, and run it on request.

    The first message holds the signatures of its programs, or the error. Each request is the index
    of a program; its answer is an empty text once the outputs are written, or the error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        library = _load(folder)
    except TunerError as error:
        connection.send(error)
        return
    signatures = [_signature(program) for program in library.programs]
    size = shared_arrays.n_bytes(signatures)
    descriptor = os.memfd_create("tuner-library")
    os.ftruncate(descriptor, size)
    connection.send(signatures)
    reduction.send_handle(connection, descriptor, parent)
    with mmap.mmap(descriptor, size) as memory:
        _answer(library, signatures, connection, memory)


def _load(folder: str) -> "Library":
    from tuner.engines.relay import worker  # noqa: F401  prepares for TVM
    from tuner.engines.relay.network import Library

    return Library(Path(folder))


def _signature(program: Any) -> shared_arrays.Signature:
    return shared_arrays.Signature(tuple(program.inputs.values()), tuple(program.output_specs()))


def _answer(
    library: "Library",
    signatures: list[shared_arrays.Signature],
    connection: "Connection[Any, Any]",
    memory: mmap.mmap,
) -> None:
    while True:
        try:
            number = connection.recv()
            connection.send(_run(library.programs[number], signatures[number], memory))
        except (EOFError, ConnectionError):
            os._exit(0)  # the caller ended


def _run(program: Any, signature: shared_arrays.Signature, memory: mmap.mmap) -> str:
    try:
        inputs, outputs = shared_arrays.views(signature, memory)
        program.copy_inputs(dict(zip(program.inputs, inputs, strict=True)))
        program.run()
        for output, value in zip(outputs, program.fetch(), strict=True):
            output[...] = value
    except Exception as error:  # any error of TVM is reported to the caller
        return error_text(error, 500)
    return ""
