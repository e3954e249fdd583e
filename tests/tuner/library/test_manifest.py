"""Reading, writing and checking of manifests."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.library.small_library import described, fill
from tuner.errors import RequestError
from tuner.library import manifest
from tuner.library.manifest import Program, SubgraphEntry

TAIL = {"first": "NonZero", "n_operators": 1, "n_all": 2, "returned": ["y"]}


def test_manifest_survives_its_file(tmp_path: Path) -> None:
    """Reading a written manifest gives an equal one, types included."""
    written = described(files={"lib.so": "0" * 64})

    manifest.write(tmp_path, written)

    assert manifest.read(tmp_path) == written


def program(calls: dict[str, int]) -> Program:
    """Return a program with a number of calls of each workload."""
    return Program("main_0", "0" * 64, {"data": ((1, 3), "float32")}, (), calls)


def test_estimate_is_the_sum_over_all_calls() -> None:
    """Every kernel call counts with the latency of its record."""
    subgraphs = (SubgraphEntry("a", "0", 4, 1, 2e-3), SubgraphEntry("b", "1", 1, 2, 1e-3))
    programs = (program({"0": 3, "1": 1}), program({"0": 1}))
    whole = described(subgraphs=subgraphs, programs=programs)

    assert whole.estimated_secs == pytest.approx(7e-3)
    assert whole.estimate(programs[1]) == pytest.approx(2e-3)
    assert whole.estimate(program({})) == 0.0


def test_fallback_makes_the_estimate_unknown() -> None:
    """A subgraph that was not measured leaves no estimate."""
    assert described().estimated_secs is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.pop("programs"), "is damaged"),
        (lambda raw: raw.update(programs=[]), "is damaged"),
        (lambda raw: raw["programs"][0].pop("inputs"), "is damaged"),
        (lambda raw: raw["programs"][0].update(weights=None), "is damaged"),
        (lambda raw: raw.update(weights=[{"offset": 0}]), "is damaged"),
        (lambda raw: raw.pop("version"), "is damaged"),
        (lambda raw: raw.update(version="new"), "has manifest version new"),
        (lambda raw: raw["programs"][0].update(inputs=[1, 2]), "is damaged"),
        (lambda raw: raw["programs"][0].update(inputs={"data": "float32"}), "is damaged"),
        (lambda raw: raw.update(subgraphs=[{"name": "a"}]), "is damaged"),
        (lambda raw: raw.update(subgraphs=[1]), "is damaged"),
        (lambda raw: raw.update(subgraphs=None), "is damaged"),
        (lambda raw: raw.update(files=None), "is damaged"),
        (lambda raw: raw.update(files={"../a": ""}), r"the file '\.\./a' is outside of the folder"),
        (lambda raw: raw.update(files={}), r"is damaged: lib\.so is not one of its files"),
        (lambda raw: raw.update(outputs=None), "is damaged"),
        (lambda raw: raw.update(colour="red"), "is damaged"),
        (lambda raw: raw.update(target=1), r"is damaged: .*target"),
        (lambda raw: raw.update(device=[]), r"is damaged: .*device"),
        (lambda raw: raw.update(machine=None), r"is damaged: .*machine"),
        (lambda raw: raw["source"].update(name=5), r"is damaged: .*source.name"),
        (lambda raw: raw["files"].update({"lib.so": 5}), r"is damaged: .*files"),
        (lambda raw: raw["subgraphs"][0].update(latency="1"), r"is damaged: .*\[0\].latency"),
        (lambda raw: raw["subgraphs"][0].update(n_calls=None), r"is damaged: .*\[0\].n_calls"),
        (lambda raw: raw["programs"][0].update(calls={"ab": "2"}), r"is damaged: .*calls"),
        (lambda raw: raw["programs"][0].update(inputs={"x": [["1"], "f"]}), r"damaged: .*inputs"),
        (lambda raw: raw.update(tail=TAIL), "is damaged: the tail '' is not one of its files"),
        (
            lambda raw: raw.update(tail=TAIL, programs=[{**raw["programs"][0], "tail": "../a"}]),
            r"is damaged: the tail '\.\./a' is not one of its files",
        ),
        (lambda raw: raw.update(version=99), "has manifest version 99, and"),
    ],
)
def test_damaged_manifest_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    """A RequestError of one line names the file."""
    fill(tmp_path)
    path = tmp_path / manifest.MANIFEST
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))

    with pytest.raises(RequestError, match=message) as caught:
        manifest.verify(tmp_path, manifest.read(tmp_path), [manifest.LIBRARY])
    assert len(str(caught.value).splitlines()) == 1
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"3", b"\xff\xff", b'"text"', b"[" * 200000]
)
def test_file_that_is_not_a_json_object_is_damaged(tmp_path: Path, content: bytes) -> None:
    """Reading it raises a RequestError."""
    (tmp_path / manifest.MANIFEST).write_bytes(content)

    with pytest.raises(RequestError, match="is damaged"):
        manifest.read(tmp_path)


def test_missing_manifest_is_no_library(tmp_path: Path) -> None:
    """Neither an empty folder, nor a missing one, nor a file holds a library."""
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(RequestError, match="is not a library"):
            manifest.read(folder)


def test_altered_and_missing_files_are_refused(tmp_path: Path) -> None:
    """The error names the file and says to build again."""
    fill(tmp_path)
    library = tmp_path / manifest.LIBRARY
    library.write_bytes(b"codd")
    with pytest.raises(RequestError, match=r"altered.*build it again"):
        manifest.verify(tmp_path, manifest.read(tmp_path))

    library.unlink()
    with pytest.raises(RequestError, match=r"lib.so is missing; build it again"):
        manifest.verify(tmp_path, manifest.read(tmp_path))
