"""Results of the corpus: a file for each network, and the summary that is committed."""

import dataclasses
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

_ROOT = Path(__file__).parents[2]
#: Packages that decide results beside the tuner itself.
_VERSIONS = ("apache-tvm", "onnxruntime", "openvino", "onnxslim")


@dataclass
class Result:
    """Outcome of one network.

    Attributes:
        name: Name of its entry.
        stage: ``fetch``, ``extract``, ``build`` or ``compare`` if it ended there, else ``done``.
        error: Reason for a failure, one line; None without one.
        extract_secs: Time to load and split the network, process start included.
        n_calls: Kernel calls in one inference.
        build_secs: Time to build a library without records.
        n_fallbacks: Subgraphs without a record.
        agrees: True if all outputs agree with those of ONNX Runtime; None if not compared.
        is_exact: True if some elements differ from ONNX Runtime, and float64 confirms them.
        worst_error: Largest error as a share of its tolerance.
        is_degenerate: True if all outputs are constant, so that agreement proves little.
        is_disturbed: True if samples were spread widely.
        is_timed: False if the network was compared while something else used the machine; its
            times are those of the run before, if it has any.
        library_secs: Median latency of the library.
        peer_secs: Median latency of each peer by name, in turns with the library.
        secs: Duration of all stages.
        date: Day of the result.
        revision: Hash of the tuner that it is of, see :func:`revision`.
    """

    name: str
    stage: str = "fetch"
    error: str | None = None
    extract_secs: float | None = None
    n_tasks: int | None = None
    n_calls: int | None = None
    build_secs: float | None = None
    n_fallbacks: int | None = None
    agrees: bool | None = None
    is_exact: bool = False
    worst_error: float | None = None
    is_degenerate: bool = False
    is_disturbed: bool = False
    is_timed: bool = True
    library_secs: float | None = None
    peer_secs: dict[str, float] = field(default_factory=dict)
    secs: float = 0.0
    date: str = ""
    revision: str = ""

    @property
    def is_passed(self) -> bool:
        """True if the network loads, builds and agrees."""
        return self.stage == "done" and bool(self.agrees)

    def ratio(self, peer: str) -> float | None:
        """Return latency over that of a peer; None if either is unknown."""
        if self.library_secs is None or peer not in self.peer_secs:
            return None
        return self.library_secs / self.peer_secs[peer]


def revision() -> str:
    """Return a hash of the tuner's code and of the packages that decide results."""
    digest = hashlib.sha256()
    for file in sorted((_ROOT / "tuner").rglob("*.py")):
        digest.update(file.relative_to(_ROOT).as_posix().encode())
        digest.update(file.read_bytes())
    for package in _VERSIONS:
        digest.update(importlib.metadata.version(package).encode())
    return digest.hexdigest()[:12]


def write(file: Path, result: Result) -> None:
    """Write one result; a reader never sees half of it."""
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(dataclasses.asdict(result), indent=1), encoding="utf-8")
    partial.replace(file)


def read(file: Path) -> Result | None:
    """Return the result of a file; None if there is none."""
    if not file.is_file():
        return None
    return _result(json.loads(file.read_text(encoding="utf-8")))


def write_summary(file: Path, results: Iterable[Result]) -> None:
    """Write all results into one file, one line each."""
    lines = [
        json.dumps(_rounded(dataclasses.asdict(result)))
        for result in sorted(results, key=lambda result: result.name)
    ]
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def parse_summary(text: str) -> dict[str, Result]:
    """Return the results of such a file by name."""
    return {result.name: result for result in map(_result, json.loads(text or "[]"))}


def without_times(result: Result) -> Result:
    """Return what a run shows that others disturbed."""
    return replace(
        result,
        extract_secs=None,
        build_secs=None,
        library_secs=None,
        peer_secs={},
        is_disturbed=False,
        is_timed=False,
    )


def with_times_of(result: Result, before: Result | None) -> Result:
    """Return a result with the times of the run before, unless it has its own."""
    if result.is_timed or before is None or not result.is_passed:
        return result
    return replace(
        result,
        extract_secs=before.extract_secs,
        build_secs=before.build_secs,
        library_secs=before.library_secs,
        peer_secs=before.peer_secs,
        is_disturbed=before.is_disturbed,
    )


def mean_ratio(results: Iterable[Result], peer: str) -> float | None:
    """Return the geometric mean of the ratios to a peer; None without one."""
    ratios = [result.ratio(peer) for result in results]
    known = [ratio for ratio in ratios if ratio is not None]
    return geometric_mean(known) if known else None


def _result(data: dict[str, Any]) -> Result:
    known = {each.name for each in dataclasses.fields(Result)}
    return Result(**{name: value for name, value in data.items() if name in known})


def _rounded(value: Any) -> Any:
    """Return plain data with floats of four significant digits."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value
