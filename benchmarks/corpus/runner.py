"""Runs of networks in processes of their own, with limits on time and memory."""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from benchmarks.corpus.entries import Entry
from benchmarks.corpus.files import FetchError, Files
from benchmarks.corpus.results import Result, read, write
from tuner.workers.processes.python_command import run_module

_POLL_SECS = 0.5


@dataclass(frozen=True)
class Limits:
    """Limits of one network, of all its processes together."""

    secs: float = 900.0
    n_bytes: int = 8 << 30


@dataclass(frozen=True)
class Runner:
    """Runs networks and stores their results.

    Attributes:
        results: Folder of the results.
        revision: Hash of the tuner.
        is_timed: False to compare outputs only.
    """

    files: Files
    results: Path
    limits: Limits
    revision: str
    is_timed: bool = True

    def run_all(
        self, entries: Sequence[Entry], n_jobs: int, report: Callable[[Result], None]
    ) -> None:
        """Run networks, ``n_jobs`` at a time; each result is stored and reported at once."""
        self.results.mkdir(parents=True, exist_ok=True)
        stopped = threading.Event()
        with (
            tempfile.TemporaryDirectory(prefix="corpus-") as scratch,
            ThreadPoolExecutor(n_jobs) as pool,
        ):
            runs = [pool.submit(self.run, entry, Path(scratch), stopped) for entry in entries]
            try:
                for run in as_completed(runs):
                    report(run.result())
            except BaseException:
                stopped.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def run(self, entry: Entry, scratch: Path, stopped: threading.Event) -> Result:
        """Run one network and store its result, unless ``stopped`` is set before it ends."""
        start = time.monotonic()
        file = scratch / f"{entry.name}.json"
        try:
            reason = self._run(entry, scratch, file, stopped)
            result = read(file) or Result(entry.name, stage="extract")
            if reason and result.stage != "done":
                result.error = reason
        except FetchError as error:
            result = Result(entry.name, stage="fetch", error=str(error))
        result.is_timed = self.is_timed
        result.secs = time.monotonic() - start
        result.date = datetime.now(UTC).date().isoformat()
        result.revision = self.revision
        if not stopped.is_set():
            write(self.results / f"{entry.name}.json", result)
        return result

    def _run(self, entry: Entry, scratch: Path, file: Path, stopped: threading.Event) -> str | None:
        """Run the process of a network; return the reason if it did not end well."""
        folder = scratch / entry.name
        folder.mkdir()
        log = scratch / f"{entry.name}.log"
        command = run_module("benchmarks.corpus.trial", entry.name)
        untimed = [] if self.is_timed else ["untimed"]
        try:
            with log.open("w") as output:
                process = subprocess.Popen(
                    [*command, self.files.reference(entry), str(folder), str(file), *untimed],
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
                try:
                    reason = self._watch(process, stopped)
                finally:
                    _end(process)
            if reason is None and process.returncode:
                lines = log.read_text(errors="replace").strip().splitlines()
                reason = lines[-1][:400] if lines else f"exit status {process.returncode}"
            return reason
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _watch(self, process: subprocess.Popen[bytes], stopped: threading.Event) -> str | None:
        """Wait for a process; return the limit that it exceeds, if it does."""
        end = time.monotonic() + self.limits.secs
        while process.poll() is None:
            if stopped.is_set():
                return "interrupted"
            if time.monotonic() > end:
                return f"takes longer than {self.limits.secs:.0f} s"
            if _memory_bytes(process.pid) > self.limits.n_bytes:
                return f"needs more than {self.limits.n_bytes / 2**30:.0f} GiB of memory"
            time.sleep(_POLL_SECS)
        return None


def _memory_bytes(pid: int) -> int:
    """Return the resident memory of a process and its descendants."""
    total = 0
    for process in _family(pid):
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a process and of its descendants."""
    if process.poll() is None:
        for each in _family(process.pid):
            try:
                os.kill(each.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    process.wait()
