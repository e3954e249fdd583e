"""T4, the exchange format of Kernel Tuner and of tools that compare searches, written only."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

NAME = "t4"
_HEAD = '{"schema_version":"1.0.0","metadata":{"timeunit":"milliseconds"},"results":['
_INVALIDITIES = {
    None: "correct",
    "build_error": "compile",
    "build_timeout": "timeout",
    "run_error": "runtime",
    "run_timeout": "timeout",
    "wrong_result": "correctness",
    "worker_lost": "runtime",
}


class T4Writer:
    """Stream of the tuner's own log that writes each record as a result of T4.

    Args:
        write: Function that takes the text.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._targets: dict[str, Any] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._n_results = 0

    def write(self, text: str) -> int:
        """Write the records of whole lines."""
        for line in text.splitlines():
            row = json.loads(line)
            kind = row.get("kind")
            if kind == "target":
                device = {"target": json.loads(row["spec"]), "device": row["device"]}
                self._targets[row["fingerprint"]] = device
            elif kind == "workload":
                self._names[row["engine"], row["hash"]] = row["name"]
            elif kind == "record":
                result = json.dumps(self._result(row), separators=(",", ":"))
                self._write(f",\n{result}" if self._n_results else f"\n{result}")
                self._n_results += 1
        return len(text)

    def _result(self, row: Mapping[str, Any]) -> dict[str, Any]:
        result = {
            "timestamp": row["created"],
            "configuration": {
                "name": self._names[row["engine"], row["workload"]],
                "workload": row["workload"],
                **self._targets[row["target"]],
                "origin": row["origin"],
                "trace": row["trace"],
            },
            "times": {"runtimes": [secs * 1e3 for secs in row["run_secs"] or ()]},
            "invalidity": _INVALIDITIES[row["error_kind"]],
            "correctness": int(row["verified"]),
            "objectives": ["time"],
        }
        if row["latency"] is not None:
            time = {"name": "time", "value": row["latency"] * 1e3, "unit": "ms"}
            result["measurements"] = [time]
        return result


@contextmanager
def open_writer(write: Callable[[str], object]) -> Iterator[T4Writer]:
    """Write one document of T4 from the lines of a log."""
    write(_HEAD)
    yield T4Writer(write)
    write("\n]}\n")
