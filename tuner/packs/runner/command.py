"""The command line of a pack: ``python PACK run``, and the process that watches measurements."""

import argparse
import ctypes
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tuner.packs import result_lines
from tuner.packs.runner.compilers import Compilers, compile_for, compiled_beside, end_file
from tuner.packs.runner.contents import Pack
from tuner.packs.runner.driver import CudaError, Driver
from tuner.packs.runner.measure import (
    DeviceBroken,
    Session,
    WrongDevice,
    measure,
    results_of,
    times_of,
)
from tuner.packs.runner.nvml import Nvml
from tuner.packs.runner.service import Service, ServiceError, serve

# Status of a measuring process that lost its device, and of one that cannot measure at all.
_BROKEN, _REFUSED = 3, 2
_POLL_SECS, _PROGRESS_SECS = 0.1, 2.0
_PR_SET_PDEATHSIG = 1
# Share of the time that belongs to finals in the networks.
_FINALS_SHARE = 0.2


class RunError(Exception):
    """The pack cannot be measured; the text says why."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    parser = argparse.ArgumentParser(
        description="Measure the compiled candidates of this pack on the GPU of this machine. It "
        "needs Python 3.10, NumPy and the NVIDIA driver, no network, and no other package.",
        epilog="Example: python bert.pyz run --minutes 5 --out bert.results. Then take the results "
        "home: tuner pack import bert.results.",
    )
    parser.set_defaults(pack=sys.argv[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="run")
    run = commands.add_parser(
        "run", help="measure the candidates without a result; an interrupted run goes on"
    )
    run.add_argument(
        "--minutes", type=float, default=5.0, help="time for measurements [default: 5]"
    )
    run.add_argument("--out", type=Path, help="file of the results [default: beside the pack]")
    run.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECS",
        help="time after which a candidate is killed [default: 30]",
    )  # fmt: skip
    run.add_argument(
        "--no-compile", dest="compile", action="store_false",
        help="measure what is in the pack alone, also where Triton could compile more",
    )  # fmt: skip
    run.add_argument("--with-parent", action="store_true", help=argparse.SUPPRESS)
    _add_serve(commands)
    commands.add_parser("describe")
    inner = commands.add_parser("measure")
    inner.add_argument("--out", type=Path, required=True)
    inner.add_argument("--compiled", type=Path)
    inner.add_argument("--until", type=float, required=True)
    inner.add_argument("--finals-until", type=float, required=True)
    commands.add_parser("compile").add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    pack = Pack(Path(given.pack))
    try:
        if given.command == "measure":
            ends = (given.until, given.finals_until)
            sys.exit(_measure(Session(pack, given.out, given.compiled, *ends)))
        if given.command == "compile":
            compile_for(pack, given.folder)
            return
        if given.command == "describe":
            driver = Driver()
            device = driver.describe()
            print(json.dumps(device | Nvml(device["uuid"]).identity()))
            return
        if given.command == "serve":
            _serve(pack, given)
            return
        if "id" not in pack.index:
            raise RunError("this program has no candidates: it measures packs of a service")
        if given.with_parent:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        out = given.out or pack.path.with_suffix(".results")
        with _compilers(pack, out, given.compile) as compilers:
            status = _run(pack, out, 60.0 * given.minutes, (given.timeout, compilers))
        sys.exit(status)
    except (RunError, ServiceError, CudaError, OSError) as error:
        sys.exit(f"{pack.path.name}: {error}")


def _add_serve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "serve", help="measure the packs that a tuner service offers, until interrupted"
    )
    parser.add_argument("--server", required=True, metavar="URL", help="URL of the service")
    parser.add_argument(
        "--token", help="token with the scope measure; prefer the variable TUNER_TOKEN"
    )
    parser.add_argument(
        "--name", default=socket.gethostname(), help="name of this machine [default: its host name]"
    )
    parser.add_argument(
        "--folder", type=Path, help="folder for packs [default: in the cache of this user]"
    )
    parser.add_argument("--timeout", metavar="SECS", help="see run")
    parser.add_argument("--no-compile", action="store_true", help="see run")


def _serve(pack: Pack, given: argparse.Namespace) -> None:
    """Measure packs of a service.

    Raises:
        ServiceError: If there is no GPU, or the service refuses this machine.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = given.folder or cache / "subgraph-tuner" / "packs"
    service = Service(given.server.rstrip("/"), given.token or os.environ.get("TUNER_TOKEN", ""))
    if not service.url.startswith(("http://", "https://")):
        raise ServiceError(f"{service.url!r} is not the URL of a service")
    options = [f"--timeout={given.timeout}"] if given.timeout else []
    options += ["--no-compile"] if given.no_compile else []
    try:
        serve(pack.path.resolve(), service, given.name, folder, options)
    except KeyboardInterrupt:
        sys.exit(130)


def _measure(session: Session) -> int:
    """Measure in this process; return its status."""
    # Nothing may stay on the GPU when the process that watches is killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        measure(session)
    except DeviceBroken as error:
        print(error, file=sys.stderr)
        return _BROKEN
    except (CudaError, WrongDevice) as error:
        print(error, file=sys.stderr)
        return _REFUSED
    return 0


@contextmanager
def _compilers(pack: Pack, out: Path, compiles: bool) -> Iterator[Compilers | None]:
    """Yield processes that compile further candidates, if there are any."""
    compilers = None
    if compiles and any(pack.sources(each["workload"]) for each in pack.workloads):
        try:
            compilers = Compilers(pack, out)
        except OSError as error:
            _say(f"note: nothing is compiled here: {error}")
    folder = compiled_beside(pack)
    if compilers is None and folder.is_dir():
        end_file(folder, out).touch()
    try:
        yield compilers
    finally:
        if compilers is not None:
            compilers.close()


def _run(pack: Pack, out: Path, secs: float, given: tuple[float, Compilers | None]) -> int:
    """Have processes measure until all is done or the time is over; return the exit status.

    Args:
        out: File of the results.
        given: Seconds after which a candidate is killed, and what compiles further ones.

    Raises:
        RunError: If nothing can be measured.
    """
    key, started, (timeout_secs, compilers) = pack.index["key"], time.time(), given
    rows = _resume(pack, out)
    n_before = len(results_of(rows))
    n_all = sum(len(workload["candidates"]) for workload in pack.workloads)
    _say(f"Pack {pack.index['id']}: {n_all} candidates, {n_before} have results in {out}")
    interrupted, status, text = False, 0, ""
    end = started + secs
    until = end - _FINALS_SHARE * secs * bool(pack.networks)
    while time.time() < end:
        n_rows = len(rows)
        try:
            status, text = _watch(pack, out, (until, end), (timeout_secs, n_all, compilers))
        except KeyboardInterrupt:
            interrupted = True
        rows = result_lines.load(key, out.read_bytes())[0]
        if interrupted or status in (0, _REFUSED):
            break
        if len(rows) > n_rows:  # else it ended before its first candidate
            _blame(key, out, status)
        rows = result_lines.load(key, out.read_bytes())[0]
        if len(rows) == n_rows:
            if status == -signal.SIGKILL:
                text = f"nothing was ready within {timeout_secs:g} seconds; allow more by --timeout"
            raise RunError(f"measuring fails before any candidate: {text or f'status {status}'}")
    if not interrupted and status == _REFUSED:
        raise RunError(text)
    _say(_summary(pack, rows, n_before, time.time() - started))
    if compilers is not None and compilers.problem:
        _say(f"note: nothing was compiled here: {compilers.problem}")
    return 130 if interrupted else 0


def _resume(pack: Pack, out: Path) -> list[dict[str, Any]]:
    """Return the rows of earlier runs; what follows a damaged line is cut off.

    Raises:
        RunError: If the file has results of another pack, or something else.
    """
    content = out.read_bytes() if out.exists() else b""
    rows, n_bytes = result_lines.load(pack.index["key"], content)
    if content and not rows and b"\n" in content:
        raise RunError(f"{out} has no results of this pack; name another file")
    if n_bytes < len(content) or not content:
        with out.open("ab") as stream:
            stream.truncate(n_bytes)
    return rows


def _watch(
    pack: Pack,
    out: Path,
    ends: tuple[float, float],
    given: tuple[float, int, Compilers | None],
) -> tuple[int, str]:
    """Wait for a measuring process; kill it when it writes nothing for too long.

    Args:
        out: File of the results.
        ends: Times at which no other candidate and no final starts.
        given: Seconds without a sign after which it is killed, the number of candidates, and what
            compiles further ones.

    Returns:
        Its status, and the end of what it printed.
    """
    timeout_secs, n_all, compilers = given
    command = [sys.executable, str(pack.path), "measure", "--out", str(out)]
    command += ["--until", str(ends[0]), "--finals-until", str(ends[1])]
    folder = compiled_beside(pack)
    if folder.is_dir():
        command += ["--compiled", str(folder)]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors)
        try:
            state, changed, reported = (-1, 0.0), time.time(), 0.0
            while process.poll() is None:
                time.sleep(_POLL_SECS)
                now, stat = time.time(), out.stat()
                if (stat.st_size, stat.st_mtime) != state:
                    state, changed = (stat.st_size, stat.st_mtime), now
                if now - changed > timeout_secs:
                    process.kill()
                if now - reported > _PROGRESS_SECS:
                    reported = now
                    results = results_of(result_lines.load(pack.index["key"], out.read_bytes())[0])
                    _say(f"{len(results)} of {n_all}, {ends[1] - now:.0f} s left")
                    if compilers is not None:
                        compilers.update(times_of(results), len(results) >= n_all)
        finally:
            process.kill()
            process.wait()
        return process.returncode, _tail(errors)


def _tail(stream: IO[bytes]) -> str:
    stream.seek(0)
    lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else ""


def _blame(key: str, out: Path, status: int) -> None:
    """Give the candidate or the final that ran when its process ended the result of that."""
    rows, n_bytes = result_lines.load(key, out.read_bytes())
    last: Mapping[str, Any] = rows[-1] if rows else {}
    with out.open("ab") as stream:
        stream.truncate(n_bytes)  # it may have ended within a line
    if "started" not in last:
        return
    is_killed = status == -signal.SIGKILL
    text = "it took too long" if is_killed else f"its process ended with {status}"
    row = {name: value for name, value in last.items() if name != "started"}
    if "network" in row:
        row["problem"] = text
    else:
        row |= {"error_kind": "run_timeout" if is_killed else "run_error", "error_text": text}
    with out.open("ab") as stream:
        stream.write(result_lines.dump(key, row))


def _summary(pack: Pack, rows: list[dict[str, Any]], n_before: int, secs: float) -> str:
    results = results_of(rows)
    timed = times_of(results)
    n_wrong = sum(row.get("error_kind") == "wrong_result" for row in results.values())
    lines = [f"{'first (us)':>11} {'best (us)':>10}  workload"]
    for workload in pack.workloads:
        hash_of = workload["workload"]
        secs_of = [secs for (of, _), secs in timed.items() if of == hash_of]
        if secs_of:
            first, best = 1e6 * secs_of[0], 1e6 * min(secs_of)
            lines.append(f"{first:11.2f} {best:10.2f}  {workload['name']}")
    for row in rows:
        if "problem" in row:
            named = [row[name][:16] for name in ("network", "workload") if name in row]
            lines.append(f"note: {', '.join(named)}: {row['problem']}")
        if "after" in row:
            before, after = (1e6 * statistics.median(row[name]) for name in ("before", "after"))
            lines.append(
                f"{row['network']}: {before:.1f} us in its graph, {after:.1f} with the best; "
                f"estimate {1e6 * row['estimate']:.1f}"
            )
    n_now, n_failed = len(results) - n_before, len(results) - len(timed) - n_wrong
    lines.append(
        f"{n_now} measured in {secs:.1f} s; {len(results)} results in all: {len(timed)} right, "
        f"{n_wrong} wrong, {n_failed} failed"
    )
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text, flush=True)
