"""Measurement of the candidates of a pack, in a process that a broken candidate may end.

Each candidate is named in the results before it starts, so that the process that watches this one
knows which candidate ended it.
"""

import math
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from tuner.errors import WorkError
from tuner.packs import result_lines
from tuner.packs.runner.contents import Pack, SampledReference
from tuner.packs.runner.driver import CudaError, Driver, Launches
from tuner.packs.runner.nvml import Nvml

# Candidates of each workload that are measured before any workload has more.
_N_FIRST = 8
# Time of the launches in a graph, seconds, their number, and how often a graph is launched. With
# copies of weights, a graph has a launch for each, unless that takes too long.
_GRAPH_SECS, _MAX_GRAPH_SECS = 3e-4, 3e-3
_MIN_LAUNCHES, _MAX_LAUNCHES, _N_SAMPLES = 4, 40, 5
# Copies of the weights fill the second-level cache this many times, within a limit.
_L2_FILLS, _MAX_COPIES = 2.5, 256
# Share of the second-level cache up to which the weights of a network stay there: activations take
# the rest, and its halves hold what both read twice.
_KEPT_SHARE = 0.5

Key = tuple[str, str]


class DeviceBroken(Exception):  # noqa: N818  it is the state of a device
    """The context of the device is lost: another process goes on."""


class WrongDevice(Exception):  # noqa: N818  likewise
    """The device is not the one that the pack or the results are for."""


def measure(pack: Pack, rows: list[dict[str, Any]], sink: IO[bytes], until: float) -> None:
    """Measure the candidates that have no result yet.

    Args:
        pack: The pack.
        rows: Rows that the file of results has.
        sink: The file of results, open for appending without a buffer.
        until: Time at which no other candidate starts, seconds since the epoch.

    Raises:
        CudaError: If there is no device.
        DeviceBroken: If a candidate broke the device.
        WrongDevice: If the pack or the results are for another device.
    """
    driver = Driver()
    device = driver.describe()
    nvml = Nvml(device["uuid"])
    device.update(nvml.identity())
    _check_device(pack, rows, device)

    def write(row: Mapping[str, Any]) -> None:
        sink.write(result_lines.dump(pack.index["key"], row))

    if not rows:
        versions = {"python": platform.python_version(), "numpy": np.__version__}
        header = {"pack": pack.index["id"], "format": result_lines.FORMAT, "device": device}
        write({**header, "versions": versions, "l2_bytes": driver.l2_bytes})
    done = results_of(rows)
    skipped: set[str] = set()
    for limit in (_N_FIRST, None):
        for workload in pack.workloads:
            left = [
                candidate
                for candidate in workload["candidates"][:limit]
                if (workload["workload"], candidate["name"]) not in done
            ]
            if not left or workload["workload"] in skipped:
                continue
            try:
                references = pack.references(workload)
                with _bench(driver, workload, references) as bench:
                    code = pack.code(workload)
                    for candidate in left:
                        if time.time() >= until:
                            return
                        named = {"workload": workload["workload"], "candidate": candidate["name"]}
                        write({**named, "started": True})
                        result = bench.run(candidate, code)
                        write({**named, **result, "conditions": nvml.conditions()})
                        done[named["workload"], named["candidate"]] = result
                        if result.get("error_kind") == "run_error":
                            _check_context(driver)
            except WorkError as error:
                skipped.add(workload["workload"])
                write({"workload": workload["workload"], "problem": str(error)})


def results_of(rows: list[dict[str, Any]]) -> dict[Key, dict[str, Any]]:
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

    def prepare(self, workload: Mapping[str, Any], references: list[SampledReference]) -> None:
        """Allocate its memory and draw its inputs.

        Args:
            workload: Workload of the index.
            references: Its references; candidates are timed on the inputs of the last.

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
        largest = max(candidate["workspace_bytes"] for candidate in workload["candidates"])
        self._workspace = self._allocate(largest)
        self._bound = [[*map(self._upload, arrays), *outputs] for arrays in drawn]
        self._sets = [self._bound[-1], *self._copies(workload, drawn[-1])]

    def _copies(self, workload: Mapping[str, Any], arrays: list[Any]) -> Iterator[list[int]]:
        """Yield arguments with other copies of the weights, so that these come from memory.

        A network whose weights stay in the second-level cache needs none.
        """
        weights, l2_bytes = workload["weights"], self._driver.l2_bytes
        n_bytes = sum(self._sizes[index] for index in weights)
        if not n_bytes or workload["network_bytes"] <= _KEPT_SHARE * l2_bytes:
            return
        for _ in range(min(math.ceil(_L2_FILLS * l2_bytes / n_bytes), _MAX_COPIES) - 1):
            copied = {index: self._upload(arrays[index]) for index in weights}
            yield [copied.get(index, at) for index, at in enumerate(self._bound[-1])]

    def run(self, candidate: Mapping[str, Any], code: bytes) -> dict[str, Any]:
        """Check a candidate, time it, and check it again; return the fields of its result."""
        try:
            launches = Launches(self._driver, candidate["kernels"], code)
            result = self._checked(launches)
            launches.close()
            return result
        except CudaError as error:
            return {"error_kind": "run_error", "error_text": str(error)}

    def _checked(self, launches: Launches) -> dict[str, Any]:
        worst = 0.0
        for reference, addresses in zip(self._references, self._bound, strict=True):
            for index in range(self._n_inputs, len(self._arguments)):
                self._driver.spoil(addresses[index], self._sizes[index])
            launches.launch(addresses, self._workspace)
            text, error = reference.check(self._outputs())
            worst = max(worst, error)
            if text:
                return _wrong(text, worst)
        first = launches.sample(self._sets[:1], self._workspace, _MIN_LAUNCHES, 1)[0]
        n_short, n_long = (int(secs / max(first, 1e-7)) for secs in (_GRAPH_SECS, _MAX_GRAPH_SECS))
        n_launches = min(max(n_short, _MIN_LAUNCHES), _MAX_LAUNCHES)
        n_launches = max(n_launches, min(len(self._sets), n_long))
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
    driver: Driver, workload: Mapping[str, Any], references: list[SampledReference]
) -> Iterator[Bench]:
    bench = Bench(driver, workload)
    try:
        bench.prepare(workload, references)
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
