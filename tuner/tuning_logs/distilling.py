"""Keeping the best lines of each task of a log, and leaving out what failed."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import IO, Any, NamedTuple

from records import log_lines
from tuner.errors import RequestError
from tuner.tuning_logs import ansor, checks, metaschedule
from tuner.tuning_logs.base import BadLine, Entry, Skips
from tuner.tuning_logs.files import read_lines

Rank = tuple[float, ...]


class Ranked(NamedTuple):
    """A line that may be kept: its task, and how good it is, lower is better.

    A line without a task is about others, and is kept.
    """

    task: str
    rank: Rank


class _Held(NamedTuple):
    """A line in a heap, whose smallest is the worst; of equals the later one."""

    badness: Rank
    later: int
    text: str


@dataclass
class Distilled:
    """What became of the lines of a log; ``torn`` is 1 if the last one was cut off."""

    n_read: int = 0
    n_kept: int = 0
    n_tasks: int = 0
    torn: int = 0
    skips: Skips = field(default_factory=Skips)


def distill(
    stream: IO[bytes], rank: Callable[[str], Ranked], top: int, write: Callable[[str], object]
) -> Distilled:
    """Write the best lines of each task, in the order of the log.

    Memory grows with the tasks, not with the lines.

    Args:
        stream: The log.
        rank: Reads a line; raises BadLine for one that is to be left out.
        top: How many lines of each task, at least 1; of equals the earlier ones.
        write: Takes lines with their ends.
    """
    done = Distilled()
    kept: defaultdict[str, list[_Held]] = defaultdict(list)
    for number, text, found in _ranked(stream, rank, done):
        if not found.task:
            write(f"{text}\n")
            continue
        held = _Held(tuple(-each for each in found.rank), -number, text)
        if len(kept[found.task]) < top:
            heapq.heappush(kept[found.task], held)
        else:
            heapq.heappushpop(kept[found.task], held)
    lines = sorted((held for heap in kept.values() for held in heap), key=lambda held: -held.later)
    for held in lines:
        write(f"{held.text}\n")
    done.n_kept, done.n_tasks = len(lines), len(kept)
    return done


def ranker(form: str) -> Callable[[str], Ranked]:
    """Return what ranks the lines of a format: of other tools by the mean of their samples."""
    parsers = {ansor.NAME: ansor.parse, metaschedule.NAME: metaschedule.parse_record}
    parse = parsers.get(form)
    return _OurRanker() if parse is None else lambda text: _rank_entry(parse(text))


def _ranked(
    stream: IO[bytes], rank: Callable[[str], Ranked], done: Distilled
) -> Iterator[tuple[int, str, Ranked]]:
    for line in read_lines(stream):
        done.torn = int(line.torn)
        if line.torn:
            continue
        done.n_read += 1
        try:
            if line.problem:
                raise BadLine(line.problem)
            yield line.number, line.text, rank(line.text)
        except BadLine as error:
            done.skips.add(line.number, str(error))


def _rank_entry(entry: Entry) -> Ranked:
    if entry.run_secs is None:
        raise BadLine("it failed")
    return Ranked(checks.pack([entry.workload, entry.target]), (fmean(entry.run_secs),))


@dataclass
class _OurRanker:
    """Ranks the lines of a log of ours: what was the best first, then by latency."""

    begun: bool = False

    def __call__(self, text: str) -> Ranked:
        """Rank a line.

        Raises:
            RequestError: If the first line is not that of a log that is known.
        """
        try:
            if self.begun:
                return _rank_ours(*log_lines.parse(text))
            log_lines.check_header(text)
        except ValueError as error:
            if self.begun:
                raise BadLine(str(error)) from error
            raise RequestError(f"line 1: {error}") from error
        self.begun = True
        return Ranked("", ())


def _rank_ours(kind: str, fields: dict[str, Any]) -> Ranked:
    if kind != "record":
        return Ranked("", ())
    if not fields["verified"]:
        raise BadLine("it failed" if fields["error_kind"] else "its output was never compared")
    task = checks.pack([fields[name] for name in ("workload", "engine", "target")])
    return Ranked(task, (float(fields["best"] is None), fields["latency"]))
