"""Run the corpus: fetch and export its networks, build each, compare and time it, write the page.

    python -m benchmarks.corpus --only 'silero*'
    python -m benchmarks.corpus --failed

A network that has a result of this state of the tuner is not run again. Each result is stored as
soon as it is there, so that an interrupted run continues.
"""

import argparse
import fnmatch
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.corpus import results
from benchmarks.corpus.catalogue import ENTRIES
from benchmarks.corpus.entries import Entry
from benchmarks.corpus.files import Files
from benchmarks.corpus.report import write_page
from benchmarks.corpus.results import Result
from benchmarks.corpus.runner import Limits, Runner

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "networks.md"
_SUMMARY = _ROOT / "docs" / "results" / "corpus.json"


def main() -> None:
    """Run the networks of the command line and write the page."""
    arguments = _parser().parse_args()
    folder: Path = arguments.data_dir
    revision = results.revision()
    stored = folder / "results"
    chosen = [entry for entry in ENTRIES if _is_chosen(entry, arguments)]
    if not chosen:
        sys.exit("no network matches")
    files = Files(folder)
    if not arguments.report:
        known = {entry.name: results.read(stored / f"{entry.name}.json") for entry in chosen}
        missing = [
            entry
            for entry in chosen
            if arguments.again or _must_run(known[entry.name], revision, failed=arguments.failed)
        ]
        files.fetch(missing, lambda line: print(line, flush=True))
        if not arguments.fetch:
            limits = Limits(arguments.time_limit, arguments.memory_limit << 30)
            progress = _Progress(len(missing))
            runner = Runner(files, stored, limits, revision, is_timed=not arguments.untimed)
            runner.run_all(missing, arguments.jobs, progress)
    if not arguments.fetch:
        _write_page(stored, revision)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.corpus", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--only", nargs="+", metavar="PATTERN", help="Run networks of these names.")
    parser.add_argument("--kind", nargs="+", help="Run networks of these kinds.")
    parser.add_argument("--quick", action="store_true", help="Run those that need no download.")
    parser.add_argument("--failed", action="store_true", help="Run again what failed.")
    parser.add_argument("--again", action="store_true", help="Run again what has a result.")
    parser.add_argument("--fetch", action="store_true", help="Fetch and export only.")
    parser.add_argument("--report", action="store_true", help="Write the page only.")
    parser.add_argument(
        "--untimed",
        action="store_true",
        help="Compare outputs only; times stay those of the run before.",
    )
    parser.add_argument("--jobs", type=int, default=1, help="Networks that run at a time.")
    parser.add_argument("--time-limit", type=float, default=900.0, help="Seconds for a network.")
    parser.add_argument("--memory-limit", type=int, default=8, help="GiB for a network.")
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path("build/corpus"),
        help="Folder of downloads, exports and results.",
    )
    return parser


def _is_chosen(entry: Entry, arguments: argparse.Namespace) -> bool:
    return (
        (not arguments.only or any(fnmatch.fnmatch(entry.name, each) for each in arguments.only))
        and (not arguments.kind or entry.kind in arguments.kind)
        and (not arguments.quick or entry.is_quick)
    )


def _must_run(result: Result | None, revision: str, *, failed: bool) -> bool:
    if result is None:
        return not failed
    return (not failed and result.revision != revision) or (failed and not result.is_passed)


class _Progress:
    """A line for each network that ran."""

    def __init__(self, n_networks: int) -> None:
        self.n_networks = n_networks
        self.n_done = 0

    def __call__(self, result: Result) -> None:
        self.n_done += 1
        outcome = f"{result.stage}: {result.error}"
        if result.is_passed:
            ratios = (f"{result.ratio(peer):.2f} x {peer}" for peer in result.peer_secs)
            outcome = ", ".join([f"{result.n_tasks} tasks, agrees", *ratios])
        place = f"[{self.n_done}/{self.n_networks}]"
        print(f"{place} {result.name}: {outcome}, {result.secs:.0f} s", flush=True)


def _write_page(stored: Path, revision: str) -> None:
    """Write the page and the summary, compared with the summary that was committed."""
    path = _SUMMARY.relative_to(_ROOT).as_posix()
    shown = _output(["git", "show", f"HEAD:{path}"])
    if shown is None and _SUMMARY.is_file() and _output(["git", "rev-parse"]) is None:
        shown = _SUMMARY.read_text(encoding="utf-8")
    before = results.parse_summary(shown or "")
    current = dict(before)
    for entry in ENTRIES:
        result = results.read(stored / f"{entry.name}.json")
        if result is not None:
            current[entry.name] = results.with_times_of(result, before.get(entry.name))
    _PAGE.write_text(write_page(ENTRIES, current, before, revision), encoding="utf-8")
    names = [entry.name for entry in ENTRIES]
    results.write_summary(_SUMMARY, (current[name] for name in names if name in current))
    print(f"wrote {_PAGE.relative_to(_ROOT)}", flush=True)


def _output(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=_ROOT, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


if __name__ == "__main__":
    main()
