"""Runtimes of a comparison: the clock of their turns, and limits of their time."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.engines import toy
from tests.tuner.peers.test_peers import save_onnx
from tuner.compile.bench import bench_runtimes
from tuner.compile.bench.bench_runtimes import LibraryRuns, open_peers
from tuner.errors import RequestError
from tuner.peers.base import PeerModel
from tuner.settings import Settings

if TYPE_CHECKING:
    from tuner.workers.pool import Pool


class Library:
    """Worker of a library that takes 3 ms a run, with given readings of the clock."""

    def __init__(self, readings: Sequence[float | None]) -> None:
        self._readings: Iterator[float | None] = iter(readings)

    def call(self, _module: str, function: str, *_arguments: Any, **_options: Any) -> Any:
        """Return samples, or the next reading."""
        return next(self._readings) if function == "clock_secs" else (3e-3,) * 5


def turns(*readings: float | None) -> LibraryRuns:
    """Run a first turn, which has a reading after it alone, and one for each two others."""
    worker = cast("Pool", Library((1e-4, *readings)))
    runs = LibraryRuns(worker, "engine", Path(), Path(), clock_target="{}")
    for _ in range(1 + len(readings) // 2):
        runs(5)
    return runs


@pytest.mark.parametrize(
    "disturbed", [(2.4e-4, 1e-4), (1e-4, 2.4e-4), (None, 1e-4), (1e-4, None), (None, None)]
)
def test_turns_with_a_disturbed_reading_do_not_count(disturbed: tuple[float | None, ...]) -> None:
    """Neither one that is slow alone, nor one that is missing."""
    assert turns(*disturbed).clock_runs == []
    assert turns(*disturbed, 1e-4, 1.1e-4).clock_runs == pytest.approx([3e-3 / 1.05e-4])


@pytest.mark.parametrize("secs", [1e-4 / 1.2, 1e-4, 2.4e-4])
def test_a_speed_that_lasts_through_a_turn_counts(secs: float) -> None:
    """A turbo and a throttled device disturb nothing."""
    assert turns(secs, secs).clock_runs == pytest.approx([3e-3 / secs])


def test_peer_that_takes_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, as one that cannot load the model is."""
    save_onnx(tmp_path / "model.onnx")
    model = PeerModel(str(tmp_path / "model.onnx"), {"x": ((2, 6), "float32")}, {"n": 2}, 1, "cpu")
    monkeypatch.setattr(bench_runtimes, "_TIMEOUT_SECS", 0.001)

    with ExitStack() as stack, pytest.raises(RequestError, match="onnxruntime takes more than"):
        open_peers(
            Settings("", tmp_path, toy.NAME, 1),
            ["onnxruntime"],
            model,
            "onnx",
            tmp_path / "inputs.npz",
            stack,
        )
