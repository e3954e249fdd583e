"""The result of a check, and helpers that several checks share."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tuner.errors import summary

State = Literal["ok", "warning", "missing"]

GIB = 2**30
_TOOL_TIMEOUT_SECS = 20.0


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        name: Subject of the check.
        state: ``warning`` if it works, but not well; ``missing`` if it does not work.
        result: State of the subject, or the problem, in one line.
        fix: Instruction that solves the problem; empty without one.
        essential: True if tuning fails without it.
        details: The result for programs.
    """

    name: str
    state: State
    result: str
    fix: str = ""
    essential: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fatal(self) -> bool:
        """True if tuning cannot work in this state."""
        return self.essential and self.state == "missing"

    def as_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints of the check."""
        return {
            "name": self.name,
            "state": self.state,
            "found": self.result,
            "mend": self.fix,
            "essential": self.essential,
            "details": self.details,
        }


def guard(name: str, check: Callable[[], Check], *, essential: bool = True, fix: str = "") -> Check:
    """Run a check; an exception becomes a missing one."""
    try:
        return check()
    except Exception as error:  # one broken thing must not hide the others
        return Check(name, "missing", summary(error), fix, essential)


def run_tool(command: Sequence[str]) -> tuple[str, str]:
    """Run a program; return the reason of a failure, empty without one, and its output."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TOOL_TIMEOUT_SECS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]} does not run: {summary(error)}", ""
    if done.returncode:
        message = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[0]
        return f"{command[0]} fails: {message}", done.stdout
    return "", done.stdout
