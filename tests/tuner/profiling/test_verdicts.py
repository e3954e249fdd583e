"""Each verdict has its cause."""

from dataclasses import replace

import pytest

from tuner.library.manifest import InputValue, Manifest, Program, Source, SubgraphEntry
from tuner.profiling.verdicts import MEANINGS, KernelFacts, judge, tune_command

_TUNED = SubgraphEntry("conv2d[1x8x8x8]", "f" * 16, 1, 3, 1e-4)
_UNTUNED = replace(_TUNED, record=None, latency=None)
_FACTS = KernelFacts(flop=1e7, n_bytes=1000, roof_secs=4e-5, n_trials=100)


@pytest.mark.parametrize(
    ("kind", "entry", "facts", "secs"),
    [
        ("copy", None, KernelFacts(), 1e-4),
        ("copy", _UNTUNED, replace(_FACTS, flop=0.0, n_trials=0), 1e-4),
        ("untuned", _UNTUNED, _FACTS, 1e-4),
        ("untuned", _UNTUNED, KernelFacts(), 1e-4),
        ("roof", _TUNED, replace(_FACTS, roof_secs=9e-5), 1e-4),
        ("roof", _UNTUNED, replace(_FACTS, roof_secs=9e-5), 1e-4),
        ("improving", _TUNED, replace(_FACTS, is_improving=True), 1e-4),
        ("small", replace(_TUNED, latency=5e-6), replace(_FACTS, roof_secs=1e-6), 5e-6),
        ("cold", _TUNED, _FACTS, 1.3e-4),
        ("memory", _TUNED, replace(_FACTS, is_memory_bound=True), 1e-4),
        ("compute", _TUNED, _FACTS, 1e-4),
        ("compute", _TUNED, KernelFacts(flop=1e7, n_trials=100), 1e-4),
    ],
)
def test_verdict(kind: str, entry: SubgraphEntry | None, facts: KernelFacts, secs: float) -> None:
    """The first cause that holds gives the verdict, and every verdict has a meaning."""
    verdict = judge(entry, facts, secs, "tuner tune net.onnx")

    assert verdict.kind == kind
    assert verdict.reason == MEANINGS[verdict.kind]


def test_only_what_trials_could_improve_has_a_command() -> None:
    """A kernel at its roof is not worth a trial."""
    tune = "tuner tune net.onnx"
    assert judge(_TUNED, _FACTS, 1e-4, tune).command == tune
    assert judge(_TUNED, replace(_FACTS, roof_secs=9e-5), 1e-4, tune).command == ""


@pytest.mark.parametrize(
    ("source", "target", "command"),
    [
        (Source("zoo:mlp"), '{"kind":"cuda"}', "tuner tune zoo:mlp --target cuda"),
        (
            Source("my net.onnx", random_weights=7),
            '{"kind":"llvm"}',
            "tuner tune 'my net.onnx' --input x=1,8 --input past=1,0,64 --input sr=16000 "
            "--input cached=true --random-weights 7",
        ),
    ],
)
def test_the_command_tunes_the_network_that_ran(source: Source, target: str, command: str) -> None:
    """It has the shapes, the values and the weights that the library was built with."""
    values: dict[str, InputValue] = {"past": (1, 0, 64), "sr": 16000, "cached": True}
    inputs = {"x": ((1, 8), "float32"), "scale": ((), "float32")}
    program = Program("main", "f" * 16, inputs, (), {}, values=values)
    described = Manifest("net", target, {}, {}, ("y",), (program,), (), (), {}, "", source, "")

    assert tune_command(described, program) == command
