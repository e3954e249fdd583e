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
_KEPT = re.compile(
    r"gpu__time_duration|(dram|lts|gpu__dram|l1tex|sm)__throughput\.avg\.pct|tensor.*pct"
    r"|sm__warps_active\.avg\.pct|achieved_occupancy|issue_stalled.*(ratio|pct)"
    r"|launch__(registers|occupancy_limit|waves)|dram__bytes.*per_second"
)


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
    """Return the kernels of a report: name, launch, and the metrics that say what limits it.

    Raises:
        ValueError: If it has no table.
    """
    lines = report.splitlines(keepends=True)
    begin = next((at for at, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        raise ValueError("ncu wrote no table")
    rows = list(csv.DictReader(io.StringIO("".join(lines[begin:]))))
    units, launches = rows[0], rows[1:]
    kept = [name for name in units if _KEPT.search(name)]
    return [
        {
            "name": row["Kernel Name"],
            "grid": row.get("Grid Size", ""),
            "block": row.get("Block Size", ""),
            **{f"{name} [{units[name]}]": row[name] for name in kept},
        }
        for row in launches
    ]
