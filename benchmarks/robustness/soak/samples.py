"""Samples of the memory of every process of a service, and of the bytes on its disk."""

import asyncio
import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.robustness.soak.faults import by_role

_INTERVAL_SECS = 5.0
_WARM_UP_SECS = 60.0
_MIN_SPAN_SECS = 120.0
# Growth that counts as flat: allocators keep what they once had.
_MAX_MIB_PER_MINUTE = 1.0


@dataclass
class Samples:
    """Memory of processes by their ages, and the bytes of folders.

    Attributes:
        pid: Process of ``tuner serve``.
        data_dir: Its data directory.
        memory: Age, seconds, and resident bytes, by role and process.
        disk: Bytes of the data directory, sample by sample.
    """

    pid: int
    data_dir: Path
    memory: dict[tuple[str, int, float], list[tuple[float, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    disk: list[int] = field(default_factory=list)

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self._sample()
            self.disk.append(sum(sizes(self.data_dir).values()))
            await asyncio.sleep(_INTERVAL_SECS)

    def _sample(self) -> None:
        processes = {**by_role(self.pid), "supervisor": [psutil.Process(self.pid)]}
        for role, of_role in processes.items():
            for process in of_role:
                try:
                    began, rss = process.create_time(), process.memory_info().rss
                except psutil.Error:
                    continue
                key = (role, process.pid, began)
                self.memory[key].append((psutil.time.time() - began, rss))

    def growth(self) -> dict[str, dict[str, Any]]:
        """Return the growth of the longest process of each role after its warm-up."""
        longest: dict[str, list[tuple[float, int]]] = {}
        peaks: dict[str, int] = {}
        for (role, _, _), samples in self.memory.items():
            warm = [sample for sample in samples if sample[0] >= _WARM_UP_SECS]
            peaks[role] = max(peaks.get(role, 0), *(rss for _, rss in samples))
            if _span(warm) > _span(longest.get(role, [])):
                longest[role] = warm
        return {
            role: {
                "peak_mib": peak >> 20,
                "span_secs": round(_span(longest.get(role, []))),
                "mib_per_minute": _slope(longest.get(role, [])),
            }
            for role, peak in sorted(peaks.items())
        }


def is_flat(growth: dict[str, dict[str, Any]]) -> bool:
    """Return whether no process grows that was watched for long enough."""
    slopes = [row["mib_per_minute"] for row in growth.values()]
    return all(slope is None or slope <= _MAX_MIB_PER_MINUTE for slope in slopes)


def sizes(data_dir: Path) -> dict[str, int]:
    """Return the bytes of each folder of a data directory; files and folders may go during it."""
    totals: dict[str, int] = {}
    for folder, _, names in os.walk(data_dir):
        for path in (Path(folder, name) for name in names):
            try:
                n_bytes = path.lstat().st_blocks * 512
            except OSError:
                continue
            name = path.relative_to(data_dir).parts[0]
            totals[name] = totals.get(name, 0) + n_bytes
    return dict(sorted(totals.items()))


def _span(samples: list[tuple[float, int]]) -> float:
    return samples[-1][0] - samples[0][0] if samples else 0.0


def _slope(samples: list[tuple[float, int]]) -> float | None:
    """Return MiB a minute by least squares; None for a process that was not watched for long."""
    if _span(samples) < _MIN_SPAN_SECS:
        return None
    ages, bytes_ = np.array(samples, dtype=float).T
    return round(float(np.polyfit(ages / 60.0, bytes_ / 2**20, 1)[0]), 3)
