"""Distillation of a log: the best lines of each task, without failed ones."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import IO, Any, NamedTuple

from records.logs import log_lines
from tuner.errors import RequestError
from tuner.tuning_logs import ansor, metaschedule
from tuner.tuning_logs.base import BadLine, Entry, Skips, canonical_json
from tuner.tuning_logs.files import read_lines

Rank = tuple[float, ...]


class Ranked(NamedTuple):
    """A line with its task and rank, lower is better.

    A line without a task, such as a header, is always kept.
    """

    task: str
    rank: Rank


class _HeapLine(NamedTuple):
    """A line in a heap that is ordered from the worst line up; of equal ones the later is worse."""

    negative_rank: Rank
    negative_number: int
    text: str


@dataclass
class Distilled:
    """Counts of the lines of a distilled log; ``torn`` is 1 if the last one was cut off."""

    n_read: int = 0
    n_kept: int = 0
    n_tasks: int = 0
    torn: int = 0
    skips: Skips = field(default_factory=Skips)


def distill(
    stream: IO[bytes], rank: Callable[[str], Ranked], top: int, write: Callable[[str], object]
) -> Distilled:
    """Write the best lines of each task, in the order of the log.

    Memory grows with the number of tasks, not of lines.

    Args:
        rank: Function that parses and ranks a line; it raises BadLine to leave a line out.
        top: Maximum number of lines per task, at least 1; ties go to the earlier line.
        write: Function that receives each line with its newline.
    """
    counts = Distilled()
    heaps: defaultdict[str, list[_HeapLine]] = defaultdict(list)
    for number, text, ranked in _ranked(stream, rank, counts):
        if not ranked.task:
            write(f"{text}\n")
            continue
        line = _HeapLine(tuple(-value for value in ranked.rank), -number, text)
        if len(heaps[ranked.task]) < top:
            heapq.heappush(heaps[ranked.task], line)
        else:
            heapq.heappushpop(heaps[ranked.task], line)
    lines = sorted(
        (line for heap in heaps.values() for line in heap), key=lambda line: -line.negative_number
    )
    for line in lines:
        write(f"{line.text}\n")
    counts.n_kept, counts.n_tasks = len(lines), len(heaps)
    return counts


def ranker(form: str) -> Callable[[str], Ranked]:
    """Return a function that ranks the lines of a format; other tools' by the mean sample."""
    parsers = {ansor.NAME: ansor.parse, metaschedule.NAME: metaschedule.parse_record}
    parse = parsers.get(form)
    return _TunerRanker() if parse is None else lambda text: _rank_entry(parse(text))


def _ranked(
    stream: IO[bytes], rank: Callable[[str], Ranked], counts: Distilled
) -> Iterator[tuple[int, str, Ranked]]:
    for line in read_lines(stream):
        counts.torn = int(line.torn)
        if line.torn:
            continue
        counts.n_read += 1
        try:
            if line.problem:
                raise BadLine(line.problem)
            yield line.number, line.text, rank(line.text)
        except BadLine as error:
            counts.skips.add(line.number, str(error))


def _rank_entry(entry: Entry) -> Ranked:
    if entry.run_secs is None:
        raise BadLine("it failed")
    return Ranked(canonical_json([entry.workload, entry.target]), (fmean(entry.run_secs),))


@dataclass
class _TunerRanker:
    """Ranks lines of the tuner's own format: the best record first, then by latency."""

    has_header: bool = False

    def __call__(self, text: str) -> Ranked:
        """Rank a line.

        Raises:
            RequestError: If the first line is not the header of a known version.
        """
        try:
            if self.has_header:
                return _rank_record(*log_lines.parse(text))
            log_lines.check_header(text)
        except ValueError as error:
            if self.has_header:
                raise BadLine(str(error)) from error
            raise RequestError(f"line 1: {error}") from error
        self.has_header = True
        return Ranked("", ())


def _rank_record(kind: str, fields: dict[str, Any]) -> Ranked:
    if kind != "record":
        return Ranked("", ())
    if not fields["verified"]:
        raise BadLine("it failed" if fields["error_kind"] else "its output was never compared")
    task = canonical_json([fields[name] for name in ("workload", "engine", "target")])
    return Ranked(task, (float(fields["best"] is None), fields["latency"]))
