"""Tests of device locks: held by real processes, and left by killed ones."""

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.engines import toy
from tuner.devices import locks, target_matching
from tuner.devices.device import Device
from tuner.devices.inventory import LocalDevice
from tuner.devices.runners.local import LocalRunner
from tuner.errors import DeviceBusy, RequestError
from tuner.settings import Settings

_HOLD = """
import sys
from tuner.devices.locks import gpu_lock
with gpu_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def uuid() -> Iterator[str]:
    """Return the UUID of a GPU that no other test uses."""
    name = f"GPU-{uuid4()}"
    yield name
    (locks.GPU_LOCKS / name).unlink(missing_ok=True)


@contextmanager
def holder(uuid: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a process that holds a GPU until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, uuid],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def _n_open() -> int:
    """Return the number of files that this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_gpu_has_one_owner_on_a_machine(uuid: str) -> None:
    """The error names the process that holds the lock, and its death releases the lock."""
    with holder(uuid) as first:
        with (
            pytest.raises(DeviceBusy, match=f"process {first.pid} is measuring on {uuid}"),
            locks.gpu_lock(uuid),
        ):
            pass
        first.kill()
        first.wait()

        with locks.gpu_lock(uuid):
            pass


def test_gpus_are_held_one_by_one(uuid: str) -> None:
    """A lock of one GPU leaves the others free."""
    with holder(uuid), locks.gpu_lock(f"{uuid}-other"):
        (locks.GPU_LOCKS / f"{uuid}-other").unlink()


def test_lock_of_a_gpu_is_for_every_user(uuid: str) -> None:
    """Users may lock and write each other's files, and remove only their own."""
    with locks.gpu_lock(uuid):
        pass

    assert stat.S_IMODE((locks.GPU_LOCKS / uuid).stat().st_mode) == 0o666
    assert stat.S_IMODE(locks.GPU_LOCKS.stat().st_mode) == 0o1777


def test_lock_whose_creator_was_killed_is_opened_to_all_by_the_next(uuid: str) -> None:
    """The next holder completes the mode, without which other users cannot open the file."""
    with locks.gpu_lock(uuid):
        (locks.GPU_LOCKS / uuid).chmod(0o600)
        locks.GPU_LOCKS.chmod(0o755)

    with locks.gpu_lock(uuid):
        assert stat.S_IMODE(locks.GPU_LOCKS.stat().st_mode) == 0o1777

    assert stat.S_IMODE((locks.GPU_LOCKS / uuid).stat().st_mode) == 0o666


def test_lock_that_cannot_be_used_leaves_no_file_open(uuid: str) -> None:
    """Repeated failures to open a lock leak no file descriptor."""
    (locks.GPU_LOCKS / uuid).mkdir(parents=True)
    before = _n_open()

    for _ in range(3):
        with pytest.raises(DeviceBusy, match="cannot be used"), locks.gpu_lock(uuid):
            pass

    assert _n_open() == before
    (locks.GPU_LOCKS / uuid).rmdir()


def test_lock_that_is_a_link_is_not_followed(uuid: str, tmp_path: Path) -> None:
    """A link that another user may have created is refused."""
    with locks.gpu_lock(uuid):
        pass
    (locks.GPU_LOCKS / uuid).unlink()
    (tmp_path / "precious").write_text("content")
    (locks.GPU_LOCKS / uuid).symlink_to(tmp_path / "precious")

    with pytest.raises(DeviceBusy, match="cannot be used"), locks.gpu_lock(uuid):
        pass

    assert (tmp_path / "precious").read_text() == "content"


def test_cpu_is_held_for_a_data_directory(tmp_path: Path) -> None:
    """Two data directories have a lock each, because cores may be divided between them."""
    with (
        locks.device_lock(tmp_path / "a"),
        locks.device_lock(tmp_path / "b"),
        pytest.raises(DeviceBusy, match="is measuring on this machine"),
        locks.device_lock(tmp_path / "a"),
    ):
        pass


_HOLD_CPU = """
import sys
from pathlib import Path
from tuner.devices.locks import cores_lock, device_lock
with device_lock(Path(sys.argv[1])), cores_lock():
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def cpu_holder(data_dir: Path, machine: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run a coordinator's process on a machine until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD_CPU, str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TUNER_RUNTIME_DIR": str(machine)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_machines_with_a_common_folder_measure_each_on_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is not in the data directory, but in a folder of the machine."""
    monkeypatch.setenv("TUNER_RUNTIME_DIR", str(tmp_path / "here"))
    with cpu_holder(tmp_path / "data", tmp_path / "there"):
        with locks.device_lock(tmp_path / "data"), locks.cores_lock():
            pass
        assert list((tmp_path / "data").iterdir()) == []

    assert stat.S_IMODE((tmp_path / "here").stat().st_mode) == 0o700


def test_coordinators_of_a_machine_share_no_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two data directories, one measures; a command with another one may, by decision 0014."""
    monkeypatch.setenv("TUNER_RUNTIME_DIR", str(tmp_path / "here"))
    with cpu_holder(tmp_path / "data", tmp_path / "here") as process:
        with (
            locks.device_lock(tmp_path / "other"),
            pytest.raises(DeviceBusy, match=f"process {process.pid} is measuring on core"),
            locks.cores_lock(),
        ):
            pass
        with (
            pytest.raises(DeviceBusy, match=f"process {process.pid} is measuring on this machine"),
            locks.device_lock(tmp_path / "data"),
        ):
            pass
        cores = os.sched_getaffinity(0)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {max(cores) + 1})
        with locks.cores_lock():
            pass


def test_locks_in_a_folder_of_another_user_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner could remove the files, and two processes would hold one lock."""
    if os.geteuid() != 0:
        pytest.skip("needs root to give a folder away")
    (tmp_path / "here").mkdir()
    os.chown(tmp_path / "here", 65534, 65534)
    monkeypatch.setenv("TUNER_RUNTIME_DIR", str(tmp_path / "here"))

    with pytest.raises(DeviceBusy, match="belongs to another user"), locks.device_lock(tmp_path):
        pass


def test_runner_locks_its_gpu_at_the_first_query_until_it_is_closed(
    uuid: str, tmp_path: Path
) -> None:
    """A GPU that another process holds is queried again later, and not locked before a query."""
    gpu = LocalDevice("gpu0", "llvm", toy.SPEC, {"CUDA_VISIBLE_DEVICES": uuid})
    settings = Settings("", tmp_path, toy.NAME, 1)
    runner = LocalRunner(settings, gpu.name, shares_cores=False, device=gpu)
    try:
        with holder(uuid) as first, pytest.raises(DeviceBusy, match=f"process {first.pid} "):
            runner.describe(toy.SPEC).result()

        device, target = Device(runner), toy.describe_target("llvm")
        asyncio.run(device.query(target))
        assert device.supports(target)
        with pytest.raises(DeviceBusy), gpu.hold(tmp_path / "another"):
            pass
    finally:
        runner.close()

    with gpu.hold(tmp_path / "another"):
        pass


@pytest.mark.parametrize(
    ("shares_cores", "n_builders", "n_rounds"),
    [(True, 16, 1), (False, 0, 2), (False, 7, 2), (False, 8, 3), (False, 16, 5)],
)
def test_builders_have_rounds_to_work_on(
    tmp_path: Path, shares_cores: bool, n_builders: int, n_rounds: int
) -> None:
    """Builders are not left without work while a device measures a round."""
    runner = LocalRunner(Settings("", tmp_path, toy.NAME, 1), "gpu0", shares_cores=shares_cores)
    try:
        assert Device(runner, n_builders).max_rounds == n_rounds
    finally:
        runner.close()


def test_kind_of_a_target_comes_from_its_json() -> None:
    """The kind is empty where a target's JSON has none."""
    assert target_matching.kind_named('{"kind":"cuda","arch":"sm_90"}') == "cuda"
    assert [target_matching.kind_named(spec) for spec in ("llvm", "[1]", '{"kind":[]}', "{}")] == [
        ""
    ] * 4


@pytest.mark.parametrize(
    ("magic", "kind"), [(0x6969, "NFS"), (0xFF534D42, "CIFS"), (0x65735546, ""), (0x01021997, "")]
)
def test_locks_are_refused_on_a_file_system_that_machines_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, magic: int, kind: str
) -> None:
    """The error names the kind and the setting; FUSE and 9P may be a container's own root."""
    monkeypatch.setenv("TUNER_RUNTIME_DIR", str(tmp_path / "locks"))
    monkeypatch.setattr(locks, "_magic", lambda _descriptor: magic)
    if not kind:
        locks.check_runtime_dir()
        return

    with (
        pytest.raises(DeviceBusy, match=f"is on {kind}, .* set TUNER_RUNTIME_DIR"),
        locks.device_lock(tmp_path / "data"),
    ):
        pass
    with pytest.raises(RequestError, match=f"is on {kind}"):
        locks.check_runtime_dir()


def test_the_kind_of_a_file_system_is_read_from_the_system() -> None:
    """/proc has a number of its own, which no disk has."""
    descriptor = os.open("/proc", os.O_RDONLY)
    try:
        assert locks._magic(descriptor) == 0x9FA0
    finally:
        os.close(descriptor)
