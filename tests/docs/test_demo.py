"""Parsing of the output of ``tuner bench`` by the demonstration."""

import pytest

from benchmarks.demo import read_bench
from tuner.cli.rendering.comparison import show_comparison
from tuner.compile.benchmark import Comparison


def _printed(capsys: pytest.CaptureFixture[str], estimated_secs: float | None) -> str:
    show_comparison(
        Comparison(
            library_secs=0.0036,
            library_samples=(0.0036,),
            estimated_secs=estimated_secs,
            n_threads=2,
            peer="onnxruntime",
            peer_secs=0.0048,
            peer_samples=(0.0048,),
            absolute_error=1e-8,
            relative_error=1e-6,
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


def test_a_bench_without_a_peer_is_refused() -> None:
    """A missing number is an error."""
    with pytest.raises(ValueError, match="printed no onnxruntime"):
        read_bench("library      3.6000 ms median, 2 threads\nratio 0.75 \n")
