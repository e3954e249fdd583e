"""Parsing of the output of ``tuner bench`` by the demonstration."""

import pytest

from benchmarks.demo import Bench, _conclude, read_bench
from tuner.cli.rendering.comparison import show_comparison
from tuner.compile.bench.agreement import OutputCheck
from tuner.compile.bench.comparison import Comparison, PeerResult


def _printed(capsys: pytest.CaptureFixture[str], estimated_secs: float | None) -> str:
    show_comparison(
        Comparison(
            library_samples=(0.0036,),
            estimated_secs=estimated_secs,
            n_threads=2,
            device="cpu",
            inputs={},
            peers=(
                PeerResult(
                    "onnxruntime", "1.31.1", "cpu", (0.0048,), (OutputCheck("y", 10),), 0.75
                ),
            ),
        )
    )
    return capsys.readouterr().out


@pytest.mark.parametrize("estimated_secs", [0.0035, None])
def test_the_demonstration_reads_a_bench(
    capsys: pytest.CaptureFixture[str], estimated_secs: float | None
) -> None:
    """Every number of the summary equals the printed one."""
    read = read_bench(_printed(capsys, estimated_secs))

    assert read.library_secs == pytest.approx(0.0036)
    assert read.estimated_secs == pytest.approx(estimated_secs)
    assert read.peer_secs == pytest.approx(0.0048)
    assert read.ratio == pytest.approx(0.75)


def test_one_trial_is_singular(capsys: pytest.CaptureFixture[str]) -> None:
    """A short demonstration on a busy machine may store no more."""
    bench = Bench(library_secs=1e-3, estimated_secs=1e-3, peer_secs=2e-3, ratio=0.5)

    _conclude(bench, {"trials": 1, "tasks": [{}, {}]}, 30.0)

    assert "1 trial of 2 tasks, in 30 s" in capsys.readouterr().out


def test_a_bench_without_a_peer_is_refused() -> None:
    """A missing number is an error."""
    with pytest.raises(ValueError, match="printed no onnxruntime"):
        read_bench("library  CPU  3.6000  3.7 0.1\n")
