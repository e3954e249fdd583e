"""Nsight Compute on the slowest kernels of a library."""

import csv
import io
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_N_KERNELS, _N_LAUNCHES = 5, 20
# Their names are stable, those of metrics are not.
_SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis", "Occupancy", "WarpStateStats")
_SHARE = ".avg.pct_of_peak_sustained_"
_KEPT = {
    "gpu__time_duration.sum": "time",
    f"gpu__dram_throughput{_SHARE}elapsed": "DRAM",
    f"lts__throughput{_SHARE}elapsed": "L2",
    f"sm__throughput{_SHARE}elapsed": "SM",
    f"sm__pipe_tensor_cycles_active{_SHARE}active": "tensor pipe",
    f"sm__warps_active{_SHARE}active": "warps",
    "launch__registers_per_thread": "registers",
    "launch__waves_per_multiprocessor": "waves",
}
_STALL = re.compile(r"issue_stalled_(.*)_per_issue_active\.ratio")
_N_STALLS = 3


def command(kernels: Sequence[Mapping[str, Any]], report: Path) -> list[str]:
    """Return the words before a command whose slowest kernels are measured.

    Args:
        kernels: Kernels with ``name`` and ``us``.
        report: File of the report, in CSV.
    """
    slowest = sorted(kernels, key=lambda kernel: -kernel["us"])
    names = list(dict.fromkeys(kernel["name"] for kernel in slowest))[:_N_KERNELS]
    program = shutil.which("ncu") or next(
        map(str, Path("/").glob("usr/local/cuda*/bin/ncu")), "ncu"
    )
    return [
        program, "--cache-control", "none", "--clock-control", "none",
        *(word for section in _SECTIONS for word in ("--section", section)),
        "--kernel-name", f"regex:^({'|'.join(map(re.escape, names))})$",
        "--launch-count", str(_N_LAUNCHES), "--csv", "--page", "raw", "--log-file", str(report),
    ]  # fmt: skip


def read(report: str) -> list[dict[str, Any]]:
    """Return the kernels of a report: name, launch, and what limits it.

    Raises:
        ValueError: If it has no table.
    """
    lines = report.splitlines(keepends=True)
    begin = next((at for at, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        raise ValueError("ncu wrote no table")
    rows = list(csv.DictReader(io.StringIO("".join(lines[begin:]))))
    units, launches = rows[0], rows[1:]
    return [
        {
            "name": row["Kernel Name"],
            "grid": row.get("Grid Size", ""),
            "block": row.get("Block Size", ""),
            **{f"{kept}, {units[n] or 1}": row[n] for n, kept in _KEPT.items() if n in row},
            "stalls": _stalls(row),
        }
        for row in launches
    ]


def _stalls(row: Mapping[str, str]) -> str:
    """Return the reasons for which warps wait longest, in warps that wait for each that issues."""
    ratios = {
        matched[1]: float(value.replace(",", ""))
        for name, value in row.items()
        if (matched := _STALL.search(name)) and matched[1] != "selected"
    }
    longest = sorted(ratios, key=lambda reason: -ratios[reason])[:_N_STALLS]
    return ", ".join(f"{reason} {ratios[reason]:.2f}" for reason in longest if ratios[reason])
