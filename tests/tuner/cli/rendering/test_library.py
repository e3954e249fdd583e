"""``tuner inspect`` shows what a manifest says."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.tuner.cli.commands.conftest import Shell
from tests.tuner.library.small_library import described, fill
from tuner.library import manifest
from tuner.library.buckets import BucketedDimension, Buckets
from tuner.library.manifest import Source, Tail
from tuner.library.processors import this_machine


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell without a database."""
    return Shell(tmp_path)


def test_a_library_is_described(shell: Shell, tmp_path: Path) -> None:
    """Inputs, files, coverage and the use by this machine are lines."""
    fill(tmp_path)

    answer = shell("inspect", str(tmp_path))

    assert answer.status == 0
    for line in (
        "model      net.onnx",
        "inputs     data float32 1x3",
        "outputs    y float32 1x3",
        "runs here  yes",
        "files      lib.so 4 B",
        "1 of 2 subgraphs tuned",
    ):
        assert line in answer.out.splitlines()
    assert "record 7" in answer.out
    # On a narrow terminal, hashes go before the origin of a kernel.
    narrow = shell("inspect", str(tmp_path), COLUMNS="40").out
    assert "record 7" in narrow
    assert "Workload" not in narrow
    assert "fallback" in answer.out


def test_programs_buckets_and_a_tail_are_described(shell: Shell, tmp_path: Path) -> None:
    """A library that cannot run here says why, and a missing file is seen."""
    small = described()
    inputs = [{"data": ((n, 3), "float32"), "s": ((), "int64")} for n in (1, 4)]
    programs = tuple(
        replace(small.programs[0], inputs=each, tail="t", tail_outputs=(((n, -1), "int64"),))
        for n, each in zip((1, 4), inputs, strict=True)
    )
    changed = replace(
        small,
        programs=programs,
        buckets=Buckets((BucketedDimension("n", (1, 4), {"data": (0,)}, {"y": (0,)}),)),
        tail=Tail("NonZero", 1, 4, ("y",)),
        files={"t": "0"},
        machine="pdp11",
        source=Source(f"{'5' * 64}.onnx", "5" * 64, 3),
    )
    manifest.write(tmp_path, changed)

    answer = shell("inspect", str(tmp_path))

    assert "inputs     data float32 nx3, s int64 scalar" in answer.out
    assert "outputs    y int64 nx?" in answer.out
    assert "  program main_0: data float32 4x3, s int64 scalar -> y int64 4x?" in answer.out
    assert "  n: 1 to 4, padded to 1 or 4" in answer.out
    assert "note: 1 of 4 operators (25%), from NonZero on" in answer.out
    assert f"runs here  no: it is code for pdp11, this machine is {this_machine()}" in answer.out
    assert "files      t -" in answer.out
    model = "uploaded .onnx file, sha256 555555555555, seed 3 of random weights"
    assert f"model      {model}\n" in answer.out


def test_a_library_for_a_gpu_needs_a_driver(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library itself is compared with the GPU when it is loaded."""
    changed = replace(described(), target='{"kind":"cuda"}', device={"name": "sm_90"})
    manifest.write(tmp_path, changed)
    monkeypatch.setattr("ctypes.CDLL", Mock())
    runs = shell("inspect", str(tmp_path)).out
    monkeypatch.setattr("ctypes.CDLL", Mock(side_effect=OSError))
    refused = shell("inspect", str(tmp_path)).out

    assert "runs here  yes" in runs
    assert "runs here  no: it is for sm_90, and there is no NVIDIA driver" in refused


def test_json_has_the_contents_and_the_origin(shell: Shell, tmp_path: Path) -> None:
    """Programs have their inputs, and files their sha256 and sizes."""
    fill(tmp_path)

    shown = shell("inspect", str(tmp_path), "--json").json

    assert (shown["tuned"], shown["fallbacks"], shown["refusal"]) == (1, 1, "")
    (program,) = shown["programs"]
    assert program["inputs"] == {"data": [[1, 3], "float32"]}
    assert program["outputs"] == {"y": [[1, 3], "float32"]}
    assert program["estimated_secs"] is None
    assert shown["device"] == {"name": "CPU", "n_cores": 2}
    assert shown["source"]["name"] == "net.onnx"
    assert shown["n_bytes"] == {"lib.so": 4}
    assert shown["files"].keys() == {"lib.so"}


def test_what_is_not_a_library_is_refused(shell: Shell, tmp_path: Path) -> None:
    """The exit status is that of a wrong request."""
    answer = shell("inspect", str(tmp_path))

    assert answer.status == 2
    assert "is not a library" in answer.err
