"""Changes of the kernels between two profiles: which got slower, and if their code changed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from tuner.compile.bench.gate import EXIT_CODES, MIN_TURNS, UNDECIDED, Finding, finding
from tuner.errors import RequestError
from tuner.profiling.results import KernelProfile, LibraryProfile, as_json, from_json

Outcome = Literal["slower", "faster", "equal", "unclear", "only in A", "only in B"]
Code = Literal["same", "changed", "other record", ""]


@dataclass(frozen=True)
class KernelChange:
    """A subgraph in two profiles, A and B; times are seconds of all its calls in a run.

    Attributes:
        name: Operators and output shape.
        workload: Hash of the workload; empty for the kernels that are not subgraphs.
        n_calls: Calls in A and B; 0 where it does not run.
        a_secs: Time in A; None where it does not run.
        b_secs: Time in B; None where it does not run.
        cost_secs: Median over the turns of what a run of B spends more than one of A.
        change: Median increase over the turns, as a share of the time in A; None if one lacks it.
        interval: Interval that contains it in 95 of 100 comparisons; None if one lacks it.
        outcome: The interval beside the limit: above, below its negative, between both, or else.
        code: Compiled code of both; another record explains other code. Empty if one lacks it.
    """

    name: str
    workload: str
    n_calls: tuple[int, int]
    a_secs: float | None
    b_secs: float | None
    cost_secs: float
    change: float | None
    interval: tuple[float, float] | None
    outcome: Outcome
    code: Code


@dataclass(frozen=True)
class Changes:
    """Changes from a profile A to a profile B.

    Attributes:
        run: Increase of the time of a run without timers, beside the limit.
        kernels: Subgraphs, the largest cost first.
        differs: Facts about network, target, device, compiler and machine that differ, in A and B.
    """

    a: LibraryProfile
    b: LibraryProfile
    run: Finding
    kernels: tuple[KernelChange, ...]
    differs: Mapping[str, tuple[Any, Any]]

    @property
    def exit_code(self) -> int:
        """Exit status as of ``tuner check``: 4 if a run got slower, 5 if noise left that open."""
        by_outcome = {"failed": EXIT_CODES["slowdown"], "undecided": UNDECIDED}
        return by_outcome.get(self.run.outcome, 0)


def find_changes(a: LibraryProfile, b: LibraryProfile, limit: float) -> Changes:
    """Return the changes from a profile to another one.

    Args:
        a: The older profile.
        b: The newer profile.
        limit: Increase of a time that does not count, as a share.
    """
    kernels = sorted(_changes(a, b, limit), key=lambda change: -change.cost_secs)
    facts = [
        {
            "network": each.model_name,
            "threads": each.n_threads,
            "target": each.target,
            **each.device,
            **each.compiler,
            **{f"{name} of the run": version for name, version in each.versions.items()},
        }
        for each in (a, b)
    ]
    return Changes(
        a=a,
        b=b,
        run=finding("slowdown", _slowdowns(a.turn_secs, b.turn_secs), limit),
        kernels=tuple(kernels),
        differs=differing(*facts),
    )


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the facts that differ, with the values of both."""
    return {
        name: (a.get(name), b.get(name))
        for name in sorted(a.keys() | b.keys())
        if a.get(name) != b.get(name)
    }


def _changes(a: LibraryProfile, b: LibraryProfile, limit: float) -> Iterator[KernelChange]:
    sides = [{kernel.workload: kernel for kernel in each.kernels} for each in (a, b)]
    for workload in dict.fromkeys((*sides[0], *sides[1])):
        then, now = (side.get(workload) for side in sides)
        if then is not None and now is not None:
            yield _change(then, now, limit)
        elif then is not None:
            yield _lone(then, (then.n_calls, 0), (then.secs, None), "only in A")
        elif now is not None:
            yield _lone(now, (0, now.n_calls), (None, now.secs), "only in B")


def _change(then: KernelProfile, now: KernelProfile, limit: float) -> KernelChange:
    slowdown = finding("slowdown", _slowdowns(then.turn_secs, now.turn_secs), limit)
    low, high = slowdown.interval or (0.0, 0.0)
    outcome: Outcome = "unclear"
    if low > limit:
        outcome = "slower"
    elif high < -limit:
        outcome = "faster"
    elif -limit <= low and high <= limit:
        outcome = "equal"
    code: Code = "" if not then.code or not now.code else "changed"
    if code and then.code == now.code:
        code = "same"
    elif then.trace != now.trace:
        code = "other record"
    return KernelChange(
        name=now.name,
        workload=now.workload,
        n_calls=(then.n_calls, now.n_calls),
        a_secs=median(then.turn_secs),
        b_secs=median(now.turn_secs),
        cost_secs=median(
            after - before for before, after in zip(then.turn_secs, now.turn_secs, strict=False)
        ),
        change=slowdown.value,
        interval=(low, high),
        outcome=outcome,
        code=code,
    )


def _lone(
    kernel: KernelProfile,
    n_calls: tuple[int, int],
    secs: tuple[float | None, float | None],
    outcome: Outcome,
) -> KernelChange:
    cost = (secs[1] or 0.0) - (secs[0] or 0.0)
    return KernelChange(kernel.name, kernel.workload, n_calls, *secs, cost, None, None, outcome, "")


def _slowdowns(then: Sequence[float], now: Sequence[float]) -> list[float]:
    """Return the increase in each turn, as a share; a profile may have had fewer turns."""
    # Calls that launch nothing may take no time at all.
    return [
        after / before - 1.0 if before > 0.0 else float(after > 0.0)
        for before, after in zip(then, now, strict=False)
    ]


def read_profile(path: Path) -> LibraryProfile:
    """Read a file that ``tuner profile --json`` wrote.

    Raises:
        RequestError: If it cannot be read, is another file, or has too few turns for an interval.
    """
    try:
        profile = from_json(json.loads(path.read_bytes()))
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise RequestError(
            f"{path} is not a profile of this version of the tuner; write it with "
            "`tuner profile --json --runs 40`"
        ) from error
    turns = [profile.turn_secs, *(kernel.turn_secs for kernel in profile.kernels)]
    if min(map(len, turns)) < MIN_TURNS:
        raise RequestError(f"{path} has too few runs; profile the library with --runs 40 or more")
    return profile


def changes_as_json(changes: Changes) -> dict[str, Any]:
    """Return changes as plain data."""
    return {
        "a": as_json(changes.a),
        "b": as_json(changes.b),
        "run": asdict(changes.run),
        "exit_status": changes.exit_code,
        "differs": changes.differs,
        "kernels": [asdict(change) for change in changes.kernels],
    }
