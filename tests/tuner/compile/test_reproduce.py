"""Recompilation of a library's objects from its manifest and the database."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from records.models import MeasureRecord, Workload
from tests.cli import Cli
from tests.engines import toy
from tuner.cli.rendering.cache.reproduction import reproduction_as_json, show_reproduction
from tuner.compile.reproduce import Reproduction, read_manifest, reproduce
from tuner.context import Context, open_context
from tuner.errors import RequestError
from tuner.library import manifest as manifests
from tuner.library.manifest import Manifest
from tuner.settings import Settings
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool

N_TASKS = toy.N_TASKS


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A network of the toy engine in ``mlp.lib``, with every subgraph tuned but one."""
    cli = Cli(tmp_path_factory.mktemp("built"), {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "1"})
    options = ("--trials", "12", "--trials-per-round", "4", "--cost-model", "random")
    assert cli("tune", "zoo:mlp", *options).status == 0
    answer = cli("build", "zoo:mlp", "-o", "mlp.lib", "--json")
    assert answer.status == 0, answer.err
    assert answer.json["fallbacks"] == 1
    return cli


@pytest.fixture(scope="module")
def worker(built: Cli) -> Iterator[Pool]:
    """A worker process of the toy engine."""
    with fresh_worker(Settings("", built.data_dir, toy.NAME, 1)) as started:
        yield started


@pytest.fixture
def manifest(built: Cli) -> Manifest:
    """The manifest of the library."""
    return manifests.read(built.folder / "mlp.lib")


@pytest.fixture
def context(built: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    """A copy of the database with an empty data directory, so that nothing is cached."""
    for name in ("TUNER_CACHE_DIR", "TUNER_CACHE_REMOTE", "TUNER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TUNER_ENGINE", toy.NAME)
    shutil.copy(built.data_dir / "tuner.db", tmp_path / "copy.db")
    with open_context(f"sqlite:///{tmp_path / 'copy.db'}", tmp_path / "data") as opened:
        yield opened


def outcomes(reproduction: Reproduction) -> list[str]:
    """Return the outcomes of the subgraphs in the order of the manifest."""
    return [subgraph.outcome for subgraph in reproduction.subgraphs]


@pytest.mark.slow("compiles kernels for many seconds")
def test_objects_are_reproduced_byte_by_byte(
    context: Context, manifest: Manifest, worker: Pool, tmp_path: Path
) -> None:
    """Objects are identical, tuned or not; they are kept in ``out`` and not in the cache."""
    received: list[Any] = []

    reproduction = reproduce(context, manifest, worker, tmp_path / "objects", received.append)

    assert outcomes(reproduction) == ["identical"] * N_TASKS
    assert reproduction.identical
    assert tuple(received) == reproduction.subgraphs
    kept = {path.name: manifests.sha256_of(path) for path in (tmp_path / "objects").iterdir()}
    assert kept == {
        f"{entry.entry}.{name}": sha256
        for entry in manifest.subgraphs
        for name, sha256 in entry.objects.items()
    }
    assert not list(context.settings.cache_dir.rglob(f"*{manifest.subgraphs[0].entry[:12]}*"))


@pytest.mark.slow("compiles kernels for many seconds")
def test_different_bytes_are_reported_with_the_file_name(
    context: Context, manifest: Manifest, worker: Pool
) -> None:
    """The other subgraphs are still compared."""
    first = replace(manifest.subgraphs[0], objects={"kernel.o": "0" * 64})
    altered = replace(manifest, subgraphs=(first, *manifest.subgraphs[1:]))

    reproduction = reproduce(context, altered, worker)

    assert outcomes(reproduction) == ["differs"] + ["identical"] * (N_TASKS - 1)
    assert reproduction.subgraphs[0].why == "other bytes: kernel.o"
    assert not reproduction.identical


def test_a_subgraph_cannot_be_compiled_without_its_records(
    context: Context, manifest: Manifest, worker: Pool
) -> None:
    """Unknown workloads, unknown traces and altered entries are reported with the reason."""
    tuned = [entry for entry in manifest.subgraphs if entry.trace is not None]
    unknown, traceless, altered = tuned[:3]
    with context.sessions.begin() as session:
        session.execute(
            update(Workload).where(Workload.hash == unknown.workload).values(hash="elsewhere")
        )
        session.execute(
            update(MeasureRecord)
            .where(MeasureRecord.trace_hash == traceless.trace)
            .values(trace_hash="other")
        )
    swapped = replace(altered, trace=None)
    broken = replace(manifest, subgraphs=(unknown, traceless, swapped))

    reproduction = reproduce(context, broken, worker)

    assert outcomes(reproduction) == ["cannot"] * 3
    reasons = [subgraph.why for subgraph in reproduction.subgraphs]
    assert f"workload {unknown.workload} is not in this database" in reasons[0]
    assert f"no record of {traceless.workload} with trace {traceless.trace}" in reasons[1]
    assert "it was altered" in reasons[2]


def test_names_in_a_manifest_are_never_used_as_paths(
    context: Context, manifest: Manifest, worker: Pool, tmp_path: Path
) -> None:
    """A workload or an entry that is an absolute path is unknown, and the path stays untouched."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").touch()
    bad = replace(manifest.subgraphs[0], workload=str(victim))
    worse = replace(manifest.subgraphs[1], entry=str(victim))

    reproduction = reproduce(context, replace(manifest, subgraphs=(bad, worse)), worker)

    assert outcomes(reproduction) == ["cannot", "cannot"]
    assert [path.name for path in victim.iterdir()] == ["kept"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": {"name": "toy", "tvm": "0.26"}}, r"tvm \(was 0.26, is missing\)"),
        ({"compiler": {"objects": 7}}, r"compiler objects \(was 7, is missing\)"),
        ({"device": {"name": "another"}}, r"name \(was another, is toy\)"),
    ],
)
def test_another_build_environment_is_rejected_before_compiling(
    context: Context, manifest: Manifest, worker: Pool, changes: dict[str, Any], reason: str
) -> None:
    """The error names each difference."""
    received: list[Any] = []

    with pytest.raises(RequestError, match=reason):
        reproduce(context, replace(manifest, **changes), worker, None, received.append)

    assert received == []


def test_only_an_empty_folder_receives_objects(
    context: Context, manifest: Manifest, worker: Pool, tmp_path: Path
) -> None:
    """A file and a folder that holds something are rejected."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").touch()

    with pytest.raises(RequestError, match="already exists"):
        reproduce(context, manifest, worker, tmp_path / "full")
    with pytest.raises(RequestError, match="already exists"):
        reproduce(context, manifest, worker, tmp_path / "full" / "kept")

    (tmp_path / "empty").mkdir()
    assert reproduce(context, manifest, worker, tmp_path / "empty").identical
    assert len(list((tmp_path / "empty").iterdir())) == N_TASKS


def test_a_manifest_is_read_from_its_file_or_its_folder(built: Cli, tmp_path: Path) -> None:
    """A broken, missing or absent manifest is an error of the request."""
    folder = built.folder / "mlp.lib"

    assert read_manifest(folder) == read_manifest(folder / manifests.MANIFEST)
    (tmp_path / "broken.json").write_text("{")
    for path in (tmp_path / "broken.json", tmp_path / "missing.json", tmp_path):
        with pytest.raises(RequestError):
            read_manifest(path)


def test_a_reproduction_is_rendered_as_json_and_as_a_table(
    context: Context, manifest: Manifest, worker: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON holds every hash, the table says which files differ."""
    first = replace(manifest.subgraphs[0], objects={})
    altered = replace(manifest, subgraphs=(first, *manifest.subgraphs[1:]))
    reproduction = reproduce(context, altered, worker)

    value = json.loads(json.dumps(reproduction_as_json(reproduction)))
    show_reproduction(reproduction)

    assert (value["identical"], value["differing"], value["impossible"]) == (N_TASKS - 1, 1, 0)
    assert value["subgraphs"][1]["objects"] == dict(manifest.subgraphs[1].objects)
    printed = capsys.readouterr().out
    assert f"{N_TASKS - 1} of {N_TASKS} subgraphs are byte-identical" in printed
    assert "differs: other bytes: kernel.o" in printed


@pytest.mark.slow("30 s of real compiling")
@pytest.mark.tvm
@pytest.mark.filterwarnings("ignore:::tvm")
def test_the_relax_engine_compiles_the_same_bytes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes do not depend on the process, its hash seed, the order of compilation or the folder."""
    cli = Cli(tmp_path, {"TUNER_N_BUILDERS": "1"})
    options = ("--trials", "2", "--trials-per-round", "1", "--cost-model", "random")
    assert cli("tune", "zoo:mlp", *options, PYTHONHASHSEED="1").status == 0
    answer = cli("build", "zoo:mlp", "-o", "mlp.lib", "--json", PYTHONHASHSEED="2")
    assert answer.status == 0, answer.err
    manifest = manifests.read(tmp_path / "mlp.lib")
    assert {entry.trace is None for entry in manifest.subgraphs} == {True, False}
    for name, value in cli.environ(PYTHONHASHSEED="3").items():
        monkeypatch.setenv(name, value)

    backwards = replace(manifest, subgraphs=manifest.subgraphs[::-1])
    with open_context(None, None) as context, fresh_worker(context.settings) as worker:
        reproduction = reproduce(context, backwards, worker)

    assert [subgraph.why for subgraph in reproduction.subgraphs] == [""] * len(manifest.subgraphs)
    assert reproduction.identical
