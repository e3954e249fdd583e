"""The table of ``tuner bench``, its differences and its warnings."""

import pytest

from tuner.cli.rendering.comparison import show_comparison
from tuner.compile.bench.agreement import OutputCheck
from tuner.compile.bench.comparison import Comparison, PeerResult, SkippedPeer


def shown(capsys: pytest.CaptureFixture[str], comparison: Comparison) -> str:
    """Return what is printed."""
    show_comparison(comparison)
    return capsys.readouterr().out


def compared(*outputs: OutputCheck, device: str = "cpu", library_device: str = "cpu") -> Comparison:
    """Return a comparison with one peer."""
    peer = PeerResult("onnxruntime", "1.31.1", device, (2e-3,), outputs, 0.5)
    skipped = SkippedPeer("openvino", "not installed", "pip install -e '.[openvino]'")
    return Comparison(
        (1e-3,), None, 2, library_device, {}, "m.onnx", "float32", (peer,), (skipped,)
    )


def test_peer_on_another_device_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A library of a GPU is never compared with a CPU without saying so."""
    ok = OutputCheck("y", 10)

    text = shown(capsys, compared(ok, library_device="cuda"))

    assert "the library runs on the GPU, onnxruntime on the CPU" in text
    assert "compares two devices" not in shown(capsys, compared(ok))
    both = compared(ok, device="cuda", library_device="cuda")
    assert "compares two devices" not in shown(capsys, both)


def test_missing_peer_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With the command that installs it."""
    text = shown(capsys, compared(OutputCheck("y", 10)))

    assert "openvino: not installed: pip install -e '.[openvino]'" in text


def test_the_estimate_is_that_at_the_clock_of_the_comparison(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A device at half of its speed takes twice as long as its records: that is agreement."""
    slow = Comparison((2e-3,), 0.9e-3, 2, "cpu", {}, clock=0.5)

    assert slow.estimate_error == pytest.approx(-0.1)
    text = " ".join(shown(capsys, slow).split())
    assert "estimate 1.8000 ms by the records, at 50% of their clock (-10.0%)" in text
    assert "clock" not in shown(capsys, Comparison((2e-3,), 0.9e-3, 2, "cpu", {}))


def test_busy_machine_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    """Outliers alone are not, since medians do not follow them."""
    outlier = Comparison((1e-3,) * 9 + (5e-3,), None, 2, "cpu", {})
    busy = Comparison((1e-3,) * 5 + (2e-3,) * 5, None, 2, "cpu", {})

    assert "not reliable" not in shown(capsys, outlier)
    assert "not reliable" in shown(capsys, busy)


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (OutputCheck("y", 10, n_differing=3, absolute_error=0.5, worst=7.0), "3 of 10 elements"),
        (OutputCheck("y", 10, n_differing=3, absolute_error=0.5, worst=7.0), "7 times the tole"),
        (OutputCheck("y", 10, n_differing=3, n_not_finite=2), "2 of them NaN or infinite"),
        (OutputCheck("y", 10, problem="shape (1,), and (2,) in the peer"), "shape (1,), and (2,)"),
    ],
)
def test_difference_is_described(
    capsys: pytest.CaptureFixture[str], check: OutputCheck, words: str
) -> None:
    """Output, count and worst error."""
    text = shown(capsys, compared(check))

    assert "output 'y' differs from onnxruntime" in text
    assert words in text


def test_constant_outputs_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    """Agreement of constants proves little; one output that varies is enough."""
    constant = OutputCheck("y", 10, is_constant=True)

    assert "proves little" in shown(capsys, compared(constant))
    assert "proves little" not in shown(capsys, compared(constant, OutputCheck("z", 10)))


def test_what_float64_confirms_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """It does not count as a difference."""
    text = shown(capsys, compared(OutputCheck("y", 10, n_near_ties=2)))

    assert "float64   2 elements unlike onnxruntime, and right" in text
    assert "float64" not in shown(capsys, compared(OutputCheck("y", 10)))


def test_an_estimate_without_a_clock_is_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """An error at an unknown clock would say nothing."""
    unread = Comparison((2e-3,), 0.9e-3, 2, "cpu", {}, clock=None)

    assert unread.estimate_error is None
    assert "0.9000 ms by the records (not compared" in shown(capsys, unread)
