"""Logs of Ansor are read and written by the engine, imported, exported, and read by Ansor."""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from records import database
from records.logs import imported
from records.models import MeasureRecord
from records.tasks import NewWorkload, ensure_workload
from tests.cli import Cli
from tests.environments import RELAY_PYTHON, needs_relay
from tests.tuner.engines.relay.conftest import ENGINE, INSIDE, Call
from tuner import cost_models
from tuner.engines.base import Candidate, ExtractedTask, SearchRequest, TargetInfo
from tuner.engines.log_base import TraceBatch, TraceText, WorkloadText
from tuner.errors import TargetError, WorkError
from tuner.tuning_logs import ansor
from tuner.workers.pool import Pool

pytestmark = needs_relay

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="session")
def candidates(engine: Call, target: TargetInfo, convolution: ExtractedTask) -> list[Candidate]:
    """Three candidates."""
    model = cost_models.create("random", seed=1)
    request = SearchRequest(convolution.ir, target.spec, (), model.save(), 3, 32, 2, seed=5)
    candidates: list[Candidate] = engine("propose", request)
    return candidates


@pytest.fixture(scope="session")
def lines(
    engine: Call, target: TargetInfo, convolution: ExtractedTask, candidates: list[Candidate]
) -> list[str]:
    """Log lines of the candidates: the first takes 3 ms, the others 2 and 1."""
    (workload,) = _workloads(engine, convolution)
    task = json.dumps(
        [
            workload.text,
            *json.loads(engine("write_target", target.spec)),
            *json.loads(workload.arguments),
        ]
    )
    traces = tuple(candidate.trace for candidate in candidates)
    written: list[TraceText] = engine(
        "write_traces", TraceBatch(convolution.ir, target.spec, traces)
    )
    return [
        ansor.dump(task, trace.text, [secs * 1e-3], AT)
        for trace, secs in zip(written, (3, 2, 1), strict=True)
    ]


def _workloads(engine: Call, task: ExtractedTask) -> list[WorkloadText]:
    texts: list[WorkloadText] = engine("write_workload", task.ir)
    return texts


def read(engine: Call, target: TargetInfo, task: ExtractedTask, *texts: str) -> list[TraceText]:
    """Let the engine read schedules."""
    read_back: list[TraceText] = engine("read_traces", TraceBatch(task.ir, target.spec, texts))
    return read_back


def test_written_lines_can_be_read(
    engine: Call,
    target: TargetInfo,
    convolution: ExtractedTask,
    candidates: list[Candidate],
    lines: list[str],
) -> None:
    """Trace, program and target are preserved, wherever the line has the number of cores."""
    entries = [ansor.parse(line) for line in lines]

    states = read(engine, target, convolution, *(entry.trace for entry in entries))

    assert [(state.text, state.module_hash) for state in states] == [
        (candidate.trace, candidate.module_hash) for candidate in candidates
    ]
    assert engine("read_target", entries[0].target) == target.spec
    attributes = json.loads(entries[0].target)
    bare = attributes["target"].split(" -num-cores")[0]
    assert engine("read_target", json.dumps({**attributes, "target": bare})) == target.spec


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ("[]", "the state is not a pair of stages and steps"),
        ('[[],[["XX",1]]]', "Invalid step format: XX"),
        ('[[],[["SP",99,0,64,[2],1]]]', "IndexError"),
        ('[[],["SP"]]', "the trace cannot be replayed"),
        ("[", "the trace cannot be replayed"),
    ],
)
def test_steps_that_do_not_fit_are_a_problem(
    engine: Call, target: TargetInfo, convolution: ExtractedTask, state: str, problem: str
) -> None:
    """The problem has TVM's message, and the worker survives."""
    (result,) = read(engine, target, convolution, state)

    assert problem in result.problem


@pytest.mark.parametrize("text", ["cuda -arch=sm_80", "no-such-kind", "llvm -libs=cblas"])
def test_targets_that_are_not_of_this_engine_are_refused(engine: Call, text: str) -> None:
    """A log cannot set attributes that users may not set."""
    with pytest.raises(TargetError):
        engine("read_target", json.dumps({"target": text, "hardware": [2]}))


def test_a_log_includes_no_workload(engine: Call) -> None:
    """It has keys of workloads only."""
    with pytest.raises(WorkError, match="hold no workloads"):
        engine("read_workload", "[]")


@pytest.mark.slow("30 s of real tuning with Ansor")
def test_a_log_is_imported_verified_and_exported(
    tmp_path: Path, pool: Pool, target: TargetInfo, convolution: ExtractedTask, lines: list[str]
) -> None:
    """Useless lines are left out; the best record is known after its verification."""
    cli = Cli(tmp_path, {"TUNER_RELAY_PYTHON": str(RELAY_PYTHON), "TUNER_N_BUILDERS": "1"})
    text = "".join(lines)
    other = lines[0].replace('"v0.6"', '"v0.5"') + lines[0].replace('"llvm', '"llvm -device=x')
    (tmp_path / "log.json").write_text("{}\n" + other + text + lines[0][:50])
    (tmp_path / "log.gz").write_bytes(gzip.compress(text.encode()))
    unknown = cli("records", "import", "log.json")
    _store(cli, convolution)

    first = cli("records", "import", "log.json", "--json")
    again = cli("records", "import", "log.gz", "--json")
    best_before = cli("records", "best", "--json").json["records"]
    verified = cli("records", "verify", "--engine", "relay", "--json")
    assert verified.status == 0, verified.err
    exported = cli("records", "export", "--format", "ansor", "out.json", "--json")
    back = cli("records", "import", "out.json", "--json")

    assert unknown.status == 1
    assert "first extract the tasks of the network with engine relay" in unknown.out
    assert (first.json["added"], first.json["known"], first.json["torn"]) == (3, 0, 1)
    assert [each["first_line"] for each in first.json["skipped"]] == [1, 2, 3]
    assert (again.json["added"], again.json["known"]) == (0, 3)
    assert best_before == []
    assert [row["old_latency_secs"] for row in verified.json["records"]] == [1e-3]
    assert exported.json["records"] == 1
    assert (back.json["added"], back.json["known"]) == (0, 1)
    steps = pool.call(
        INSIDE, "best_of", str(tmp_path / "out.json"), convolution.ir, target.spec, timeout_secs=60
    )
    assert steps == json.loads(lines[-1])["i"][1][1]
    assert _workers(cli) == {imported.WORKER: 3, "verify": 1}


def _store(cli: Cli, task: ExtractedTask) -> None:
    opened = database.open_database(cli.url)
    with database.sessions(opened).begin() as session:
        new = NewWorkload(
            hash=task.workload, engine=ENGINE, ir=task.ir, flop=task.flop, name=task.name
        )
        ensure_workload(session, new)
    opened.dispose()


def _workers(cli: Cli) -> dict[str, int]:
    opened = database.open_database(cli.url)
    with database.sessions(opened)() as session:
        names: list[Any] = list(session.scalars(select(MeasureRecord.worker)))
    opened.dispose()
    return {name: names.count(name) for name in names}
