"""Process of this environment that runs a library for another process."""

import fcntl
import mmap
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.engines.relay.library import shared_arrays
from tuner.errors import TunerError, error_text
from tuner.workers import messages

if TYPE_CHECKING:
    from tuner.engines.relay.network import Library


def serve(descriptor: int, folder: str) -> None:
    """Load a library, share memory for its arrays, and run it on request.

    The first message holds the signatures of its programs, or the error. Each request is the index
    of a program; its answer is an empty text once the outputs are written, or the error.

    Args:
        descriptor: File descriptor of the connection to the caller, which ends the process.
    """
    os.set_inheritable(descriptor, False)
    connection = socket.socket(fileno=descriptor)
    try:
        from tuner.engines.relay import worker  # noqa: F401  prepares for TVM
        from tuner.engines.relay.network import Library

        library = Library(Path(folder))
    except TunerError as error:
        messages.send(connection, messages.encode_error(error))
        return
    signatures = [
        shared_arrays.Signature(tuple(program.inputs.values()), tuple(program.output_specs()))
        for program in library.programs
    ]
    size = shared_arrays.n_bytes(signatures)
    shared = os.memfd_create("tuner-library", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(shared, size)
    fcntl.fcntl(shared, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    messages.send(connection, messages.encode(signatures))
    socket.send_fds(connection, [b"m"], [shared])
    with mmap.mmap(shared, size) as memory, suppress(OSError):
        _answer(library, signatures, connection, memory)
    os._exit(0)


def _answer(
    library: "Library",
    signatures: list[shared_arrays.Signature],
    connection: socket.socket,
    memory: mmap.mmap,
) -> None:
    while (request := messages.receive(connection)) is not None:
        number = messages.decode(request, int)
        problem = _run(library.programs[number], signatures[number], memory)
        messages.send(connection, messages.encode(problem))


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
