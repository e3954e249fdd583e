"""Records that come with the package: their kernels, and the builds that use them."""

import importlib.metadata
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from records import targets, tasks
from records.logs import imported, log_lines
from records.models import MeasureRecord
from tests.cli import Cli
from tuner.compile import absent_gpus
from tuner.compile.absent_gpus import import_shipped, read_log
from tuner.context import Context, open_context
from tuner.engines.base import TargetInfo, variant_of
from tuner.engines.relax.triton.compilation import compiler
from tuner.jobs import stale_records
from tuner.jobs.stale_records import EngineTarget

ROWS: list[dict[str, Any]] = [json.loads(line) for line in read_log()[1:]]
GPU = next(row for row in ROWS if row["kind"] == "target")
WORKLOADS = {row["hash"]: row for row in ROWS if row["kind"] == "workload"}
RECORDS = {row["workload"]: row for row in ROWS if row["kind"] == "record"}
VERSIONS = {name: GPU["device"][name] for name in ("tvm", "llvm")}
ABSENT = TargetInfo(GPU["spec"], "cuda", {"name": "sm_90", **VERSIONS})
_ENGINE = next(row["engine"] for row in WORKLOADS.values())
# A GPU that is there states its limits.
_LIMITS = {"l2_cache_size_bytes": 62914560, "max_shared_memory_per_block": 49152}
HERE = TargetInfo(
    json.dumps(json.loads(GPU["spec"]) | _LIMITS), "cuda", {**GPU["device"], "driver": "600.1"}
)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    """An empty database."""
    with open_context(f"sqlite:///{tmp_path / 'tuner.db'}", tmp_path) as opened:
        yield opened


def lent(context: Context, target: TargetInfo) -> dict[str, float]:
    """Return the latencies that a build uses for the shipped workloads, by workload."""
    with context.sessions.begin() as session:
        own = targets.ensure_target(session, target.spec, dict(target.device)).id
        workloads = {
            tasks.ensure_workload(
                session,
                tasks.NewWorkload(
                    hash=name,
                    engine=row["engine"],
                    ir=log_lines.unpack(row["ir"]) or b"",
                    flop=row["flop"],
                    name=row["name"],
                ),
            ).id: name
            for name, row in WORKLOADS.items()
        }
        ids = {tasks.ensure_task(session, each, own).id: name for each, name in workloads.items()}
        records = absent_gpus.best_records(session, target, list(ids))
    return {ids[task]: record.latency for task, record in records.items()}


def test_a_build_for_an_absent_gpu_uses_them(context: Context) -> None:
    """Each is stored once, when a network has one of their workloads."""
    for _ in range(2):
        import_shipped(context, ABSENT, ["unknown", next(iter(WORKLOADS))])

    expected = {name: row["best"]["latency"] for name, row in RECORDS.items()}
    assert lent(context, ABSENT) == expected
    with context.readers() as session:
        count = select(func.count()).select_from(MeasureRecord)
        assert session.scalar(count) == len(RECORDS) == len(WORKLOADS)


def test_a_gpu_that_is_there_measures_them_first(context: Context) -> None:
    """Another device, even of the same name, uses none before ``tuner records verify``."""
    import_shipped(context, HERE, [next(iter(WORKLOADS))])

    assert lent(context, HERE) == {}
    with context.readers() as session:
        own = imported.find_target(session, HERE.spec, dict(HERE.device))
        assert own is not None
        stale = stale_records.find(session, EngineTarget(_ENGINE, HERE, own))
    assert {best.workload for best in stale} == set(WORKLOADS)


@pytest.mark.parametrize(
    ("target", "workloads"),
    [
        (ABSENT, ["unknown"]),
        (replace(ABSENT, device={**ABSENT.device, "tvm": "0.28"}), WORKLOADS),
        (replace(ABSENT, spec=ABSENT.spec.replace("sm_90", "sm_80")), WORKLOADS),
        (replace(ABSENT, kind="llvm"), WORKLOADS),
    ],
    ids=["workloads", "version", "architecture", "kind"],
)
def test_other_code_and_networks_store_none(
    context: Context, target: TargetInfo, workloads: list[str]
) -> None:
    """They are of one architecture, and of the compilers that made them."""
    import_shipped(context, target, list(workloads))

    assert lent(context, ABSENT) == {}


def test_a_setting_leaves_them_out(context: Context) -> None:
    """A build without them shows what the first choices take."""
    settings = replace(context.settings, shipped_records=False)

    import_shipped(replace(context, settings=settings), ABSENT, list(WORKLOADS))

    assert lent(context, ABSENT) == {}


def test_they_are_of_the_tvm_that_is_required() -> None:
    """Records of another version would never be used."""
    assert GPU["device"]["tvm"] == importlib.metadata.version("apache-tvm")


@pytest.mark.tvm
@pytest.mark.skipif(not compiler.is_installed(), reason="the triton extra is not installed")
@pytest.mark.parametrize("name", WORKLOADS, ids=lambda name: WORKLOADS[name]["name"])
def test_each_is_a_kernel_that_is_still_printed(name: str) -> None:
    """Its template fits the workload, and knows its configuration."""
    from tuner.engines.relax.ir import workloads
    from tuner.engines.relax.triton import variants

    function = workloads.load(log_lines.unpack(WORKLOADS[name]["ir"]) or b"")["main"]

    assert variants.print_named(variant_of(RECORDS[name]["trace"]), function).kernels


@pytest.mark.tvm
@pytest.mark.slow("20 s: exports and compiles a network")
@pytest.mark.in_ci
@pytest.mark.skipif(not compiler.is_installed(), reason="the triton extra is not installed")
def test_a_network_is_built_with_them(tmp_path: Path) -> None:
    """The importer and the fusion make the subgraphs that were measured, and nothing is stale."""
    from benchmarks.gpu.models.networks import Network
    from benchmarks.gpu.models.sizes import FULL

    Network("bert-base", replace(FULL, n_layers=1)).export(str(tmp_path / "bert.onnx"))
    built = Cli(tmp_path)(
        "build", "bert.onnx", "--target", "cuda:sm_90", "-o", "bert.lib", "--json"
    ).json

    assert built["tuned"] == len(built["subgraphs"]) == 5
    assert built["stale"] == []
    for subgraph in built["subgraphs"]:
        record = RECORDS.get(subgraph["workload"])
        assert (subgraph["record"] is None) == (record is None)
        if record is not None:
            assert subgraph["variant"] == variant_of(record["trace"])
