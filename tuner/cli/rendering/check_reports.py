"""The check of a library as tables, as Markdown and as JUnit XML."""

import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from tuner.cli.console import stdout_console
from tuner.cli.rendering.grid import Column, Grid
from tuner.compile.bench.gate import Checked, Finding, Timing
from tuner.formatting import DASH, counted, milliseconds, percent, printable, short_name

# Characters that begin a mark, a link, an entity, a formula or HTML.
_MARKS = re.compile(r"[\\`*_~\[\]<>&|$#]")
_STYLES = {"passed": "green", "failed": "red", "undecided": "yellow"}
_TIMES = ("Median (ms)", "Mean (ms)", "p90 (ms)", "p99 (ms)", "Runs/s")


def remarks_on(checked: Checked, tune: str, stale: Sequence[str] = ()) -> list[str]:
    """Return lines that say what to do.

    Args:
        tune: Command that tunes the network; empty if its model is elsewhere.
        stale: Notes on records that could be verified.
    """
    lines = []
    if checked.untuned:
        counts = (
            f"{len(checked.untuned)} of {counted(len(checked.described.subgraphs), 'subgraph')}"
        )
        do = f"tune with `{tune}`" if tune else "tune the model that it was built from"
        lines += [f"no record for {counts}; {do}", *stale]
    if any(finding.outcome == "undecided" for finding in checked.findings):
        lines.append(
            f"other work disturbed the {checked.n_turns} turns: repeat the check on a quiet "
            "machine, or with more --turns"
        )
    return list(map(printable, lines))


def show_check(checked: Checked, remarks: Sequence[str]) -> None:
    """Print the outcome of each limit, the latencies, and every untuned subgraph.

    Args:
        remarks: Lines of :func:`remarks_on`.
    """
    from rich.text import Text

    console = stdout_console()
    limits = Grid(
        Column("Check"),
        Column("Result"),
        Column("Value", "number"),
        Column("95% interval", "number", 1),
        Column("Limit", "number"),
    )
    for finding in checked.findings:
        name, outcome, *rest = _finding_cells(finding)
        limits.add(name, Text(outcome, _STYLES[outcome]), *rest)
    console.print(limits)
    if checked.timings:
        times = Grid(
            Column("Runtime"),
            *(Column(name, "number", rank=index) for index, name in enumerate(_TIMES)),
        )
        for timing in checked.timings:
            times.add(*_timing_cells(timing))
        console.print("", times)
    if checked.untuned:
        table = Grid(
            Column("Workload"), Column("Name", "name"), Column("Calls", "number"), title="Untuned"
        )
        for entry in checked.untuned:
            table.add(short_name(entry.workload), entry.name, str(entry.n_calls))
        console.print("", table)
    for line in remarks:
        console.print(
            f"note: {line}", style="yellow", highlight=False, markup=False, soft_wrap=True
        )


def as_markdown(checked: Checked, remarks: Sequence[str]) -> str:
    """Return the tables of a check as Markdown."""
    head = ("Check", "Result", "Value", "95% interval", "Limit")
    parts = [
        f"### {_escaped(checked.described.model_name)}: {_verdict(checked)}\n",
        _table(head, [_finding_cells(finding) for finding in checked.findings]),
    ]
    if checked.timings:
        rows = [_timing_cells(timing) for timing in checked.timings]
        parts.append(_table(("Runtime", *_TIMES), rows))
    if checked.untuned:
        parts.append(
            _table(
                ("Untuned workload", "Name", "Calls"),
                [
                    (short_name(entry.workload), entry.name, str(entry.n_calls))
                    for entry in checked.untuned
                ],
            )
        )
    parts += [f"{_escaped(line)}\n" for line in remarks]
    return "\n".join(parts) + "\n"


def as_junit(checked: Checked, remarks: Sequence[str]) -> str:
    """Return a test case for each limit; one that noise left open is an error."""
    outcomes = [finding.outcome for finding in checked.findings]
    name = printable(checked.described.model_name)
    suite = ET.Element(
        "testsuite",
        name="tuner check",
        tests=str(len(outcomes)),
        failures=str(outcomes.count("failed")),
        errors=str(outcomes.count("undecided")),
    )
    for finding in checked.findings:
        case = ET.SubElement(suite, "testcase", classname=name, name=finding.name)
        if finding.outcome == "passed":
            continue
        tag = "failure" if finding.outcome == "failed" else "error"
        result = ET.SubElement(case, tag, message=_sentence(finding))
        lines = [*remarks]
        if finding.name == "coverage":
            lines = [f"{entry.workload} {entry.name}" for entry in checked.untuned] + lines
        result.text = "\n".join(map(printable, lines))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _verdict(checked: Checked) -> str:
    bad = [finding for finding in checked.findings if finding.outcome != "passed"]
    return "; ".join(map(_sentence, bad)) or "passed"


def _sentence(finding: Finding) -> str:
    _, _, value, interval, limit = _finding_cells(finding)
    if finding.outcome == "undecided":
        return f"{finding.name} {value} ({interval}) may or may not exceed {limit}"
    relation = "is within" if finding.outcome == "passed" else "exceeds"
    if finding.name == "coverage" and finding.outcome == "failed":
        relation = "is below"
    return f"{finding.name} {value} {relation} {limit}"


def _finding_cells(finding: Finding) -> tuple[str, ...]:
    def shown(value: float) -> str:
        if finding.name == "latency":
            return f"{milliseconds(value)} ms"
        return percent(value) if finding.name == "coverage" else f"{value:+.1%}"

    interval = DASH if finding.interval is None else " to ".join(map(shown, finding.interval))
    return finding.name, finding.outcome, shown(finding.value), interval, shown(finding.limit)


def _timing_cells(timing: Timing) -> tuple[str, ...]:
    secs = (timing.median_secs, timing.mean_secs, timing.p90_secs, timing.p99_secs)
    return timing.name, *map(milliseconds, secs), f"{timing.runs_per_sec:,.1f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([_escaped(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _escaped(text: str) -> str:
    return _MARKS.sub(r"\\\g<0>", printable(text))
