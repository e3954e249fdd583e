"""Each verdict has its cause."""

from dataclasses import replace
from pathlib import Path

import pytest

from tuner.library.manifest import InputValue, Manifest, Program, Source
from tuner.profiling.verdicts import MEANINGS, KernelFacts, judge, tune_command

_FACTS = KernelFacts(flop=1e7, n_bytes=1000, roof_secs=4e-5, n_trials=100)


@pytest.mark.parametrize(
    ("kind", "record_secs", "facts", "secs"),
    [
        ("copy", None, replace(_FACTS, flop=0.0, n_trials=0), 1e-4),
        ("untuned", None, _FACTS, 1e-4),
        ("untuned", None, KernelFacts(), 1e-4),
        ("roof", 1e-4, replace(_FACTS, roof_secs=9e-5), 1e-4),
        ("roof", None, replace(_FACTS, roof_secs=9e-5), 1e-4),
        ("roof", 1e-4, replace(_FACTS, roof_secs=9e-5, n_trials=1), 1e-4),
        ("early", 1e-4, replace(_FACTS, n_trials=31), 1e-4),
        ("compute", 1e-4, replace(_FACTS, n_trials=0), 1e-4),
        ("improving", 1e-4, replace(_FACTS, is_improving=True), 1e-4),
        ("small", 5e-6, replace(_FACTS, roof_secs=1e-6), 5e-6),
        ("cold", 1e-4, _FACTS, 1.3e-4),
        ("memory", 1e-4, replace(_FACTS, is_memory_bound=True), 1e-4),
        ("compute", 1e-4, _FACTS, 1e-4),
        ("compute", 1e-4, KernelFacts(flop=1e7, n_trials=100), 1e-4),
        ("compute", 1e-4, KernelFacts(), 1e-4),
    ],
)
def test_verdict(kind: str, record_secs: float | None, facts: KernelFacts, secs: float) -> None:
    """The first cause that holds gives the verdict, and every verdict has a meaning."""
    verdict = judge(facts, secs, record_secs, "tuner tune net.onnx", is_subgraph=True)

    assert verdict.kind == kind
    assert verdict.reason == MEANINGS[verdict.kind]
    assert judge(facts, secs, record_secs, "", is_subgraph=False).kind == "copy"


def test_only_what_trials_could_improve_has_a_command() -> None:
    """A kernel at its roof is not worth a trial."""
    tune = "tuner tune net.onnx"
    assert judge(_FACTS, 1e-4, 1e-4, tune, is_subgraph=True).command == tune
    at_roof = replace(_FACTS, roof_secs=9e-5)
    assert judge(at_roof, 1e-4, 1e-4, tune, is_subgraph=True).command == ""


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
def test_the_command_tunes_the_network_that_ran(
    source: Source, target: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the shapes, the values and the weights that the library was built with."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my net.onnx").touch()
    values: dict[str, InputValue] = {"past": (1, 0, 64), "sr": 16000, "cached": True}
    inputs = {"x": ((1, 8), "float32"), "scale": ((), "float32")}
    program = Program("main", "f" * 16, inputs, (), {}, values=values)
    described = Manifest("net", target, {}, {}, ("y",), (program,), (), (), {}, "", source, "")

    assert tune_command(described, program) == command
    assert tune_command(described, program, "gone/my net.onnx") == ""
