"""Lines of a file of results: each is JSON behind a code that only the pack's key makes.

The code is a truncated HMAC with SHA-256 (RFC 2104). A line that was torn, changed, or written for
another pack has a wrong one, and neither it nor what follows it counts.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

#: Format of packs and of results; a runner reads the packs of its own.
FORMAT = 1
_N_DIGITS = 24


def dump(key: str, row: Mapping[str, Any]) -> bytes:
    """Return the line of a row."""
    text = json.dumps(row, separators=(",", ":"), allow_nan=False)
    return f"{_code(key, text.encode())} {text}\n".encode()


def load(key: str, content: bytes) -> tuple[list[dict[str, Any]], int]:
    """Read the rows of a file up to the first damaged line.

    Returns:
        The rows, and the number of bytes that hold them.
    """
    rows: list[dict[str, Any]] = []
    n_bytes = 0
    for line in content.splitlines(keepends=True):
        code, _, text = line.partition(b" ")
        if not line.endswith(b"\n"):
            break
        if not hmac.compare_digest(code, _code(key, text[:-1]).encode()):
            break
        row = _row(text)
        if row is None:
            break
        rows.append(row)
        n_bytes += len(line)
    return rows, n_bytes


def _row(text: bytes) -> dict[str, Any] | None:
    """Return a row; None for one that no runner writes."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    names = ("workload", "candidate", "network")
    if not isinstance(row, dict) or not all(isinstance(row.get(name, ""), str) for name in names):
        return None
    return row if "workload" in row or "candidate" not in row else None


def pack_of(content: bytes) -> str:
    """Return the pack that results say to be of, before anything is checked; empty if none."""
    try:
        row = json.loads(content.partition(b"\n")[0].partition(b" ")[2])
        return str(row["pack"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return ""


def _code(key: str, text: bytes) -> str:
    return hmac.new(key.encode(), text, hashlib.sha256).hexdigest()[:_N_DIGITS]
