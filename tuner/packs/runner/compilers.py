"""Further candidates, compiled on the machine with the GPU while it measures.

Processes compile the sources of a pack with Triton, if the version that the pack was made with is
installed there: those next to the fastest so far, of the workloads that take most of the time. Each
is a file in a folder beside the pack, which the measuring process takes from there.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import WorkError
from tuner.packs.launch_plans import kernels_of
from tuner.packs.runner.contents import Pack

_SUFFIX = ".kernels"
_READY = "ready"
# Cores for the processes that measure and watch.
_N_OTHER_CORES = 2
# Fastest candidates of a workload whose neighbours are compiled.
_N_BEST = 3
_POLL_SECS = 0.2
_PR_SET_PDEATHSIG = 1

Times = Mapping[tuple[str, str], float]


class Compilers:
    """Processes that compile, and the choice of what they compile.

    Args:
        out: File of the results.

    Raises:
        OSError: If there is no room beside the pack.
    """

    def __init__(self, pack: Pack, out: Path) -> None:
        folder = compiled_beside(pack)
        self._pack, self._folder = pack, folder
        folder.mkdir(mode=0o700, exist_ok=True)
        self._end_file = end_file(folder, out)
        self._end_file.unlink(missing_ok=True)
        self._calls = {each["workload"]: each["calls"] for each in pack.workloads}
        made = {file.name for file in folder.iterdir()}
        self._left = {
            workload: [name for name in pack.sources(workload) if _file(workload, name) not in made]
            for workload in self._calls
        }
        self._n_taken = dict.fromkeys(self._calls, 0)
        self._times: Times = {}
        self._are_final = False
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._processes: list[subprocess.Popen[str]] = []
        #: Why nothing is compiled; empty if something can be.
        self.problem = ""
        n = max(len(os.sched_getaffinity(0)) - _N_OTHER_CORES, 1)
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(n)]
        threading.Thread(target=self._end, daemon=True).start()

    def update(self, times: Times, are_final: bool) -> None:
        """Take note of results.

        Args:
            times: Seconds of right candidates, by workload and name.
            are_final: True if no other candidate of the pack itself has yet to be measured.
        """
        with self._lock:
            self._times, self._are_final = dict(times), are_final

    def close(self) -> None:
        """End the processes."""
        self._stopped.set()
        for process in self._processes:
            process.kill()
            process.wait()

    def _end(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()
        self._end_file.touch()

    def _serve(self) -> None:
        """Have one process compile after the other; a process that dies costs its candidate."""
        while not self._stopped.is_set():
            command = [sys.executable, str(self._pack.path), "compile", str(self._folder)]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            self._processes.append(process)
            assert process.stdin is not None
            assert process.stdout is not None
            answer = process.stdout.readline().strip()
            if answer != _READY:
                self.problem = answer or "the compiler does not start"
                return
            while answer:
                chosen = self._choose()
                if chosen is None:
                    return
                if not chosen[1]:
                    self._stopped.wait(_POLL_SECS)
                    continue
                try:
                    process.stdin.write(" ".join(chosen) + "\n")
                    process.stdin.flush()
                    answer = process.stdout.readline()
                except OSError:
                    answer = ""

    def _choose(self) -> tuple[str, str] | None:
        """Take the next candidate; without a name to wait for results, None if there is none."""
        with self._lock:
            if self._stopped.is_set() or not any(self._left.values()):
                return None
            best: dict[str, list[tuple[float, str]]] = {}
            for (workload, name), secs in self._times.items():
                if self._left.get(workload):
                    best.setdefault(workload, []).append((secs, name))
            if not best:  # all that could be compiled may be next to candidates that failed
                return None if self._are_final else ("", "")
            workload = max(
                best,
                key=lambda each: self._calls[each] * min(best[each])[0] / (1 + self._n_taken[each]),
            )
            fastest = [name.split("-") for _, name in sorted(best[workload])[:_N_BEST]]
            names = self._left[workload]
            name = min(names, key=lambda each: (_distance(each, fastest), names.index(each)))
            names.remove(name)
            self._n_taken[workload] += 1
            return workload, name


def _distance(name: str, others: Sequence[Sequence[str]]) -> int:
    """Return the number of decisions in which a configuration differs from the nearest other."""
    words = name.split("-")
    return min(
        sum(one != other for one, other in zip(words, each, strict=False)) for each in others
    )


def compile_for(pack: Pack, folder: Path) -> None:
    """Compile the candidates that lines of the standard input name, until it ends.

    Each line has an answer; the first says whether anything can be compiled here.
    """

    def answer(text: str) -> None:
        sys.stdout.write(text.replace("\n", " ") + "\n")
        sys.stdout.flush()

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        from tuner.engines.relax.triton.compilation import compiler

        version, required = compiler.version() or "none", pack.index["triton"]
        if version.partition("+")[0] != required:
            answer(f"Triton {required} compiles more candidates, and {version} is here")
            return
    except ImportError as error:
        answer(f"Triton cannot be used: {error}")
        return
    answer(_READY)
    for line in sys.stdin:
        workload, name = line.split()
        try:
            _compile(pack, folder, workload, name)
            answer("compiled")
        except WorkError as error:
            answer(f"refused: {error}")


def _compile(pack: Pack, folder: Path, workload: str, name: str) -> None:
    from tuner.engines.packed import PackedCandidate
    from tuner.engines.relax.triton.compilation import packed_programs

    text, max_shared_bytes = pack.sources(workload)[name]
    program = packed_programs.load(text)
    kernels, workspace_bytes = packed_programs.compile_program(program, pack.index["target"])
    if max(each.shared_bytes for each in kernels) > max_shared_bytes:
        raise WorkError("a block needs too much shared memory")
    code = bytearray()
    entry = kernels_of(name, PackedCandidate("", "", kernels, workspace_bytes), code)
    path = folder / _file(workload, name)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(json.dumps(entry).encode() + b"\n" + code)
    temporary.replace(path)


def compiled_beside(pack: Pack) -> Path:
    """Return the folder of what is compiled here, which earlier runs may have filled."""
    return pack.path.with_name(f"{pack.path.name}.compiled")


def end_file(folder: Path, out: Path) -> Path:
    """Return the file that says that nothing else will be compiled for some results."""
    return folder / f"{out.name}.end"


def compiled_in(folder: Path | None) -> list[tuple[str, str]]:
    """Return the workloads and names of the candidates that were compiled into a folder."""
    if folder is None or not folder.is_dir():
        return []
    files = (file.name for file in os.scandir(folder) if file.name.endswith(_SUFFIX))
    keys = (file.removesuffix(_SUFFIX).partition("--") for file in sorted(files))
    return [(workload, name) for workload, _, name in keys]


@dataclass(frozen=True)
class Contents:
    """The candidates of a pack, and those that were compiled into a folder."""

    pack: Pack
    folder: Path | None

    def has(self, workload: str, name: str) -> bool:
        """Return whether the kernels of a candidate are here."""
        return name in self._packed(workload) or (
            self.folder is not None and (self.folder / _file(workload, name)).exists()
        )

    def candidate(self, workload: str, name: str) -> tuple[Mapping[str, Any], bytes]:
        """Return the entry of a candidate and the binaries of its kernels."""
        packed = self._packed(workload)
        if name in packed:
            return packed[name], self.pack.code(workload)
        assert self.folder is not None
        head, _, code = (self.folder / _file(workload, name)).read_bytes().partition(b"\n")
        entry: dict[str, Any] = json.loads(head)
        return entry, code

    def _packed(self, workload: str) -> dict[str, Mapping[str, Any]]:
        return {
            candidate["name"]: candidate
            for each in self.pack.workloads
            if each["workload"] == workload
            for candidate in each["candidates"]
        }


def _file(workload: str, name: str) -> str:
    return f"{workload}--{name}{_SUFFIX}"
