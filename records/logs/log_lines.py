"""Format and validation of the lines of a log."""

import base64
import json
import math
import statistics
from collections.abc import Mapping
from datetime import datetime
from typing import Any

FORMAT = "subgraph-tuner records"
VERSION = 1

_TEXT, _TEXT_OR_NONE = (str,), (str, type(None))
_NUMBER, _NUMBER_OR_NONE = (int, float), (int, float, type(None))
_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "target": {"fingerprint": _TEXT, "spec": _TEXT, "device": (dict,)},
    "workload": {"hash": _TEXT, "engine": _TEXT, "name": _TEXT, "flop": _NUMBER, "ir": _TEXT},
    "record": {
        "workload": _TEXT,
        "engine": _TEXT,
        "target": _TEXT,
        "trace": _TEXT,
        "trace_hash": _TEXT,
        "module_hash": _TEXT_OR_NONE,
        "run_secs": (list, type(None)),
        "latency": _NUMBER_OR_NONE,
        "clock_factor": _NUMBER_OR_NONE,
        "error_kind": _TEXT_OR_NONE,
        "error_text": _TEXT_OR_NONE,
        "verified": (bool,),
        "max_error": (int, float, str, type(None)),
        "confirmed_secs": (list, type(None)),
        "confirmed_factor": _NUMBER_OR_NONE,
        "conditions": (dict, type(None)),
        "worker": _TEXT,
        "origin": _TEXT_OR_NONE,
        "created": _TEXT,
        "features": _TEXT_OR_NONE,
        "best": (dict, type(None)),
    },
}


def header() -> str:
    """Return the first line of a log."""
    return dump({"format": FORMAT, "version": VERSION})


def dump(fields: Mapping[str, Any]) -> str:
    """Return a line of JSON with sorted keys, so that equal rows give equal bytes."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"


def pack(blob: bytes | None) -> str | None:
    """Return bytes as base64 text."""
    return None if blob is None else base64.b64encode(blob).decode()


def unpack(text: str | None) -> bytes | None:
    """Return the bytes of base64 text; a stray character raises ValueError."""
    return None if text is None else base64.b64decode(text, validate=True)


def pack_error(error: float | None) -> float | str | None:
    """Return a largest difference, with infinity, which JSON lacks, as text."""
    return "inf" if error == math.inf else error


def check_header(line: str) -> None:
    """Check the first line of a log.

    Raises:
        ValueError: If the line does not begin a log, or the log has another version.
    """
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ValueError("not a log of subgraph-tuner records")
    version = fields.get("version")
    if type(version) is not int or version != VERSION:
        raise ValueError(f"this subgraph-tuner reads logs of version {VERSION}, not {version!r}")


def is_whole(line: str) -> bool:
    """Return whether a line without a newline is complete; a truncated object is never JSON."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def parse(line: str) -> tuple[str, dict[str, Any]]:
    """Return the kind and the checked fields of a line after the first.

    Raises:
        ValueError: If it is not a JSON object, or a field is missing, unknown or wrong.
    """
    fields = json.loads(line, parse_constant=_refuse)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    kind = fields.pop("kind", None)
    expected = _FIELDS.get(kind) if isinstance(kind, str) else None
    if expected is None:
        raise ValueError(f"unknown kind {kind!r}")
    if fields.keys() != expected.keys():
        names = ", ".join(sorted(fields.keys() ^ expected.keys()))
        raise ValueError(f"missing or unknown fields of a {kind}: {names}")
    for name, types in expected.items():
        # isinstance would accept a bool as an int.
        if type(fields[name]) not in types:
            raise ValueError(f"{name} of a {kind} has the wrong type")
        if isinstance(fields[name], str) and "\x00" in fields[name]:
            raise ValueError(f"{name} of a {kind} contains NUL")
    return kind, fields


def check(line: str) -> None:
    """Check a line after the first as far as that needs no other line.

    Raises:
        ValueError: If it is malformed.
    """
    kind, fields = parse(line)
    if kind == "workload":
        unpack(fields["ir"])
        float(fields["flop"])
    elif kind == "record":
        record_columns(fields)
        best_flag(fields)
        unpack(fields["features"])


def record_columns(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a record line, except references to other rows.

    Raises:
        ValueError: If samples, latency, difference or time are inconsistent.
    """
    references = ("workload", "engine", "target", "features", "best")
    columns = {name: value for name, value in fields.items() if name not in references}
    for name in ("run_secs", "confirmed_secs"):
        if columns[name] is not None:
            columns[name] = _durations(name, columns[name])
    for name in ("clock_factor", "confirmed_factor"):
        if columns[name] is not None and not 0.0 < columns[name] < math.inf:
            raise ValueError(f"{name} must be finite and positive, got {columns[name]}")
    if columns["run_secs"] is not None:
        median = statistics.median(columns["run_secs"])
        factor = columns["clock_factor"]
        if columns["latency"] != (median if factor is None else median * factor):
            raise ValueError(f"latency {columns['latency']} is not the median of run_secs")
    if isinstance(columns["max_error"], str):
        if columns["max_error"] != "inf":
            raise ValueError(f"max_error must be a number or 'inf', got {columns['max_error']!r}")
        columns["max_error"] = math.inf
    columns["created"] = datetime.fromisoformat(columns["created"])
    if columns["created"].tzinfo is None:
        raise ValueError("created has no time zone")
    return columns


def best_flag(fields: dict[str, Any]) -> tuple[float, bool] | None:
    """Return the latency, seconds, and the confirmed flag of a best record, else None.

    Raises:
        ValueError: If the flag is malformed, or its record is not verified.
    """
    flag = fields["best"]
    if flag is None:
        return None
    if flag.keys() != {"latency", "confirmed"} or type(flag["confirmed"]) is not bool:
        raise ValueError("best must have a latency and a confirmed flag")
    if not fields["verified"]:
        raise ValueError("a record that is not verified cannot be the best")
    return _durations("best", [flag["latency"]])[0], flag["confirmed"]


def _durations(name: str, values: list[Any]) -> list[float]:
    if not values or not all(type(value) in _NUMBER and 0 <= value < math.inf for value in values):
        raise ValueError(f"{name} must be finite seconds, at least one")
    return [float(value) for value in values]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
