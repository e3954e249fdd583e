"""Flight on the machine with the GPU: steps one after the other, each in a process with a limit."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu import weights

NETWORKS = ("bert-layer", "bert-base", "resnet-50", "vit-b16", "gpt2-step")
RESULTS = "results.json"
FLIGHT = "flight.json"
SITE = "site.tar.xz"
# Suffix of encoded weights.
ENCODED = ".levels"
LIBRARIES, PACKS = "libraries", "packs"
_GPU_QUERY = (
    "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu,"
    "clocks_event_reasons.active"
)
_MIN_SECS, _ASK_SECS, _MAX_LOG = 5.0, 20.0, 3000
# A step without a peer that compiles takes a third of this on an H200.
_STEP_SECS = 60.0


@dataclass
class Runner:
    """Steps of a flight, and their results.

    Attributes:
        folder: The flight as it was made.
        out: Folder of the results, which are written after each step.
        scratch: Folder that everything is unpacked into.
        device: ``cuda``, or ``cpu`` to rehearse.
        secs: Limit of all steps together.
        results: Results so far.
    """

    folder: Path
    out: Path
    scratch: Path
    device: str
    secs: float
    results: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start the clock, and read what the folder holds."""
        self._begun = time.monotonic()
        self.flight = json.loads((self.folder / FLIGHT).read_text())

    @property
    def _spent(self) -> float:
        return time.monotonic() - self._begun

    def _unpack(self, archive: Path) -> None:
        to = self.scratch / archive.parent.relative_to(self.folder)
        to = to / "site" if archive.name == SITE else to
        with tarfile.open(archive) as packed:
            if hasattr(tarfile, "data_filter"):
                packed.extractall(to, filter="data")
            else:
                packed.extractall(to)
        for path in (to / archive.name.replace(".tar.xz", ".lib")).glob(f"*{ENCODED}"):
            path.with_suffix("").write_bytes(weights.decode(path.read_bytes()))
            path.unlink()

    def fly(self, compile_secs: float, pack_secs: float) -> None:
        """Run the self-test, networks, packs and profiles, then torch.compile of each network.

        Args:
            compile_secs: Limit of all compilations together.
            pack_secs: Limit of each pack.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        self.results.update(
            date=datetime.now(UTC).isoformat(timespec="seconds"), flight=self.flight,
            device=self.device, gpu_before=_gpu(), gpu_after={}, steps={},
        )  # fmt: skip
        archives = [self.folder / SITE, *(self.folder / LIBRARIES).glob("*/*.tar.xz")]
        with ThreadPoolExecutor() as threads:
            list(threads.map(self._unpack, archives))
        self.results["unpack_secs"] = self._spent
        self._step("self-test", "", _STEP_SECS)
        for network in self.flight["networks"]:
            self._step("measure", network, _STEP_SECS)
        for pack in sorted((self.folder / PACKS).glob("*")):
            self._run_pack(pack, pack_secs)
        for network in self.flight["networks"]:
            self._step("profile", network, _STEP_SECS)
        end = self._spent + compile_secs
        for network in self.flight["networks"]:
            self._step("compile", network, end - self._spent)
        self.results["gpu_after"] = _gpu()
        self._save()

    def _step(self, step: str, network: str, secs: float) -> None:
        path = self.out / ("-".join(filter(None, (step, network))) + ".json")
        path.unlink(missing_ok=True)
        tiny = ["--tiny"] if self.flight["tiny"] else []
        words = [step, network, str(self.scratch / LIBRARIES), str(path), *tiny]
        module = [sys.executable, "-m", "benchmarks.gpu.steps"]
        entry = self._run(path.stem, [*module, *words, "--device", self.device], secs)
        with contextlib.suppress(OSError, ValueError):
            entry["facts"] = json.loads(path.read_text())
            if step in entry["facts"].get("failures", {}) and entry["status"] == "done":
                entry["status"] = "failed"
        self._save()

    def _run_pack(self, pack: Path, secs: float) -> None:
        secs = min(secs, self.secs - self._spent)
        words = ["--minutes", f"{secs / 60:.2f}", "--out", str(self.out / f"{pack.stem}.results")]
        command = [sys.executable, str(pack), "run", *words]
        self._run(f"pack-{pack.stem}", command, secs + _ASK_SECS)
        self._save()

    def _run(self, name: str, command: Sequence[str], secs: float) -> dict[str, Any]:
        """Run a command for at most ``secs`` seconds; add its entry to the results."""
        secs = min(secs, self.secs - self._spent)
        entry: dict[str, Any] = {"status": "not reached"}
        self.results["steps"][name] = entry
        if secs < _MIN_SECS:
            return entry
        begun, log = time.monotonic(), self.out / f"{name}.log"
        with log.open("w") as stream:
            process = subprocess.Popen(
                command, env=self._environ, cwd=self.scratch, stdout=stream,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                status = process.wait(secs)
                entry["status"] = "done" if status == 0 else f"ended with exit status {status}"
            except subprocess.TimeoutExpired:
                entry["status"] = f"stopped after {secs:.0f} s"
            finally:
                # Compilers of torch run in processes of their own.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        entry["secs"] = time.monotonic() - begun
        entry["log"] = log.read_text(errors="replace")[-_MAX_LOG:]
        print(f"{name}: {entry['status']}, {entry['secs']:.1f} s", file=sys.stderr, flush=True)
        return entry

    @property
    def _environ(self) -> dict[str, str]:
        given = os.environ.get("PYTHONPATH", "")
        paths = [str(self.scratch / "site"), str(self.folder), *filter(None, given.split(":"))]
        caches = {
            name: str(self.scratch / name.lower())
            for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TVM_FFI_CACHE_DIR")
        }
        runtime = {"PYTHONPATH": ":".join(paths), "TVM_USE_RUNTIME_LIB": "1"}
        return {**os.environ, **caches, **runtime}

    def _save(self) -> None:
        self.results["secs"] = self._spent
        partial = self.out / f"{RESULTS}.partial"
        partial.write_text(json.dumps(self.results, indent=1))
        partial.replace(self.out / RESULTS)


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
