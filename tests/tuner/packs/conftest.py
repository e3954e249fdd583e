"""A pack that was made, and a driver that runs it, for the tests of a folder."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli import Answer, Cli
from tests.tuner.packs.plans import Plan, build_driver
from tuner.packs import result_lines

N_CANDIDATES = 12


@dataclass(frozen=True)
class Bench:
    """A pack, the data directory that it was made with, and a driver that runs it."""

    cli: Cli
    pack: Path
    driver: Path
    plan: Plan

    @property
    def index(self) -> dict[str, Any]:
        """The index of the pack."""
        with zipfile.ZipFile(self.pack) as archive:
            index: dict[str, Any] = json.loads(archive.read("pack.json"))
        return index

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """Its candidates in their order, each with its workload."""
        return [
            {**each, "workload": workload["workload"]}
            for workload in self.index["workloads"]
            for each in workload["candidates"]
        ]

    @property
    def single(self) -> list[dict[str, Any]]:
        """Its candidates with one kernel, which no other candidate has."""
        return [each for each in self.candidates if len(each["kernels"]) == 1]

    def start(self, out: Path, *options: str, **environ: str) -> subprocess.Popen[str]:
        """Start the pack's program, with a driver but none of this project's packages."""
        variables = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        variables |= {"LD_LIBRARY_PATH": str(self.driver), "TUNER_TEST_PLAN": str(self.plan.path)}
        command = [sys.executable, "-P", str(self.pack), "run", "--out", str(out), *options]
        return subprocess.Popen(
            command, env=variables | environ, cwd=out.parent, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, out: Path, *options: str, **environ: str) -> tuple[int, str]:
        """Run the pack's program without a compiler; return its status and output."""
        process = self.start(out, "--no-compile", *options, **environ)
        text, _ = process.communicate(timeout=120)
        return process.returncode, text

    def rows(self, results: Path) -> list[dict[str, Any]]:
        """Return the rows of results."""
        return result_lines.load(self.index["key"], results.read_bytes())[0]

    def write(self, results: Path, rows: list[dict[str, Any]], key: str = "") -> None:
        """Write rows as the runner does."""
        key = key or self.index["key"]
        results.write_bytes(b"".join(result_lines.dump(key, row) for row in rows))

    def import_(self, results: Path) -> Answer:
        """Import results."""
        return self.cli("pack", "import", str(results), "--json")


@pytest.fixture(scope="package")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A pack of a perceptron whose kernels all compute what they should."""
    return make(tmp_path_factory.mktemp("packs"), "zoo:mlp", N_CANDIDATES)


def make(folder: Path, network: str, n_candidates: int) -> Bench:
    """Make a pack whose kernels all compute what they should."""
    cli = Cli(folder, {"TUNER_N_BUILDERS": "1"})
    answer = cli(
        "pack", "make", network, "--candidates", str(n_candidates), "--json", "-o", "made.pyz"
    )
    assert answer.status == 0, answer.err
    assert answer.json["n_candidates"] == n_candidates
    plan = Plan(folder / "plan")
    bench = Bench(cli, folder / "made.pyz", build_driver(folder), plan)
    connection = sqlite3.connect(cli.data_dir / "tuner.db")
    irs = dict(connection.execute("SELECT hash, ir FROM workload"))
    (spec,) = connection.execute("SELECT spec FROM target").fetchone()
    connection.close()
    plan.write(bench.pack, irs, spec)
    return bench


@pytest.fixture(scope="package")
def results(made: Bench) -> Path:
    """Results of all candidates."""
    out = made.cli.folder / "all.results"
    status, text = made.run(out)
    assert status == 0, text
    assert f"{N_CANDIDATES} right, 0 wrong, 0 failed" in text
    return out


@pytest.fixture
def bench(made: Bench, tmp_path: Path) -> Bench:
    """The pack with a data directory and a plan of the test."""
    shutil.copytree(made.cli.data_dir, tmp_path / "data")
    pack = Path(shutil.copy(made.pack, tmp_path / made.pack.name))
    plan = Plan(Path(shutil.copy(made.plan.path, tmp_path / "plan")))
    return replace(made, cli=Cli(tmp_path), plan=plan, pack=pack)
