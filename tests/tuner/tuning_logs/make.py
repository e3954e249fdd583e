"""Lines of logs in the formats of their tools."""

import json
from typing import Any

TRACE: list[Any] = [[["GetSBlock", [], ["matmul", "main"], ["b0"]]], []]
TARGET = {"kind": "llvm", "mcpu": "znver4", "num-cores": 2}
STATE: list[Any] = [[], [["SP", 2, 0, 64, [1, 2, 32], 1]]]


def metaschedule(run_secs: Any = (1e-3, 3e-3), workload: Any = 0, target: Any = TARGET) -> str:
    """Return a record of a MetaSchedule database."""
    samples = list(run_secs) if isinstance(run_secs, tuple) else run_secs
    return json.dumps([workload, [TRACE, samples, target, []]])


def ansor(
    *costs: float, key: str = "k0", error: Any = 0, version: str = "v0.6", **changed: Any
) -> str:
    """Return a line of an Ansor log; ``changed`` replaces its input, its result or its steps."""
    task = [key, "llvm -mcpu=znver4", [2, 64, 64, 0, 0, 0, 0, 0], "", 1, []]
    written = {
        "i": [task, changed.get("state", STATE)],
        "r": [list(costs), error, 0.5, changed.get("time", 1700000000)],
        "v": version,
    }
    return json.dumps(written | {name: changed[name] for name in ("i", "r") if name in changed})
