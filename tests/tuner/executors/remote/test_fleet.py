"""A job measures on remote devices through the API of its service, whatever happens to them."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from api.settings import ApiSettings
from records import database
from records.models import MeasureRecord
from records.service import remote_devices
from records.service.service_models import RemoteCall
from tests.api.conftest import Served, serving
from tests.cli import ROOT, environ_of
from tests.engines import toy
from tests.engines.toy_network import Workshop
from tests.faults.conftest import check_bests, check_counts
from tests.service.test_disk import disk, fill
from tests.waiting import wait_for
from tuner.client.errors import RequestRejected, ServiceError
from tuner.client.transport import Transport
from tuner.devices.inventory import CPU, LocalDevice
from tuner.engines.base import BuildRequest
from tuner.errors import DeviceLost, TargetError, WorkerLost, WorkError
from tuner.executors.factory import describer_of
from tuner.executors.local import LocalExecutor
from tuner.executors.remote import fleet
from tuner.executors.remote.fleet import RemoteBuilders, RemoteFleet
from tuner.schemas.remote import LeasedCall, LeasedCalls
from tuner.service import remote_worker
from tuner.service.remote_worker import RemoteWorker
from tuner.settings import Settings
from tuner.workers import messages

__all__ = ["disk"]

pytestmark = [
    pytest.mark.in_ci,
    pytest.mark.slow("30 s: devices and builders start, die and start again"),
]

CORES = LocalDevice(CPU, "llvm", "llvm")
# A device that fetches its next calls while it measures, unlike a CPU.
BOARD = LocalDevice("board", "llvm", "llvm")
# Silence after which devices count as lost, in seconds, and how often they give signs of life.
OFFLINE_SECS, SIGN_SECS = 2.0, 0.4


@dataclass
class Site:
    """A service without a coordinator's process: an API, a fleet and builders."""

    served: Served
    executor: LocalExecutor
    folder: Path

    @property
    def url(self) -> str:
        """URL of the API."""
        return str(self.served.client.base_url)

    @property
    def names(self) -> list[str]:
        """Names of the devices that are online."""
        return [runner.name for runner in self.executor.runners]

    @property
    def builders(self) -> dict[str, RemoteBuilders]:
        """Builders of other machines that are online, by name."""
        assert self.executor._farm is not None
        return self.executor._farm._builders

    def settings(self, host: str) -> Settings:
        """Return the settings of a device."""
        return Settings("", self.folder / host, toy.NAME, 1, worker_sandbox="off")

    @contextmanager
    def worker(
        self, host: str, url: str = "", device: LocalDevice | None = CORES
    ) -> Iterator[Future[None]]:
        """Measure in threads during the block, or build without a device."""
        name = f"{host}/{device.name if device else 'builders'}"
        connect = partial(Transport, url or self.url, None, 10.0)
        worker = RemoteWorker(connect, self.settings(host), device, name)
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(worker.run)
            try:
                wait_for(lambda: name in {*self.names, *self.builders} or run.done())
                yield run
            finally:
                worker.stop()
        run.result()

    @contextmanager
    def process(self, host: str, *work: str, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run the command ``tuner worker --server`` during the block."""
        program = (
            "from tuner.cli.main import main; from tuner.service import remote_worker as worker; "
            f"worker._SIGN_INTERVAL_SECS = worker._WAIT_SECS = {SIGN_SECS}; main()"
        )
        arguments = ["worker", "--server", self.url, "--name", host, *(work or ("--device", CPU))]
        (self.folder / host).mkdir()
        toys = {"TUNER_ENGINE": toy.NAME, "TUNER_WORKER_SANDBOX": "off", "TOY_RUN_SECS": "0.05"}
        environ = {**environ_of(self.folder / host), **toys, **environ}
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], env=environ, cwd=ROOT
        )
        try:
            names = {f"{host}/cpu", f"{host}/builders"}
            wait_for(lambda: names & {*self.names, *self.builders} or process.poll() is not None)
            yield process
        finally:
            process.terminate()
            process.wait(20)

    def shop(self) -> Workshop:
        """Return a workshop whose only devices are remote."""
        return Workshop(self.served.sessions, self.folder, self.executor)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A service on SQLite whose devices count as lost after ``OFFLINE_SECS``."""
    data_dir, url = tmp_path / "data", f"sqlite:///{tmp_path}/tuner.db"
    settings = Settings(url, data_dir, toy.NAME, 2, worker_sandbox="off")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(remote_devices, "OFFLINE_AFTER", timedelta(seconds=OFFLINE_SECS))
        patch.setattr(remote_worker, "_SIGN_INTERVAL_SECS", SIGN_SECS)
        patch.setattr(remote_worker, "_WAIT_SECS", SIGN_SECS)
        served = stack.enter_context(serving(ApiSettings(settings)))
        engine = database.open_database(url)
        stack.callback(engine.dispose)
        devices = RemoteFleet(settings, database.sessions(engine))
        executor = stack.enter_context(LocalExecutor(settings, fleet=devices, farm=devices))
        yield Site(served, executor, tmp_path)


@contextmanager
def slow_link(port: int, *, break_every: int) -> Iterator[str]:
    """Relay connections to a port with a delay, and break one of several after some bytes."""
    listener = socket.create_server(("127.0.0.1", 0))
    opened: list[socket.socket] = []

    def relay(source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        n_bytes = 0
        with suppress(OSError):
            while content := source.recv(4096):
                time.sleep(0.02)
                n_bytes += len(content)
                if limit is not None and n_bytes > limit:
                    break
                sink.sendall(content)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port))
                opened.extend((near, far))
                limit = 3000 if len(opened) // 2 % break_every == 0 else None
                threading.Thread(target=relay, args=(near, far, None), daemon=True).start()
                threading.Thread(target=relay, args=(far, near, limit), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        for each in opened:
            each.close()


def test_a_job_measures_on_two_devices_over_a_slow_link(site: Site) -> None:
    """Connections that break lose nothing, and each trial counts once."""
    port = site.served.client.base_url.port
    assert port is not None
    with slow_link(port, break_every=2) as url, site.worker("near"), site.worker("far", url, BOARD):
        shop = site.shop()
        job = shop.session(shop.prepare(), 24, trials_per_round=4)
        shop.run(job)
        with site.served.sessions() as session:
            workers = set(session.scalars(select(MeasureRecord.worker)))

    check_counts(site.served.sessions, {job.job_id: 24})
    check_bests(site.served.sessions)
    assert workers == {"near/cpu", "far/board"}
    with site.served.sessions() as session:
        assert remote_devices.devices(session) == []


def test_a_device_that_is_killed_loses_nothing(site: Site) -> None:
    """The round of a process that was killed goes to the other device, and counts once."""
    shop = site.shop()
    with site.process("left") as left, site.worker("right"):
        job = shop.session(shop.prepare(), 40, trials_per_round=8)

        def kill() -> None:
            def has_leased() -> bool:
                with site.served.sessions() as session:
                    calls = remote_devices.leased(session)
                    return any(call.device == "left/cpu" for call in calls)

            wait_for(has_leased)
            left.send_signal(signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        shop.run(job)
        killer.join()

    check_counts(site.served.sessions, {job.job_id: 40})
    check_bests(site.served.sessions)


def test_candidates_are_built_on_other_machines(site: Site) -> None:
    """They go to whichever builder has least to do; artifacts and errors come back."""
    request = BuildRequest(toy.make_task("net", weight=1, base_secs=1e-3).ir, toy.SPEC, "trace")
    with site.worker("farm", device=None):
        assert (site.executor.n_builders, site.names) == (3, [])
        builds = [
            site.executor.build(replace(request, trace=f"trace {i}"), timeout_secs=20.0)
            for i in range(12)
        ]
        artifacts = [build.result().artifact for build in builds]
        bad = [site.executor.build(replace(request, ir=b"?"), timeout_secs=20.0) for _ in range(6)]
        for each in bad:
            with pytest.raises(WorkError, match="JSONDecodeError"):
                each.result()
    kinds = {type(build).__name__ for build in builds}
    traces = [json.loads((Path(each) / "kernel.json").read_text())["trace"] for each in artifacts]

    assert kinds == {"_BuildCall", "_RemoteBuildCall"}
    assert traces == [f"trace {i}" for i in range(12)]
    for each in artifacts:
        site.executor.discard(each)
    assert not any(Path(each).exists() for each in artifacts)
    wait_for(lambda: site.executor.n_builders == 2)


def test_a_job_outlives_its_builders(site: Site) -> None:
    """Builds of a machine that is killed are done elsewhere; each trial counts once."""
    shop = site.shop()
    # Each build takes as long that it is seen.
    with site.process("farm", "--build", TOY_BUILD_SECS="1") as farm, site.worker("lab"):
        job = shop.session(shop.prepare(), 40, trials_per_round=8)

        def kill() -> None:
            def is_building() -> bool:
                with site.served.sessions() as session:
                    calls = remote_devices.leased(session)
                    return any(call.device == "farm/builders" for call in calls)

            wait_for(is_building)
            farm.send_signal(signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        shop.run(job)
        killer.join()

    check_counts(site.served.sessions, {job.job_id: 40})
    with site.served.sessions() as session:
        assert "worker_lost" not in session.scalars(select(MeasureRecord.error_kind)).all()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_device_whose_disk_is_full_is_lost_alone(site: Site, disk: Path) -> None:
    """The other device measures its rounds, and no candidate is blamed."""
    shop = site.shop()
    with site.process("tight", TMPDIR=str(disk)), site.worker("wide"):
        fill(disk)
        job = shop.session(shop.prepare(), 24, trials_per_round=4)
        shop.run(job)

    check_counts(site.served.sessions, {job.job_id: 24})
    with site.served.sessions() as session:
        records = list(session.scalars(select(MeasureRecord)))
    assert {record.worker for record in records} == {"wide/cpu"}
    assert not [record for record in records if "No space" in (record.error_text or "")]


def test_a_device_that_lives_but_does_not_answer_is_put_aside(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls go to other devices, until its process is another one."""
    monkeypatch.setattr(fleet, "_MAX_STALL_SECS", 1.0)
    ends = threading.Event()

    def live() -> None:
        while not ends.wait(0.3):
            with site.served.sessions.begin() as session:
                remote_devices.lease(session, "lab/cpu", "first", 1)

    with site.served.sessions.begin() as session:
        remote_devices.register(session, "lab/cpu", "ci", "first")
    alive = threading.Thread(target=live)
    alive.start()
    wait_for(lambda: site.names == ["lab/cpu"])
    with pytest.raises(DeviceLost, match="lab/cpu does not answer"):
        site.executor.runners[0].measure("run", timeout_secs=0.5).result()
    wait_for(lambda: site.names == [])
    time.sleep(1.5)
    assert site.names == []
    ends.set()
    alive.join()
    with site.served.sessions.begin() as session:
        remote_devices.register(session, "lab/cpu", "ci", "second")
    wait_for(lambda: site.names == ["lab/cpu"])


def test_calls_end_after_an_unexpected_error(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those under way are lost; later ones are answered."""

    def fail(_: object) -> None:
        raise ValueError("unexpected")

    with site.worker("lab"):
        [runner] = site.executor.runners
        with monkeypatch.context() as patch:
            patch.setattr(remote_devices, "leased", fail)
            with pytest.raises(DeviceLost, match="remote devices failed: unexpected"):
                runner.describe("llvm").result()
        assert runner.describe("llvm").result().spec == toy.SPEC


def test_calls_end_whatever_becomes_of_their_device(site: Site) -> None:
    """A device gone silent is lost, its successor makes the call retried, garbage is an error."""

    def register(key: str) -> None:
        with site.served.sessions.begin() as session:
            remote_devices.register(session, "lab/cpu", "ci", key)

    def lease(key: str) -> str:
        leased: list[str] = []

        def try_lease() -> bool:
            with site.served.sessions.begin() as session:
                leased.extend(c.id for c in remote_devices.lease(session, "lab/cpu", key, 1))
            return bool(leased)

        wait_for(try_lease)
        return leased[0]

    def ask() -> Any:
        wait_for(lambda: site.names == ["lab/cpu"])
        return site.executor.runners[0].describe("llvm")

    register("first")
    call = ask()
    lease("first")
    register("second")
    with pytest.raises(WorkerLost, match="started again") as lost:
        call.result()
    assert not isinstance(lost.value, DeviceLost)
    for answer, error in ((b"?", "garbage"), (messages.encode([1]), "did not return TargetInfo")):
        call = ask()
        answers = {lease("second"): answer}
        with site.served.sessions.begin() as session:
            remote_devices.store_answers(session, "lab/cpu", "second", answers)
        with pytest.raises(WorkError, match=error):
            call.result()
    call = ask()
    lease("second")
    with pytest.raises(DeviceLost, match="offline"):
        call.result()
    assert site.names == []


def test_targets_name_a_device_or_its_host(site: Site) -> None:
    """Targets without a device are those of the machine of the service."""
    with site.worker("lab"):
        describe = describer_of(site.executor, only_named=True)
        named = [describe("llvm@lab"), describe("llvm@lab/cpu")]
        with pytest.raises(TargetError, match="no device 'shed' is online"):
            describe("llvm@shed")
        with pytest.raises(TargetError, match="lab/cpu: unknown target"):
            describe("shader@lab")

    assert {info.spec for info in named if info is not None} == {toy.SPEC}
    assert describe("llvm") is None


def test_a_target_is_described_by_the_devices_that_are_left(site: Site) -> None:
    """After one that goes silent the others of its host are asked; without any, it is named."""
    describe = describer_of(site.executor)
    with site.worker("lab"):
        for spec in ("llvm@lab", "llvm@lab/a"):
            with site.served.sessions.begin() as session:
                remote_devices.register(session, "lab/a", "anonymous", "silent")
            wait_for(lambda: "lab/a" in site.names)
            if spec == "llvm@lab":
                info = describe(spec)
            else:
                with pytest.raises(TargetError, match="lab/a: device lab/a is offline"):
                    describe(spec)

    assert info is not None
    assert info.spec == toy.SPEC


def test_a_replaced_process_ends_with_an_error(site: Site) -> None:
    """Two machines of one name do not take turns."""

    def replace_process() -> None:
        with site.worker("lab") as run:
            with site.served.sessions.begin() as session:
                remote_devices.register(session, "lab/cpu", "anonymous", "another")
            wait_for(run.done)

    with pytest.raises(RequestRejected, match="another process measures as lab/cpu"):
        replace_process()


def test_calls_of_an_earlier_coordinator_are_removed(site: Site) -> None:
    """A coordinator that starts again makes its own."""
    call = RemoteCall(
        id="old", device="lab/cpu", function="run", arguments=b"", files=[], timeout_secs=1.0
    )
    with site.served.sessions.begin() as session:
        session.add(call)
    settings = replace(site.settings("again"), data_dir=site.folder / "data")
    RemoteFleet(settings, site.served.sessions).close()

    with site.served.sessions() as session:
        assert remote_devices.waiting(session) == set()


def test_a_device_waits_until_its_service_has_space_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A person frees it, and the log says so; other requests that are refused end the device."""
    worker = RemoteWorker(_no_transport, None, CORES, "lab/cpu")  # type: ignore[arg-type]
    full = ServiceError("no space", status=503, kind="disk-full", retry_secs=0.0)
    call = LeasedCall(id="call", function="", arguments="", files=[], timeout_secs=1.0)
    answers: list[Any] = [
        full,
        LeasedCalls(items=[call]),
        ServiceError("no such token", status=401),
    ]

    class Answers:
        def read(self, *_: object, **__: object) -> LeasedCalls:
            answer: LeasedCalls | ServiceError = answers.pop(0)
            if isinstance(answer, ServiceError):
                raise answer
            return answer

        def fetch(self, digests: set[str]) -> None:
            assert not digests

    service: Any = Answers()
    caplog.set_level("INFO")
    leased = worker._lease(service, service)
    with pytest.raises(ServiceError, match="no such token"):
        worker._lease(service, service)

    assert leased == [call]
    assert [log.message for log in caplog.records] == [
        "waiting for the service: no space",
        "the service is back",
    ]


def _no_transport() -> Transport:
    raise AssertionError("no request is sent")
