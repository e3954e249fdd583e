"""Flight on the machine with the GPU: steps one after the other, each in a process with a limit."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu import ncu
from benchmarks.gpu.device_lock import LOCK
from benchmarks.gpu.models import weights

NETWORKS = ("bert-layer", "bert-base", "resnet-50", "vit-b16", "gpt2-step")
# Networks that nothing was fitted to.
HELD_OUT = ("convnext-t", "mobilenet-v2", "unet", "llama", "llama-step", "efficientnet-b0")
RESULTS = "results.json"
FLIGHT = "flight.json"
SITE = "site.tar.xz"
# Suffix of encoded weights.
ENCODED = ".levels"
LIBRARIES, PACKS, AGREE = "libraries", "packs", "agree"
# Modes of torch.compile by step.
COMPILATIONS = {"compile": "default", "autotune": "max-autotune-no-cudagraphs"}
STEPS = ("measure", "pack", *COMPILATIONS, "agreement", "race", "ncu")
# Networks that are autotuned: those with records in the package.
AUTOTUNED = ("bert-base", "vit-b16", "gpt2-step", "resnet-50")
# Autotuning of more networks at once waits for the device.
_N_AUTOTUNED_AT_ONCE = 2
_IN_NCU = ("bert-base", "resnet-50", "convnext-t")
_GPU_QUERY = (
    "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu,"
    "clocks_event_reasons.active"
)
_MIN_SECS, _ASK_SECS, _MAX_LOG = 5.0, 20.0, 3000
# A step without a peer that compiles takes a third of this on an H200.
_STEP_SECS = 60.0


@dataclass(frozen=True)
class Started:
    """A command that was started: its process, None if that failed, and its log."""

    process: subprocess.Popen[bytes] | None
    log: Path


@dataclass
class Runner:
    """Steps of a flight, and their results.

    Attributes:
        folder: The flight as it was made.
        out: Folder of the results, which are written after each step.
        scratch: Folder that everything is unpacked into.
        device: ``cuda``, or ``cpu`` to rehearse.
        secs: Limit of all steps together.
        steps: Steps that are run besides the self-test.
        autotuned: Networks that torch autotunes.
        results: Results so far.
    """

    folder: Path
    out: Path
    scratch: Path
    device: str
    secs: float
    steps: Sequence[str] = STEPS
    autotuned: Sequence[str] = AUTOTUNED
    results: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start the clock, and read what the folder holds."""
        self._begun, self._lock = time.monotonic(), threading.RLock()
        self.flight = json.loads((self.folder / FLIGHT).read_text())

    @property
    def _spent(self) -> float:
        return time.monotonic() - self._begun

    @property
    def _files(self) -> Path:
        return self.scratch / "files"

    def _unpack(self, archive: Path) -> None:
        to = self.scratch / archive.parent.relative_to(self.folder)
        if to.name != LIBRARIES:
            to /= archive.name.partition(".")[0]
        unpack(archive, to)

    def fly(self, compile_secs: float, pack_secs: float, ncu_secs: float = 45.0) -> None:
        """Run the self-test, networks and packs, then the corpus beside torch.compile, then ncu.

        Args:
            compile_secs: Limit of all compilations together.
            pack_secs: Limit of each pack.
            ncu_secs: Limit of all runs of ncu together.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        self._files.mkdir(parents=True, exist_ok=True)
        self.results.update(
            date=datetime.now(UTC).isoformat(timespec="seconds"), flight=self.flight,
            device=self.device, gpu_before=_gpu(), gpu_after={}, steps={},
        )  # fmt: skip
        try:
            self._fly(compile_secs, pack_secs, ncu_secs)
        finally:
            self.results["gpu_after"] = _gpu()
            self._save()
            with tarfile.open(self.out / "files.tar.gz", "w:gz") as archive:
                archive.add(self._files, "files")

    def _fly(self, compile_secs: float, pack_secs: float, ncu_secs: float) -> None:
        archives = [self.folder / SITE, *(self.folder / LIBRARIES).glob("*.tar.xz")]
        archives += (self.folder / AGREE).glob("*.tar.xz")
        with ThreadPoolExecutor() as threads:
            list(threads.map(self._unpack, archives))
        self.results["unpack_secs"] = self._spent
        networks = self.flight["networks"]
        measured = networks if "measure" in self.steps else ()
        self._steps([("self-test", ""), *(("measure", network) for network in measured)])
        for pack in sorted((self.folder / PACKS).glob("*")) if "pack" in self.steps else ():
            self._run_pack(pack, pack_secs)
        compiled = self._compile(compile_secs)
        if "race" in self.steps:
            self._steps([("race", network) for network in networks if network in compiled])
        end = self._spent + ncu_secs
        for network in networks if "ncu" in self.steps else ():
            if network in _IN_NCU:
                self._run_ncu(network, end - self._spent)

    def _compile(self, secs: float) -> set[str]:
        """Compile networks beside each other and the corpus; return those that are compiled.

        While others run, what is timed holds a lock of the device.
        """
        end = self._spent + secs

        def compile_(step: str, network: str) -> str:
            started = self._start_step(step, network) if end - self._spent > _MIN_SECS else None
            entry = self._end_step(started, step, network, end - self._spent)
            return network if entry["status"] == "done" else ""

        compiled = set()
        with ThreadPoolExecutor(1) as other:
            agreement = other.submit(self._run_agreement)
            for step, n_at_once in (
                ("compile", max(2, (os.cpu_count() or 1) // 3)), ("autotune", _N_AUTOTUNED_AT_ONCE)
            ):  # fmt: skip
                networks = self.flight["networks"] if step in self.steps else []
                if step == "autotune":
                    networks = [name for name in self.autotuned if name in networks]
                with ThreadPoolExecutor(n_at_once) as threads:
                    compiled |= set(threads.map(partial(compile_, step), networks))
            agreement.result()
        return compiled

    def _run_agreement(self) -> None:
        if "agreement" not in self.steps or not (self.scratch / AGREE).is_dir():
            return
        results = self._files / "agreement.json"
        words = [str(self.scratch / AGREE), str(results), "--device", self.device]
        command = [sys.executable, "-m", "benchmarks.gpu.agreement", *words]
        entry = self._run("agreement", command, _STEP_SECS)
        with contextlib.suppress(OSError, ValueError), self._lock:
            entry["facts"] = json.loads(results.read_text())
        self._save()

    def _steps(self, steps: Sequence[tuple[str, str]]) -> None:
        """Run steps in turn; each prepares itself on the CPU while that before it runs."""
        following: Started | None = None
        for number, (step, network) in enumerate(steps):
            started = following or self._start_step(step, network)
            following = self._start_step(*steps[number + 1]) if steps[number + 1 :] else None
            self._end_step(started, step, network, _STEP_SECS)

    def _start_step(self, step: str, network: str) -> "Started":
        path = self._files / ("-".join(filter(None, (step, network))) + ".json")
        tiny = ["--tiny"] if self.flight["tiny"] else []
        words = [step, network, str(self.scratch / LIBRARIES), str(path), *tiny]
        module = [sys.executable, "-m", "benchmarks.gpu.steps"]
        return self._start(path.stem, [*module, *words, "--device", self.device])

    def _end_step(
        self, started: "Started | None", step: str, network: str, secs: float
    ) -> dict[str, Any]:
        name = "-".join(filter(None, (step, network)))
        entry = self._end(name, started, secs)
        with contextlib.suppress(OSError, ValueError), self._lock:
            entry["facts"] = json.loads((self._files / f"{name}.json").read_text())
            if step in entry["facts"].get("failures", {}) and entry["status"] == "done":
                entry["status"] = "failed"
        self._save()
        return entry

    def _run_pack(self, pack: Path, secs: float) -> None:
        secs = min(secs, self.secs - self._spent)
        words = ["--minutes", f"{secs / 60:.2f}", "--out", str(self.out / f"{pack.stem}.results")]
        self._run(f"pack-{pack.stem}", [sys.executable, str(pack), "run", *words], secs + _ASK_SECS)
        self._save()

    def _run_ncu(self, network: str, secs: float) -> None:
        """Ask ncu what limits the slowest kernels of a library."""
        facts = self.results["steps"].get(f"measure-{network}", {}).get("facts", {})
        traced = {k: v for k, v in facts.get("kernels", {}).items() if not k.startswith("torch")}
        for label, trace in list(traced.items())[-1:]:
            report = self._files / f"ncu-{network}.csv"
            library = self.scratch / LIBRARIES / label / f"{network}.lib"
            command = [*ncu.command(trace["kernels"], report), sys.executable]
            command += ["-m", "benchmarks.gpu.replay", str(library)]
            entry = self._run(f"ncu-{network}", command, secs)
            with contextlib.suppress(OSError, ValueError, KeyError):
                entry["facts"] = {"library": label, "kernels": ncu.read(report.read_text())}
            self._save()

    def _run(self, name: str, command: Sequence[str], secs: float) -> dict[str, Any]:
        """Run a command for at most ``secs`` seconds; add its entry to the results."""
        is_late = min(secs, self.secs - self._spent) < _MIN_SECS
        return self._end(name, None if is_late else self._start(name, command), secs)

    def _start(self, name: str, command: Sequence[str]) -> "Started":
        """Start a command, which may wait for the end of its standard input."""
        log = self._files / f"{name}.log"
        with log.open("w") as stream:
            try:
                process = subprocess.Popen(
                    command, env=self._environ, cwd=self.scratch, stdin=subprocess.PIPE,
                    stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                stream.write(str(error))
                return Started(None, log)
        return Started(process, log)

    def _end(self, name: str, started: "Started | None", secs: float) -> dict[str, Any]:
        """Let a command go on for at most ``secs`` seconds; add its entry to the results."""
        secs = min(secs, self.secs - self._spent)
        entry: dict[str, Any] = {"status": "not reached"}
        if started is not None:
            begun = time.monotonic()
            entry["status"] = _wait(started.process, secs)
            entry["secs"] = time.monotonic() - begun
            entry["log"] = started.log.read_text(errors="replace")[-_MAX_LOG:]
            print(f"{name}: {entry['status']}, {entry['secs']:.1f} s", file=sys.stderr, flush=True)
        with self._lock:
            self.results["steps"][name] = entry
        return entry

    @property
    def _environ(self) -> dict[str, str]:
        given = os.environ.get("PYTHONPATH", "")
        paths = [str(self.scratch / "site"), str(self.folder), *filter(None, given.split(":"))]
        caches = {
            name: str(self.scratch / name.lower())
            for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TVM_FFI_CACHE_DIR")
        }
        runtime = {
            "PYTHONPATH": ":".join(paths), "TVM_USE_RUNTIME_LIB": "1",
            # Several networks are compiled at once.
            "TORCHINDUCTOR_COMPILE_THREADS": "4", LOCK: str(self.scratch / "device.lock"),
        }  # fmt: skip
        return {**os.environ, **caches, **runtime}

    def _save(self) -> None:
        with self._lock:
            self.results["secs"] = self._spent
            partial = self.out / f"{RESULTS}.partial"
            partial.write_text(json.dumps(self.results, indent=1))
            partial.replace(self.out / RESULTS)


def unpack(archive: Path, to: Path) -> None:
    """Unpack an archive that :func:`benchmarks.gpu.making.pack` wrote."""
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(to, filter="data")
        else:
            packed.extractall(to)
        names = packed.getnames()
    for path in (to / name for name in names if name.endswith(ENCODED)):
        path.with_suffix("").write_bytes(weights.decode(path.read_bytes()))
        path.unlink()


def _wait(process: subprocess.Popen[bytes] | None, secs: float) -> str:
    """Let a process go on, and end it after ``secs`` seconds; return what became of it."""
    if process is None:
        return "not started"
    try:
        if secs < _MIN_SECS:
            return "not reached"
        process.communicate(timeout=secs)
    except subprocess.TimeoutExpired:
        return f"stopped after {secs:.0f} s"
    finally:
        # Compilers of torch run in processes of their own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return f"ended with exit status {process.returncode}" if process.returncode else "done"


def _gpu() -> dict[str, str]:
    """Return what ``nvidia-smi`` says of the first GPU; empty without one."""
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={_GPU_QUERY}", "--format=csv,noheader"]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_ASK_SECS
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in asked.stdout.split(",")]
    return dict(zip(_GPU_QUERY.split(","), values, strict=False))
