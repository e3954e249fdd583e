"""Numbers, times, traces and the facts of a job as text for people; "-" is unknown."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tuner.schemas import JobSummary, JobView, OutlookView, PickView

DASH = "-"
# Digits of a hash that tell apart the subgraphs of one network.
_N_SHORT_DIGITS = 6
_AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def short_name(workload: str) -> str:
    """Shorten the name of a workload to 16 digits, by which commands find it too."""
    return workload[:16]


def milliseconds(secs: float | None) -> str:
    """Format seconds as milliseconds with four decimals, without the unit."""
    return DASH if secs is None or not math.isfinite(secs) else f"{secs * 1e3:,.4f}"


def short_milliseconds(secs: float | None) -> str:
    """Format seconds as milliseconds with four significant digits, without the unit."""
    return DASH if secs is None or not math.isfinite(secs) else f"{secs * 1e3:,.4g}"


def latency(total_secs: float | None, untuned_secs: float | None) -> str:
    """Format the latency of a network, compared with the untuned one if both are known."""
    if total_secs is None:
        return "latency unknown"
    text = f"{milliseconds(total_secs)} ms"
    if untuned_secs is None:
        return text
    if untuned_secs < total_secs:  # the finals may be timed on a slower machine
        return f"{text}, no gain over {milliseconds(untuned_secs)} ms untuned"
    return f"{text}, {untuned_secs / total_secs:.2f} times as fast as untuned"


def clock(secs: float | None) -> str:
    """Format a duration in seconds as h:mm:ss."""
    if secs is None or not math.isfinite(secs):
        return DASH
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def age(then: datetime | float) -> str:
    """Format the time since a moment, given as an aware time or seconds of the Unix clock."""
    if not isinstance(then, datetime):
        then = datetime.fromtimestamp(then, UTC)
    secs = max((datetime.now(UTC) - then).total_seconds(), 0.0)
    for length, unit in _AGES:
        if secs >= length:
            return f"{secs / length:.0f} {unit} ago"
    return f"{secs:.0f} s ago"


def utc_time(at: datetime) -> str:
    """Format a time in UTC, to the second."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def local_time(at: datetime | None) -> str:
    """Format a time in the time zone of this machine, to the minute."""
    return DASH if at is None else f"{at.astimezone():%Y-%m-%d %H:%M}"


def size(n_bytes: float | None) -> str:
    """Format a number of bytes in the decimal unit that keeps it short."""
    if n_bytes is None:
        return DASH
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"


def count(number: float | None) -> str:
    """Format a whole number with separated thousands."""
    return DASH if number is None else f"{number:,.0f}"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun, which is given in the singular."""
    if number != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith(("ry", "dy")) else f"{noun}s"
    return f"{number:,} {noun}"


def percent(share: float | None) -> str:
    """Format a share from 0 to 1 in percent, with the sign."""
    return DASH if share is None else f"{share:.1%}"


def throughput(gflops: float) -> str:
    """Format billions of operations a second; 0 stands for unknown."""
    return f"{gflops:.1f}" if gflops else DASH


def saving(outlook: OutlookView) -> str:
    """Format the saving that trials are forecast to bring, with its standard deviation."""
    return f"{outlook.saving * 1e3:.2g} ± {outlook.spread * 1e3:.1g} ms"


def spent(job: JobSummary) -> str:
    """Format the trials and the time of a job, with their limits."""
    number = "" if job.budget_trials is None else f"{count(job.spent_trials)} of "
    number += counted(job.spent_trials if job.budget_trials is None else job.budget_trials, "trial")
    limit = "" if job.budget_secs is None else f" of {clock(job.budget_secs)}"
    return f"{number}, {clock(job.spent_secs)}{limit}"


def plain(value: Any) -> str:
    """Format a value of a JSON document for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value)) or "none"
    return "none" if value is None else str(value)


def printable(text: str) -> str:
    """Replace line breaks and control characters by spaces."""
    return "".join(char if char.isprintable() else " " for char in text)


def built_from(record: int | None, variant: str) -> str:
    """Return the record that a subgraph of a library was built from, and its variant."""
    return by_variant("fallback" if record is None else f"record {record}", variant)


def tuned_summary(n_subgraphs: int, n_fallbacks: int, estimated_secs: float | None) -> str:
    """Return how many subgraphs are tuned as text, and the estimated latency if it is known."""
    tuned = f"{n_subgraphs - n_fallbacks} of {counted(n_subgraphs, 'subgraph')} tuned"
    return (
        tuned if estimated_secs is None else f"{tuned}, estimated {milliseconds(estimated_secs)} ms"
    )


def by_variant(name: str, variant: str) -> str:
    """Name a task and the variant of its best record."""
    return f"{name} by {variant}" if variant else name


def source(origin: str | None, variant: str) -> str:
    """Name the source of a record, and the variant that it is of unless the source names it."""
    return by_variant(origin or DASH, "" if variant in (origin or "") else variant)


def told_apart(names: Sequence[str], workloads: Sequence[str]) -> list[str]:
    """Add the first digits of the workload's hash to each name that occurs more than once."""
    repeated = {name for name, number in Counter(names).items() if number > 1}
    return [
        f"{name} {workload[:_N_SHORT_DIGITS]}" if name in repeated else name
        for name, workload in zip(names, workloads, strict=True)
    ]


def trace_lines(trace: str) -> list[str]:
    """Return a trace as a line for each of its instructions, with what was drawn for it behind #.

    A variant has a line of its own above them. What is not a trace of TVM is shown as it is.
    """
    try:
        return _lines_of(json.loads(trace))
    # Claims may hold any text.
    except (ValueError, TypeError, OverflowError, RecursionError):
        return trace.splitlines()


def _lines_of(content: Any) -> list[str]:
    if isinstance(content, dict) and "trace" in content:
        rest = {key: value for key, value in content.items() if key != "trace"}
        return [json.dumps(rest, ensure_ascii=False), *_lines_of(content["trace"])]
    instructions, decisions = content
    drawn = {int(index): decision for index, decision in decisions}
    return [_instruction(each, drawn.get(i)) for i, each in enumerate(instructions)]


def _instruction(instruction: list[Any], decision: Any) -> str:
    kind, inputs, attributes, results = instruction
    arguments = ", ".join(
        item if isinstance(item, str) else json.dumps(item) for item in (*inputs, *attributes)
    )
    left = f"{', '.join(map(str, results))} = " if results else ""
    right = "" if decision is None else f"  # {json.dumps(decision)}"
    return f"{left}{kind}({arguments}){right}"


def target_name(spec: str | None) -> str:
    """Shorten the canonical JSON of a target to its kind and processor; other text is kept."""
    try:
        values = json.loads(spec or "")
        parts = [values["kind"], values.get("arch") or values.get("mcpu") or ""]
        cores = values.get("num-cores")
        n_cores = f", {counted(cores, 'core')}" if cores else ""
        return " ".join(filter(None, parts)) + n_cores
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return spec or DASH


def job_facts(view: JobView) -> list[str]:
    """Return the lines below the table of a job: state, network, target, budget, forecast."""
    job = view.job
    n_open = sum(task.latency_secs is None for task in view.tasks)
    latency = f"{milliseconds(job.total_latency_secs)} ms estimated in total"
    if view.untuned_latency_secs is not None:
        latency += f", {milliseconds(view.untuned_latency_secs)} ms untuned"
    if n_open:
        latency = f"unknown: no best record yet for {n_open} of {counted(len(view.tasks), 'task')}"
    facts = [
        ("job", f"{job.id}, {job.state}" + (f": {job.message}" if job.message else "")),
        ("changed", f"{job.updated.astimezone():%Y-%m-%d %H:%M:%S %Z}"),
        ("network", job.network or job.name),
        ("target", f"{job.target} on {job.device or 'an unknown device'}"),
        ("objective", f"{job.objective}, seed {job.seed}"),
        ("spent", spent(job)),
        ("latency", latency),
    ]
    if view.outlook is not None:
        n_trials = view.outlook.n_trials
        more = f"{counted(n_trials, 'more trial')} save{'s' if n_trials == 1 else ''}"
        facts.append(("forecast", f"{more} {saving(view.outlook)}"))
    if view.last_pick is not None:
        facts.append(("last pick", _pick_line(view.last_pick)))
    return [f"{label:<10} {text}" for label, text in facts]


def task_name(pick: PickView) -> str:
    """Name the task of a pick."""
    if pick.task is None:
        return f"task {pick.task_id} of another network"
    return f"task {pick.task_id} ({pick.task_name})"


def _pick_line(pick: PickView) -> str:
    return (
        f"number {pick.sequence}: {task_name(pick)}, {counted(pick.n_trials, 'trial')}, "
        f"{pick.reason or 'no reason stored'}{'' if pick.done else ' (open)'}"
    )
