"""GPUs that know the URL of a service measure its packs, whatever happens to them and to it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import func, select, update

from records import database
from records.models import now
from records.service import offered_packs, remote_devices
from records.service.owners import tokens
from records.service.service_models import PackPortion, RemoteDevice
from tests.cli import ROOT, start
from tests.forked import Process
from tests.tuner.executors.remote.test_fleet import slow_link
from tests.tuner.packs.conftest import N_CANDIDATES, Bench
from tests.tuner.packs.plans import Plan
from tests.waiting import wait_for
from tuner.engines.relax.triton.compilation import compiler

pytestmark = [
    pytest.mark.in_ci,
    pytest.mark.slow("20 s: workers of packs are killed"),
    pytest.mark.tvm,
    pytest.mark.filterwarnings("ignore:::tvm"),
    pytest.mark.skipif(not compiler.is_installed(), reason="Triton is not installed"),
]


@dataclass
class Site:
    """A service in a process, which can be killed, and programs that measure for it."""

    bench: Bench
    port: int
    token: str
    admin: str
    process: Process | None = None

    @property
    def url(self) -> str:
        """URL of the service."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the service, and wait for it."""
        with (self.bench.cli.folder / "api.log").open("a") as log:
            program = ("api", "--require-tokens", "--port", str(self.port))
            self.process = start(program, self.bench.cli.environ(), ROOT, log, waits=False)
        wait_for(self._is_ready)

    def kill(self) -> None:
        """Kill the service by SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def read(self, path: str, token: str) -> bytes:
        """Get a document of the service."""
        headers = {"authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"{self.url}/api/v1{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            content: bytes = answer.read()
            return content

    def devices(self) -> dict[str, dict[str, Any]]:
        """Return the devices that the service lists, by host."""
        items = json.loads(self.read("/devices", self.admin))["items"]
        return {item["host"]: item for item in items}

    @contextmanager
    def worker(
        self, host: str, *, plan: Plan | None = None, url: str = "", **environ: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run the program of the service during the block, without this project's packages."""
        folder = self.bench.cli.folder
        program = folder / f"{host}.pyz"
        program.write_bytes(self.read("/remote/packs/runner.pyz", self.token))
        variables = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        variables |= {
            "LD_LIBRARY_PATH": str(self.bench.driver),
            "TUNER_TEST_PLAN": str((plan or self.bench.plan).path),
            "TUNER_TOKEN": self.token,
        }
        command = [sys.executable, "-P", str(program), "serve", "--server", url or self.url]
        command += ["--name", host, "--folder", str(folder / host), "--no-compile"]
        with (folder / f"{host}.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--timeout", "60"], env=variables | environ, cwd=folder,
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def log(self, host: str) -> str:
        """Return what a program printed."""
        return (self.bench.cli.folder / f"{host}.log").read_text()

    def _is_ready(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/healthz", timeout=5):
            return True
        return False


@pytest.fixture
def site(bench: Bench) -> Iterator[Site]:
    """A service whose only pack is offered."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    engine = database.open_database(bench.cli.url)
    with database.sessions(engine).begin() as session:
        secrets = [
            tokens.create_token(session, name, [scope])[1]
            for name, scope in (("lab", "measure"), ("boss", "admin"))
        ]
    engine.dispose()
    offered = bench.cli("pack", "offer", str(bench.pack), "--minutes", "2", "--json")
    assert offered.status == 0, offered.err
    site = Site(bench, port, secrets[0], secrets[1])
    site.start()
    yield site
    site.kill()


def test_pack_is_measured_through_kills_and_breaks(site: Site, tmp_path: Path) -> None:
    """A worker and the service are killed, connections break: each candidate counts once."""
    bench = site.bench
    engine = database.open_database(bench.cli.url)
    sessions = database.sessions(engine)
    hanging = bench.single[3]
    plan = Plan(tmp_path / "hanging")
    plan.path.write_text(bench.plan.path.read_text())
    plan.does(hanging, "hang")

    def n_lines() -> int:
        with sessions() as session:
            (pack,) = offered_packs.list_packs(session)
            return pack.n_lines

    with site.worker("old", TUNER_TEST_OTHER_GPU="2", TUNER_TEST_CAPABILITY="8"):
        with site.worker("left", plan=plan) as left:
            wait_for(lambda: n_lines() > 4)
            wait_for(lambda: site.devices().keys() >= {"old", "left"})
            states = {host: device["state"] for host, device in site.devices().items()}
            children = psutil.Process(left.pid).children(recursive=True)
            left.send_signal(signal.SIGKILL)
            left.wait()
        site.kill()
        n_before = bench.cli.count_records()
        wait_for(lambda: not any(child.is_running() for child in children))
        time.sleep(0.5)
        site.start()
        with sessions.begin() as session:  # as it is when it was silent for long
            silent = update(RemoteDevice).where(RemoteDevice.name.startswith("left/"))
            session.execute(silent.values(heartbeat=now() - 2 * remote_devices.OFFLINE_AFTER))
        with (
            slow_link(site.port, break_every=2) as url,
            site.worker("right", url=url, TUNER_TEST_OTHER_GPU="1"),
        ):
            wait_for(lambda: "done" in site.log("right"), 120)

    assert states == {"old": "idle", "left": "measuring"}
    assert 0 < n_before < N_CANDIDATES
    assert bench.cli.count_records() == N_CANDIDATES
    assert f"{N_CANDIDATES} candidates, {n_before} have results" in site.log("right")
    with sessions() as session:
        (pack,) = offered_packs.list_packs(session)
        assert pack.ended is not None
        assert session.scalar(select(func.count()).select_from(PackPortion)) == 0
    engine.dispose()
    (status,) = bench.cli("pack", "status", "--json").json["packs"]
    assert status["offer"].startswith("measured by NVIDIA Test")


def test_worker_that_is_started_again_goes_on(site: Site, tmp_path: Path) -> None:
    """It has its pack at once, and what it had not sent is not measured again."""
    plan = Plan(tmp_path / "hanging")
    plan.path.write_text(site.bench.plan.path.read_text())
    hanging = site.bench.single[3]
    plan.does(hanging, "hang")
    pack = site.bench.index["id"]
    results = site.bench.cli.folder / "lab"

    def has_started() -> bool:
        return any(
            f'"candidate":"{hanging["name"]}","started"' in file.read_text()
            for file in results.glob(f"*/{pack}.results")
        )

    with site.worker("lab", plan=plan) as killed:
        wait_for(has_started)
        site.kill()
        (file,) = results.glob(f"*/{pack}.results")
        n_before = file.read_text().count('"run_secs"')
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    site.start()
    with site.worker("lab"):
        wait_for(lambda: "done" in site.log("lab"))

    assert f"{N_CANDIDATES} candidates, {n_before} have results" in site.log("lab")
    assert site.bench.cli.count_records() == N_CANDIDATES


def test_pack_whose_file_is_missing_waits_for_another_offer(site: Site) -> None:
    """The worker that leases it tells why."""
    (path,) = (site.bench.cli.data_dir / "archives" / "packs").glob("*.pyz")
    path.unlink()

    with site.worker("lab"):
        wait_for(lambda: "is missing: offer it again" in site.log("lab"))

    # Returned, so that the GPU gives it up after three attempts.
    assert "it cannot be measured: " in site.log("lab")
    assert site.bench.cli.count_records() == 0


def test_wrong_token_ends_the_worker(site: Site) -> None:
    """The reason is its last line."""
    with site.worker("lab", TUNER_TOKEN="tuner_wrong") as process:
        assert process.wait(60) == 1

    assert "token is unknown, expired or revoked" in site.log("lab")
