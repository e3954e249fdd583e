"""The table of ``tuner bench``, its differences and its warnings."""

from typing import Any

import pytest

from tuner.cli.rendering.comparison import show_comparison
from tuner.compile.bench.agreement import OutputCheck
from tuner.compile.bench.comparison import Comparison, PeerResult, SkippedPeer


def compared(*outputs: OutputCheck, device: str = "cpu", library_device: str = "cpu") -> Comparison:
    """Return a comparison with one peer."""
    peer = PeerResult("onnxruntime", "1.31.1", device, (2e-3,), outputs, 0.5)
    skipped = SkippedPeer("openvino", "not installed", "pip install 'subgraph-tuner[openvino]'")
    return Comparison(
        (1e-3,), None, 2, library_device, {}, "m.onnx", "float32", (peer,), (skipped,)
    )


_EQUAL = OutputCheck("y", 10)
_CONSTANT = OutputCheck("y", 10, is_constant=True)
_FAR = OutputCheck("y", 10, n_differing=3, absolute_error=0.5, worst=7.0)
_DIFFERS = "output 'y' differs from onnxruntime"


def alone(secs: tuple[float, ...], estimate: float | None = None, **more: Any) -> Comparison:
    """Return a comparison without peers."""
    return Comparison(secs, estimate, 2, "cpu", {}, **more)


@pytest.mark.parametrize(
    ("comparison", "texts", "absent"),
    [
        (
            compared(_EQUAL),
            ["openvino: not installed: pip install 'subgraph-tuner[openvino]'"],
            "two dev",
        ),
        # A library of a GPU is never compared with a CPU without saying so.
        (
            compared(_EQUAL, library_device="cuda"),
            ["the library runs on the GPU, onnxruntime on the CPU"],
            "float64",
        ),
        (compared(_EQUAL, device="cuda", library_device="cuda"), [], "compares two devices"),
        # A device at half of its speed takes twice as long as its records: that is agreement.
        (
            alone((2e-3,), 0.9e-3, clock=0.5),
            ["estimate 1.8000 ms by the records, at 50% of their clock (-10.0%)"],
            "not compared",
        ),
        (alone((2e-3,), 0.9e-3), [], "clock"),
        (alone((2e-3,), 0.9e-3, clock=None), ["0.9000 ms by the records (not compared"], "%"),
        # Medians do not follow outliers.
        (alone((1e-3,) * 9 + (5e-3,)), [], "not reliable"),
        (alone((1e-3,) * 5 + (2e-3,) * 5), ["not reliable"], "float64"),
        (compared(_FAR), [_DIFFERS, "3 of 10 elements", "7 times the tole"], "NaN"),
        (
            compared(OutputCheck("y", 10, n_differing=3, n_not_finite=2)),
            [_DIFFERS, "2 of them NaN or infinite"],
            "proves",
        ),
        (
            compared(OutputCheck("y", 10, problem="shape (1,), and (2,) in the peer")),
            [_DIFFERS, "shape (1,), and (2,)"],
            "NaN",
        ),
        # One output that varies is enough.
        (compared(_CONSTANT), ["proves little"], _DIFFERS),
        (compared(_CONSTANT, OutputCheck("z", 10)), [], "proves little"),
        # What float64 confirms does not count as a difference.
        (
            compared(OutputCheck("y", 10, n_near_ties=2)),
            ["float64 2 elements unlike onnxruntime, and right"],
            _DIFFERS,
        ),
    ],
)
def test_what_a_comparison_shows(
    capsys: pytest.CaptureFixture[str], comparison: Comparison, texts: list[str], absent: str
) -> None:
    """Peers that are missing or elsewhere, estimates, doubts, and each difference of outputs."""
    show_comparison(comparison)

    shown = " ".join(capsys.readouterr().out.split())
    assert [text for text in texts if text not in shown] == []
    assert absent not in shown


def test_an_estimate_is_compared_at_the_clock_of_the_comparison() -> None:
    """An error at an unknown clock would say nothing."""
    assert alone((2e-3,), 0.9e-3, clock=0.5).estimate_error == pytest.approx(-0.1)
    assert alone((2e-3,), 0.9e-3, clock=None).estimate_error is None
