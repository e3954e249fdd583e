"""Limits of a check against measured turns."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tuner.library.small_library import described
from tuner.cli.rendering.check_reports import as_markdown, remarks_on
from tuner.compile.bench.bench_model import Called
from tuner.compile.bench.gate import (
    _MAX_EXTENSION,
    MIN_TURNS,
    Checked,
    CheckRequest,
    Timing,
    _baseline,
    latency_findings,
    median_interval,
)
from tuner.errors import RequestError
from tuner.library import manifest
from tuner.library.manifest import Manifest


@pytest.mark.parametrize(
    ("n", "rank"), [(1, 0), (7, 0), (8, 0), (10, 0), (11, 1), (12, 1), (48, 14)]
)
def test_ends_are_order_statistics(n: int, rank: int) -> None:
    """They are the closest that leave a fourth of the risk to each of four looks."""
    values = [float(value) for value in range(n)]

    low, high = median_interval(values[::-1])

    assert (low, high) == (rank, n - 1 - rank)
    outside = 2 * sum(math.comb(n, k) for k in range(rank + 1)) / 2**n
    assert outside <= 0.0125 or n < MIN_TURNS


@pytest.mark.parametrize("n_turns", [MIN_TURNS, 12, 30])
def test_95_of_100_checks_at_the_limit_decide_nothing(n_turns: int) -> None:
    """A check whose limit is the median may end at any of its looks, and all count together."""
    generator = random.Random(0)
    n_checks, n_decided = 2000, 0

    for _ in range(n_checks):
        values: list[float] = []
        for _ in range(_MAX_EXTENSION):
            values += [generator.gauss() for _ in range(n_turns)]
            low, high = median_interval(values)
            if not low <= 0.0 <= high:
                n_decided += 1
                break

    assert n_decided <= 0.05 * n_checks


@pytest.mark.parametrize(
    ("factors", "outcome"),
    [
        # Equal libraries, and one that is twice as slow, on a quiet machine.
        ([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.01, 0.99, 1.0, 1.01, 0.99], "passed"),
        ([2.0, 2.01, 1.99, 2.0, 2.02, 1.98, 2.0, 2.01, 1.99, 2.0, 2.01, 1.99], "failed"),
        # One turn of twelve that was disturbed changes nothing.
        ([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.01, 0.99, 9.0, 1.01, 0.99], "passed"),
        ([1.0, 1.3, 0.7, 1.2, 1.02, 0.98, 1.4, 0.6, 0.99, 1.1, 1.2, 0.9], "undecided"),
    ],
)
def test_noise_is_told_from_a_slowdown(factors: list[float], outcome: str) -> None:
    """The interval of the ratios decides: above the limit, at or below it, or around it."""
    library = [(factor * 1e-3, factor * 1e-3) for factor in factors]
    baseline = [(1e-3, 1e-3)] * len(factors)
    request = CheckRequest(baseline=Path("old"), max_slowdown=0.03)

    (finding,) = latency_findings([library, baseline], request)

    assert (finding.name, finding.outcome) == ("slowdown", outcome)


def test_a_latency_has_one_definition() -> None:
    """The table shows the value that the limit applies to: the median over the turns."""
    turns = ((1e-3, 1e-3, 9e-3), (3e-3, 3e-3, 3e-3), (2e-3, 2e-3, 2e-3))
    timing = Timing("library", turns)

    (finding,) = latency_findings([turns], CheckRequest(max_secs=1.0))

    assert finding.value == timing.median_secs == 2e-3
    assert timing.runs_per_sec == pytest.approx(9 / 26e-3)
    assert timing.p90_secs <= timing.p99_secs <= 9e-3


def of_dtype(dtype: str) -> Manifest:
    """Return the description of a library whose input has a dtype."""
    library = described()
    (program,) = library.programs
    inputs = {name: (shape, dtype) for name, (shape, _) in program.inputs.items()}
    return replace(library, programs=(replace(program, inputs=inputs),))


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        (of_dtype("int64"), r"takes the inputs data int64\[1,3\], and new takes data float32\[1,3"),
        (replace(described(), target='{"kind":"cuda"}'), "is of the target cuda, and new of llvm"),
    ],
)
def test_a_baseline_of_another_kind_is_refused(
    tmp_path: Path, baseline: Manifest, message: str
) -> None:
    """It has other dtypes, or is of a GPU beside a library of a CPU; an equal one is taken."""
    library = of_dtype("float32")
    for folder, written in (("equal", library), ("other", baseline)):
        (tmp_path / folder).mkdir()
        manifest.write(tmp_path / folder, written)

    called = Called(Path("new"), library.target, library.inputs)
    assert _baseline(tmp_path / "equal", called) == library
    with pytest.raises(RequestError, match=message):
        _baseline(tmp_path / "other", called)


def test_markdown_shows_names_as_they_are() -> None:
    """Names of models in remarks begin no mark, no HTML and no line."""
    library = described()
    checked = Checked(library, library.programs[0], ())

    tune = "tuner tune '\x1b\x07`\n# a<b>*c*.onnx' --input data=1,3"
    remarks = remarks_on(checked, tune)
    *_, remark = as_markdown(checked, remarks).strip().splitlines()

    assert "no record" in remark
    assert remark.endswith(r"\` \# a\<b\>\*c\*.onnx' --input data=1,3\`")
    assert remark.isprintable()
