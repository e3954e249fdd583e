"""A manifest and the database are enough to compile the same bytes again."""

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
from tuner.cli.commands.reproduction import Reproduction
from tuner.compile.reproduce import Reproduced, read_manifest, reproduce
from tuner.context import Context, open_context
from tuner.errors import RequestError
from tuner.library import manifest as manifests
from tuner.library.manifest import Manifest
from tuner.settings import Settings
from tuner.workers.pool import Pool
from tuner.workers.pools import fresh_worker

N_TASKS = toy.N_TASKS


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A network of the toy engine in ``mlp.lib``: all of it is tuned but one subgraph."""
    cli = Cli(tmp_path_factory.mktemp("built"), {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "1"})
    options = ("--trials", "12", "--trials-per-round", "4", "--cost-model", "random")
    assert cli("tune", "zoo:mlp", *options).status == 0
    answer = cli("build", "zoo:mlp", "-o", "mlp.lib", "--json")
    assert answer.status == 0, answer.err
    assert answer.json["fallbacks"] == 1
    return cli


@pytest.fixture(scope="module")
def worker(built: Cli) -> Iterator[Pool]:
    """A process that compiles."""
    with fresh_worker(Settings("", built.data_dir, toy.NAME, 1)) as started:
        yield started


@pytest.fixture
def manifest(built: Cli) -> Manifest:
    """What was built."""
    return manifests.read(built.folder / "mlp.lib")


@pytest.fixture
def context(built: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    """A copy of the database, and an empty data directory: nothing is in its cache."""
    for name in ("TUNER_CACHE_DIR", "TUNER_CACHE_REMOTE", "TUNER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TUNER_ENGINE", toy.NAME)
    shutil.copy(built.data_dir / "tuner.db", tmp_path / "copy.db")
    with open_context(f"sqlite:///{tmp_path / 'copy.db'}", tmp_path / "data") as opened:
        yield opened


def verdicts(found: Reproduced) -> list[str]:
    """How the subgraphs came out, in the order of the manifest."""
    return [each.verdict for each in found.subgraphs]


def test_all_objects_are_the_same_bytes(
    context: Context, manifest: Manifest, worker: Pool, tmp_path: Path
) -> None:
    """Tuned or not; they are kept where one asks for it, and nothing enters the cache."""
    told: list[Any] = []

    found = reproduce(context, manifest, worker, tmp_path / "objects", told.append)

    assert verdicts(found) == ["identical"] * N_TASKS
    assert found.identical
    assert tuple(told) == found.subgraphs
    kept = {path.name: manifests.sha256_of(path) for path in (tmp_path / "objects").iterdir()}
    assert kept == {
        f"{entry.entry}.{name}": sha256
        for entry in manifest.subgraphs
        for name, sha256 in entry.objects.items()
    }
    assert not list(context.settings.cache_dir.rglob(f"*{manifest.subgraphs[0].entry[:12]}*"))


def test_other_bytes_are_told(context: Context, manifest: Manifest, worker: Pool) -> None:
    """With the name of the file; the others are compared all the same."""
    first = replace(manifest.subgraphs[0], objects={"kernel.o": "0" * 64})
    altered = replace(manifest, subgraphs=(first, *manifest.subgraphs[1:]))

    found = reproduce(context, altered, worker)

    assert verdicts(found) == ["differs"] + ["identical"] * (N_TASKS - 1)
    assert found.subgraphs[0].why == "other bytes: kernel.o"
    assert not found.identical


def test_what_the_database_lacks_is_named(
    context: Context, manifest: Manifest, worker: Pool
) -> None:
    """A workload or a trace that is unknown there cannot be compiled, nor can altered entries."""
    tuned = [entry for entry in manifest.subgraphs if entry.trace is not None]
    gone, traceless, altered = tuned[:3]
    with context.sessions.begin() as session:
        session.execute(
            update(Workload).where(Workload.hash == gone.workload).values(hash="elsewhere")
        )
        session.execute(
            update(MeasureRecord)
            .where(MeasureRecord.trace_hash == traceless.trace)
            .values(trace_hash="other")
        )
    swapped = replace(altered, trace=None)
    odd = replace(manifest, subgraphs=(gone, traceless, swapped))

    found = reproduce(context, odd, worker)

    assert verdicts(found) == ["cannot"] * 3
    reasons = [each.why for each in found.subgraphs]
    assert f"no workload {gone.workload}" in reasons[0]
    assert f"no record of {traceless.workload} with trace {traceless.trace}" in reasons[1]
    assert "it was altered" in reasons[2]


def test_names_of_a_manifest_are_no_paths(
    context: Context, manifest: Manifest, worker: Pool, tmp_path: Path
) -> None:
    """A workload or an entry that points elsewhere is unknown, and touches nothing there."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").touch()
    bad = replace(manifest.subgraphs[0], workload=str(victim))
    worse = replace(manifest.subgraphs[1], entry=str(victim))

    found = reproduce(context, replace(manifest, subgraphs=(bad, worse)), worker)

    assert verdicts(found) == ["cannot", "cannot"]
    assert [path.name for path in victim.iterdir()] == ["kept"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": {"name": "toy", "tvm": "0.26"}}, "tvm was 0.26, is not there"),
        ({"compiler": {"objects": 7}}, "compiler objects was 7, is not there"),
        ({"device": {"name": "another"}}, "name was another, is toy"),
    ],
)
def test_another_version_is_refused_before_anything_is_compiled(
    context: Context, manifest: Manifest, worker: Pool, changes: dict[str, Any], reason: str
) -> None:
    """Other bytes would come of it: what differs is named."""
    told: list[Any] = []

    with pytest.raises(RequestError, match=reason):
        reproduce(context, replace(manifest, **changes), worker, None, told.append)

    assert told == []


def test_a_folder_with_something_in_it_is_left_alone(
    context: Context, manifest: Manifest, worker: Pool, tmp_path: Path
) -> None:
    """Objects go into a new folder, or an empty one."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").touch()

    with pytest.raises(RequestError, match="is there already"):
        reproduce(context, manifest, worker, tmp_path / "full")
    with pytest.raises(RequestError, match="is there already"):
        reproduce(context, manifest, worker, tmp_path / "full" / "kept")

    (tmp_path / "empty").mkdir()
    assert reproduce(context, manifest, worker, tmp_path / "empty").identical
    assert len(list((tmp_path / "empty").iterdir())) == N_TASKS


def test_a_manifest_is_named_by_its_file_or_its_folder(built: Cli, tmp_path: Path) -> None:
    """Anything else is an error of the request."""
    folder = built.folder / "mlp.lib"

    assert read_manifest(folder) == read_manifest(folder / manifests.MANIFEST)
    (tmp_path / "broken.json").write_text("{")
    for path in (tmp_path / "broken.json", tmp_path / "gone.json", tmp_path):
        with pytest.raises(RequestError):
            read_manifest(path)


def test_a_reproduction_is_reported(
    context: Context, manifest: Manifest, worker: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    """For programs with every hash, for people with what is wrong."""
    first = replace(manifest.subgraphs[0], objects={})
    altered = replace(manifest, subgraphs=(first, *manifest.subgraphs[1:]))
    outcome = Reproduction(reproduce(context, altered, worker))

    said = json.loads(json.dumps(outcome.as_json()))
    outcome.show()

    assert (said["identical"], said["differing"], said["impossible"]) == (N_TASKS - 1, 1, 0)
    assert said["subgraphs"][1]["objects"] == dict(manifest.subgraphs[1].objects)
    shown = capsys.readouterr().out
    assert f"{N_TASKS - 1} of {N_TASKS} subgraphs are byte-identical" in shown
    assert "differs: other bytes: kernel.o" in shown


@pytest.mark.tvm
@pytest.mark.filterwarnings("ignore:::tvm")
def test_the_real_engine_compiles_the_same_bytes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another process with another hash seed, by another order and in other folders."""
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
        found = reproduce(context, backwards, worker)

    assert [each.why for each in found.subgraphs] == [""] * len(manifest.subgraphs)
    assert found.identical
