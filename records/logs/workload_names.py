"""Names of workloads: the SHA-256 of their IR, which every engine writes in a canonical form."""

import hashlib
import re
import zlib

from records.errors import WrongName

# Larger IR is refused: a few compressed bytes may stand for any number of others.
_MAX_IR_BYTES = 256 << 20
_NAME = re.compile(r"[0-9a-f]{64}")
_BEGINNING = re.compile(r"[0-9a-f]{1,63}")


def name_of(ir: bytes) -> str:
    """Return the name of a workload: the SHA-256 of its IR, without its compression by zlib.

    Raises:
        WrongName: If the IR is too large.
    """
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(ir, _MAX_IR_BYTES)
    except zlib.error:
        return hashlib.sha256(ir).hexdigest()
    if not reader.eof:
        raise WrongName(f"the IR of a workload is cut off, or larger than {_MAX_IR_BYTES} bytes")
    return hashlib.sha256(text).hexdigest()


def is_name(text: str) -> bool:
    """Return whether a text is a whole name."""
    return _NAME.fullmatch(text) is not None


def is_beginning(text: str) -> bool:
    """Return whether a text can be the beginning of a name, but not a whole one."""
    return _BEGINNING.fullmatch(text) is not None


def check(name: str, ir: bytes) -> None:
    """Check that a name is that of the IR; no engine gives a text of another form.

    Raises:
        WrongName: If the IR has another name.
    """
    if is_name(name) and name != name_of(ir):
        raise WrongName(f"workload {name} has other IR, whose name is {name_of(ir)}")
