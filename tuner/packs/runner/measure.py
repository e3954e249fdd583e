"""Measurement of the candidates of a pack, in a process that a broken candidate may end.

Each candidate is named in the results before it starts, so that the process that watches this one
knows which candidate ended it.
"""

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tuner.engines.cuda import graph_launches
from tuner.errors import WorkError
from tuner.packs import result_lines
from tuner.packs.runner.compilers import Contents, compiled_in, end_file
from tuner.packs.runner.contents import Pack, SampledReference
from tuner.packs.runner.driver import CudaError, Driver, Launches
from tuner.packs.runner.finals import run_finals
from tuner.packs.runner.nvml import Nvml

# Candidates of each workload that are measured before any workload has more.
_N_FIRST = 8
# Launches of a graph that are samples.
_N_SAMPLES = 5
# Interval between looks for candidates that were compiled here.
_POLL_SECS = 0.05
# Longer texts of errors would not fit into a request to a service.
_MAX_TEXT_CHARS = 8000

Key = tuple[str, str]


class DeviceBroken(Exception):  # noqa: N818  it is the state of a device
    """The context of the device is lost: another process goes on."""


class WrongDevice(Exception):  # noqa: N818  likewise
    """The device is not the one that the pack or the results are for."""


@dataclass(frozen=True)
class Session:
    """One process that measures.

    Attributes:
        out: File of the results.
        compiled: Folder of the candidates that are compiled here; None without such.
        until: Time at which no other candidate starts, seconds since the epoch.
        finals_until: Time at which no final starts.
    """

    pack: Pack
    out: Path
    compiled: Path | None
    until: float
    finals_until: float


def measure(session: Session) -> None:
    """Measure the candidates that have no result yet, then networks with the best of them.

    Raises:
        CudaError: If there is no device.
        DeviceBroken: If a candidate broke the device.
        WrongDevice: If the pack or the results are for another device.
    """
    pack = session.pack
    rows, _ = result_lines.load(pack.index["key"], session.out.read_bytes())
    driver = Driver()
    device = driver.describe()
    nvml = Nvml(device["uuid"])
    device.update(nvml.identity())
    _check_device(pack, rows, device)
    with session.out.open("ab", buffering=0) as sink:

        def write(row: Mapping[str, Any]) -> None:
            sink.write(result_lines.dump(pack.index["key"], row))

        if not rows:
            versions = {"python": platform.python_version(), "numpy": np.__version__}
            header = {"pack": pack.index["id"], "format": result_lines.FORMAT, "device": device}
            write({**header, "versions": versions, "l2_bytes": driver.l2_bytes})
        candidates = _Candidates(session, driver, nvml, results_of(rows), write)
        candidates.measure()
        try:
            run_finals(
                Contents(pack, session.compiled), driver, rows, candidates.times, write,
                session.finals_until,
            )  # fmt: skip
        except CudaError as error:
            raise DeviceBroken(str(error)) from error


@dataclass
class _Candidates:
    """The candidates of a pack on a device."""

    session: Session
    driver: Driver
    nvml: Nvml
    results: dict[Key, dict[str, Any]]
    write: Callable[[Mapping[str, Any]], None]
    # Workloads that cannot be measured.
    _skipped: set[str] = field(default_factory=set)

    @property
    def times(self) -> dict[Key, float]:
        """Seconds of each candidate that is right."""
        return times_of(self.results)

    def measure(self) -> None:
        """Measure those of the pack, then those that are compiled here."""
        pack = self.session.pack
        for limit in (_N_FIRST, None):
            for workload in pack.workloads:
                names = [each["name"] for each in workload["candidates"][:limit]]
                self._measure(workload, names)
        workloads = {each["workload"]: each for each in pack.workloads}
        folder = self.session.compiled
        while folder is not None and time.time() < self.session.until:
            is_over = end_file(folder, self.session.out).exists()
            waiting: dict[str, list[str]] = {}
            for key in compiled_in(folder):
                if key not in self.results and key[0] not in self._skipped:
                    waiting.setdefault(key[0], []).append(key[1])
            if waiting:
                most = max(waiting, key=lambda each: len(waiting[each]))
                self._measure(workloads[most], waiting[most])
            elif is_over:
                return
            else:
                os.utime(self.session.out)  # the process that watches sees that this one lives
                time.sleep(_POLL_SECS)

    def _measure(self, workload: Mapping[str, Any], names: Sequence[str]) -> None:
        """Measure candidates of a workload that have no result."""
        hash_of, until = workload["workload"], self.session.until
        left = [name for name in names if (hash_of, name) not in self.results]
        if not left or hash_of in self._skipped or time.time() >= until:
            return
        try:
            contents = Contents(self.session.pack, self.session.compiled)
            loaded = [contents.candidate(hash_of, name) for name in left]
            references = self.session.pack.references(workload)
            largest = max(candidate["workspace_bytes"] for candidate, _ in loaded)
            with _bench(self.driver, workload, references, largest) as bench:
                for candidate, code in loaded:
                    if time.time() >= until:
                        return
                    named = {"workload": hash_of, "candidate": candidate["name"]}
                    self.write({**named, "started": True})
                    result = bench.run(candidate, code)
                    self.write({**named, **result, "conditions": self.nvml.conditions()})
                    self.results[hash_of, candidate["name"]] = result
                    if result.get("error_kind") == "run_error":
                        _check_context(self.driver)
        except WorkError as error:
            self._skipped.add(hash_of)
            self.write({"workload": hash_of, "problem": str(error)})


def times_of(results: Mapping[Key, Mapping[str, Any]]) -> dict[Key, float]:
    """Return the seconds of each candidate that is right, by workload and name."""
    return {
        key: statistics.median(row["run_secs"]) for key, row in results.items() if "run_secs" in row
    }


def results_of(rows: Sequence[dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    """Return the result of each candidate that has one, by workload and name; the first counts."""
    results: dict[Key, dict[str, Any]] = {}
    for row in rows:
        if "candidate" in row and "started" not in row:
            results.setdefault((row["workload"], row["candidate"]), row)
    return results


def _check_device(pack: Pack, rows: list[dict[str, Any]], device: Mapping[str, Any]) -> None:
    if device["capability"] not in pack.index["capabilities"]:
        raise WrongDevice(
            f"the pack is for GPUs of compute capability {pack.index['capabilities'][0]}, and "
            f"{device['name']} has {device['capability']}"
        )
    if rows and rows[0]["device"]["uuid"] != device["uuid"]:
        raise WrongDevice(
            f"the results are of {rows[0]['device']['name']} {rows[0]['device']['uuid']}, and this "
            f"is {device['uuid']}: name another file"
        )


def _check_context(driver: Driver) -> None:
    """Check that the device still works.

    Raises:
        DeviceBroken: If it does not.
    """
    try:
        driver.wait()
    except CudaError as error:
        raise DeviceBroken(str(error)) from error


class Bench:
    """A workload on the device.

    Args:
        driver: The device.
        workload: Workload of the index.
    """

    def __init__(self, driver: Driver, workload: Mapping[str, Any]) -> None:
        self._driver = driver
        self._memory: list[int] = []
        self._arguments = [(tuple(shape), dtype) for shape, dtype in workload["arguments"]]
        self._n_inputs = len(self._arguments) - workload["n_outputs"]

    def prepare(
        self,
        workload: Mapping[str, Any],
        references: list[SampledReference],
        workspace_bytes: int,
    ) -> None:
        """Allocate its memory and draw its inputs.

        Args:
            workload: Workload of the index.
            references: Its references; candidates are timed on the inputs of the last.
            workspace_bytes: Memory that the kernels of a candidate share, at most.

        Raises:
            CudaError: If the device has no room.
            WorkError: If this machine draws other numbers, or does not know a type.
        """
        self._references = references
        drawn = [reference.draw() for reference in references]
        self._sizes = [
            math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in self._arguments
        ]
        outputs = [self._allocate(size) for size in self._sizes[self._n_inputs :]]
        self._workspace = self._allocate(workspace_bytes)
        self._bound = [[*map(self._upload, arrays), *outputs] for arrays in drawn]
        self._sets = [self._bound[-1], *self._copies(workload, drawn[-1])]

    def _copies(self, workload: Mapping[str, Any], arrays: list[Any]) -> Iterator[list[int]]:
        """Yield arguments with other copies of the weights, so that these come from memory.

        A network whose weights stay in the second-level cache needs none.
        """
        weights, l2_bytes = workload["weights"], self._driver.l2_bytes
        n_bytes = sum(self._sizes[index] for index in weights)
        if not n_bytes or graph_launches.stays_cached(workload["network_bytes"], l2_bytes):
            return
        for _ in range(graph_launches.n_weight_copies(n_bytes, l2_bytes) - 1):
            copied = {index: self._upload(arrays[index]) for index in weights}
            yield [copied.get(index, at) for index, at in enumerate(self._bound[-1])]

    def run(self, candidate: Mapping[str, Any], code: bytes) -> dict[str, Any]:
        """Check a candidate, time it, and check it again; return the fields of its result."""
        try:
            launches = Launches(self._driver, candidate, code)
            result = self._checked(launches)
            launches.close()
            return result
        except CudaError as error:
            return {"error_kind": "run_error", "error_text": str(error)[:_MAX_TEXT_CHARS]}

    def _checked(self, launches: Launches) -> dict[str, Any]:
        worst = 0.0
        for reference, addresses in zip(self._references, self._bound, strict=True):
            for index in range(self._n_inputs, len(self._arguments)):
                self._driver.fill(addresses[index], self._sizes[index])
            launches.launch(addresses, self._workspace)
            text, error = reference.check(self._outputs())
            worst = max(worst, error)
            if text:
                return _wrong(text, worst)
        n_first = graph_launches.MIN_LAUNCHES
        (first,) = launches.sample(self._sets[:1], self._workspace, n_first, 1)
        n_launches = graph_launches.n_launches(first, len(self._sets))
        samples = launches.sample(self._sets, self._workspace, n_launches, _N_SAMPLES)
        text, error = self._references[-1].check(self._outputs())
        worst = max(worst, error)
        if text:
            return _wrong(f"after many launches, {text}", worst)
        return {"run_secs": samples, "max_error": worst}

    def _outputs(self) -> list[Any]:
        return [
            self._driver.download(self._bound[0][index], *self._arguments[index])
            for index in range(self._n_inputs, len(self._arguments))
        ]

    def _upload(self, array: Any) -> int:
        address = self._allocate(array.nbytes)
        self._driver.upload(address, array)
        return address

    def _allocate(self, n_bytes: int) -> int:
        address = self._driver.allocate(n_bytes)
        self._memory.append(address)
        return address

    def close(self) -> None:
        """Free the memory."""
        for address in self._memory:
            self._driver.free(address)


@contextmanager
def _bench(
    driver: Driver,
    workload: Mapping[str, Any],
    references: list[SampledReference],
    workspace_bytes: int,
) -> Iterator[Bench]:
    bench = Bench(driver, workload)
    try:
        bench.prepare(workload, references, workspace_bytes)
    except (TypeError, CudaError) as error:
        # A type that NumPy does not know, or no room: others may still have both.
        _check_context(driver)
        bench.close()
        raise WorkError(str(error)) from error
    yield bench
    bench.close()


def _wrong(text: str, error: float) -> dict[str, Any]:
    finite = error if math.isfinite(error) else None
    return {"error_kind": "wrong_result", "error_text": text, "max_error": finite}
