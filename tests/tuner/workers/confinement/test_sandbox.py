"""Workers reach what their calls need, and neither the database nor the network nor other files."""

import json
import logging
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli import ROOT
from tests.tuner.workers import inside_sandbox
from tests.tuner.workers.inside_sandbox import NAME
from tuner.build_cache.local import LocalTier
from tuner.engines.environments import Interpreter
from tuner.errors import RequestError, WorkerLost
from tuner.files.process_folder import process_folder, shared_folder
from tuner.settings import Settings, read_settings
from tuner.workers import syscall_filter
from tuner.workers.confinement import landlock, sandbox, sandbox_paths
from tuner.workers.confinement.sandbox import Sandbox
from tuner.workers.confinement.sandbox_paths import Access, model_access, scratch_folder
from tuner.workers.factory import client_pool, compiler_pool, fresh_worker, runner_pool
from tuner.workers.pool import Pool

pytestmark = pytest.mark.skipif(
    bool(sandbox.shortcoming()), reason=f"the kernel: {sandbox.shortcoming()}"
)
# What cuInit does, in a sandbox with a temporary folder on a machine with devices.
_START_OF_CUDA = """
import errno, json, os, socket, sys, threading
from tuner.workers.confinement.sandbox import Sandbox, enter

def attempt(work):
    try:
        work()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok"

def packets():
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

def listen():
    opened = packets()
    opened.bind(f"\\0tuner-test-{os.getpid()}")
    opened.listen()

listed = os.listdir
os.listdir = lambda path: sys.argv[2:] if path == "/dev" else listed(path)
enter(Sandbox(reads=("/usr",)), sys.argv[1])
name = f"/proc/self/task/{threading.get_native_id()}/comm"
print(json.dumps({
    "name": attempt(lambda: open(name, "w").close()),
    "listen": attempt(listen),
    "connect": attempt(lambda: packets().connect("/nothing")),
}))
"""
SECRET = "database = 'postgresql://me:secret@db/tuner'"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config file, a database, and models with weights beside them."""
    folder = tmp_path_factory.mktemp("home")
    for path in ("config.toml", "data/tuner.db", "data/tuner.db-wal", "data/uploads/other.onnx",
                 "data/scratch/artifact", "data/models/m", "data/out", "own/notes", "nets/m.onnx",
                 "nets/m.data", "m.onnx", "m.data"):  # fmt: skip
        (folder / path).parent.mkdir(exist_ok=True, parents=True)
        (folder / path).write_text(SECRET)
    (folder / "nets" / "linked").symlink_to(folder / "own" / "notes")
    return folder


@pytest.fixture(scope="module")
def settings(home: Path) -> Settings:
    """Settings with everything in that folder."""
    flags = {"data_dir": home / "data", "engine": "tests.engines.toy"}
    return replace(read_settings(flags, {}), worker_sandbox="required")


@pytest.fixture(scope="module")
def worker(home: Path, settings: Settings) -> Iterator[Pool]:
    """A worker that loads the model beside the config file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_CONFIG", str(home / "config.toml"))
        access = model_access(str(home / "m.onnx"))
        with fresh_worker(settings, access=access) as pool:
            yield pool


@pytest.mark.parametrize(
    "path", ["config.toml", "data/tuner.db", "data/tuner.db-wal", "data/uploads/other.onnx",
             "data/scratch/artifact", "own/notes", "nets/m.onnx"]
)  # fmt: skip
def test_private_files_cannot_be_read(worker: Pool, home: Path, path: str) -> None:
    """Neither the database, nor its address, nor what no call of this worker needs."""
    assert worker.call(NAME, "read", str(home / path)) == "EACCES"
    assert worker.call(NAME, "read_by_child", str(home / path)) == "nothing"


def test_the_model_and_its_weights_can_be_read(worker: Pool, home: Path) -> None:
    """Its folder has the config file, too: the other files are permitted one by one."""
    assert worker.call(NAME, "read", str(home / "m.onnx")) == SECRET
    assert worker.call(NAME, "read", str(home / "m.data")) == SECRET


def test_weights_may_be_links(home: Path, settings: Settings) -> None:
    """Caches of models are folders of links; a folder without private files is whole."""
    with fresh_worker(settings, access=model_access(str(home / "nets" / "m.onnx"))) as pool:
        assert pool.call(NAME, "read", str(home / "nets" / "m.data")) == SECRET
        assert pool.call(NAME, "read", str(home / "nets" / "linked")) == SECRET
        assert pool.call(NAME, "read", str(home / "config.toml")) == "EACCES"


def test_an_upload_is_read_alone(home: Path, settings: Settings) -> None:
    """Uploads of other clients lie in the same folder."""
    upload = home / "data" / "uploads" / "mine.onnx"
    upload.write_text("mine")
    with fresh_worker(settings, access=model_access(str(upload), alone=True)) as pool:
        assert pool.call(NAME, "read", str(upload)) == "mine"
        assert pool.call(NAME, "read", str(upload.with_name("other.onnx"))) == "EACCES"


@pytest.mark.parametrize("function", ["write", "truncate", "remove"])
@pytest.mark.parametrize("path", ["data/tuner.db", "own/notes", "m.onnx", "data/models/m"])
def test_other_files_cannot_be_changed(worker: Pool, home: Path, function: str, path: str) -> None:
    """Not even the model that may be read, and the cleaned models of others."""
    assert worker.call(NAME, function, str(home / path)) == "EACCES"
    assert (home / path).read_text() == SECRET


def test_what_workers_make_is_out_of_reach_of_others(worker: Pool, settings: Settings) -> None:
    """Until it is published in the build cache, a worker of another job could alter it."""
    with (
        fresh_worker(settings) as other,
        other.exchange.new_output() as made,
        other.exchange.new_input() as given,
        LocalTier(settings.cache_dir, lambda _: None).new_folder() as published,
    ):
        for folder in (made.path, given, published):
            (folder / "file").write_text(SECRET)

        assert other.call(NAME, "write", str(made.path / "file")) == "ok"
        assert other.call(NAME, "read", str(given / "file")) == SECRET
        assert other.call(NAME, "write", str(given / "file")) == "EACCES"
        assert other.call(NAME, "read", str(published / "file")) == "EACCES"
        for folder in (made.path, given, published):
            assert worker.call(NAME, "read", str(folder / "file")) == "EACCES"
            assert worker.call(NAME, "write", str(folder / "new")) == "EACCES"
        root = other.exchange.root
    assert not root.exists()


def test_compilers_of_one_build_have_nothing_in_common(settings: Settings) -> None:
    """Each compiles subgraphs of its own, which may be those of other networks."""
    with (
        compiler_pool(settings) as one,
        compiler_pool(settings) as other,
        one.exchange.new_output() as made,
    ):
        assert other.call(NAME, "write", str(made.path / "code.o")) == "EACCES"
        assert one.call(NAME, "write", str(made.path / "code.o")) == "ok"


def test_a_worker_that_replaces_its_folder_gains_nothing(
    home: Path, settings: Settings, tmp_path: Path
) -> None:
    """The sandbox lets it: the coordinator must not follow the link into a folder of the user."""
    with compiler_pool(settings) as pool, pool.exchange.new_output() as made:
        assert pool.call(NAME, "write", str(made.path / "code.o")) == "ok"
        pool.call(NAME, "replace_folder", str(made.path), str(home / "own"))

        made.take(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["code.o"]
    assert (home / "own" / "notes").read_text() == SECRET


def test_an_environment_with_private_files_is_read_in_part(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may lie in the folder of the data directory, or be that of the system."""
    settings = replace(settings, data_dir=tmp_path / "data")
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.symlink_to("/bin/python3")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", "/")

    described = sandbox_paths.sandbox_of(settings, Access(), Interpreter(str(python), {}))

    assert described is not None
    assert {str(tmp_path / "bin"), str(tmp_path / "lib")} < set(described.reads)
    assert not {str(tmp_path), "/", str(tmp_path / "data")} & set(described.reads)


@pytest.mark.parametrize("is_installed_into", [True, False])
def test_folders_that_packages_were_installed_into_are_read_as_a_whole(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, is_installed_into: bool
) -> None:
    """Namespace packages and the libraries of wheels have no ``__init__.py``."""
    for name in ("package/__init__.py", "namespace/headers/cuda.h", "wheel.libs/libgomp.so.1"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    if is_installed_into:
        (tmp_path / "wheel-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))

    described = sandbox_paths.sandbox_of(settings, Access(), None)

    assert described is not None
    assert (str(tmp_path) in described.reads) is is_installed_into
    assert (str(tmp_path / "package") in described.reads) is not is_installed_into


def test_a_runner_reads_artifacts_and_changes_nothing(home: Path, settings: Settings) -> None:
    """A kernel that goes wild leaves the artifacts of others as they are."""
    artifact, model = scratch_folder(home / "data") / "artifact", home / "data/models/m"
    artifact.parent.mkdir()
    artifact.write_text(SECRET)
    with runner_pool(settings) as pool:
        assert pool.call(NAME, "read", str(artifact)) == SECRET
        assert pool.call(NAME, "write", str(artifact)) == "EACCES"
        assert pool.call(NAME, "read", str(model)) == "EACCES"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server on loopback, such as a database."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


def test_there_is_no_network(worker: Pool, listener: socket.socket, tmp_path: Path) -> None:
    """Neither of the internet nor of Unix sockets, for programs that it starts either."""
    address = listener.getsockname()
    local = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(local)
        server.listen()

        assert worker.call(NAME, "connect", int(socket.AF_INET), address) == "EACCES"
        assert worker.call(NAME, "connect", int(socket.AF_INET6), ("::1", 1)) == "EACCES"
        assert worker.call(NAME, "connect", int(socket.AF_UNIX), local) == "EACCES"
        assert "PermissionError" in worker.call(NAME, "connect_by_child", address[1])


@pytest.mark.skipif(landlock.abi_version() < 4, reason="TCP ports need Landlock 4 (Linux 6.7)")
def test_a_client_reaches_its_server_alone(settings: Settings, listener: socket.socket) -> None:
    """The process that talks to a board cannot talk to the database."""
    with (
        socket.create_server(("127.0.0.1", 0)) as database,
        client_pool(settings, listener.getsockname()[1]) as pool,
    ):
        family = int(socket.AF_INET)
        assert pool.call(NAME, "connect", family, listener.getsockname()) == "ok"
        assert pool.call(NAME, "connect", family, database.getsockname()) == "EACCES"


def test_other_processes_are_out_of_reach(worker: Pool) -> None:
    """Their environments and command lines have secrets; a signal could stop a measurement."""
    assert worker.call(NAME, "read", f"/proc/{os.getpid()}/environ") == "EACCES"
    assert worker.call(NAME, "read", f"/proc/{os.getpid()}/cmdline") == "EACCES"
    assert worker.call(NAME, "trace_parent") == "EPERM"
    assert worker.call(NAME, "new_user_namespace") == "EPERM"
    if landlock.abi_version() >= 6:
        assert worker.call(NAME, "signal_process", os.getpid()) == "EPERM"


@pytest.mark.parametrize(
    "function", ["limit_process", "pin_process", "schedule_process", "slow_process"]
)
def test_settings_of_other_processes_cannot_be_changed(worker: Pool, function: str) -> None:
    """Less memory would end the coordinator, other cores would disturb a measurement."""
    assert worker.call(NAME, function, os.getpid()) == "EPERM"
    assert worker.call(NAME, function, 0) == "ok"
    assert worker.call(NAME, function, worker.process_ids[0]) == "ok"
    assert worker.call(NAME, "slow_all") == "EPERM"


def test_a_runner_chooses_the_cores_of_its_threads(worker: Pool, settings: Settings) -> None:
    """OpenMP and TVM do by the ids of threads, as kernels are timed; loaders do without."""
    with runner_pool(settings) as pool:
        assert pool.call(NAME, "pin_thread") == "ok"
        assert pool.call(NAME, "limit_process", os.getpid()) == "EPERM"
    assert worker.call(NAME, "pin_thread") == "EPERM"


def test_signals_are_confined_without_landlock_too(settings: Settings) -> None:
    """By the filter, on kernels before Linux 6.12; signals to its own threads remain."""
    with fresh_worker(replace(settings, worker_sandbox="off")) as pool:
        # A filter needs no_new_privs, which nothing sets without a sandbox.
        pool.call(NAME, "gain_no_privileges")
        attempts = pool.call(NAME, "signal_without_landlock", os.getpid())

    own = {name: result for name, result in attempts.items() if name.startswith("own ")}
    assert set(own.values()) == {"ok"}
    assert len(own) == 4
    assert {result for name, result in attempts.items() if name not in own} == {"EPERM"}


def test_cuda_listens_and_connects_to_nothing(settings: Settings, tmp_path: Path) -> None:
    """CuInit fails without a socket of its own (error 304, seen with driver 580)."""
    path = str(tmp_path / "listener")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server,
        fresh_worker(replace(settings, worker_sandbox="off")) as pool,
    ):
        server.bind(path)
        server.listen()
        pool.call(NAME, "gain_no_privileges")
        attempts = pool.call(NAME, "use_sockets_of_cuda", path)

    assert attempts.pop("listen") == "ok"
    assert attempts.pop("connect") == "EPERM"
    assert set(attempts.values()) == {"EACCES"}


def test_pairs_of_sockets_reach_nothing_else(worker: Pool, tmp_path: Path) -> None:
    """A datagram of a pair could be sent to the log or the service manager of the machine."""
    path = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)

        assert worker.call(NAME, "send_by_pair", path, int(socket.SOCK_DGRAM)) == "EACCES"
        assert worker.call(NAME, "send_by_pair", path, int(socket.SOCK_STREAM)) == "EISCONN"


@pytest.mark.parametrize(
    ("devices", "attempts"),
    [
        (["null", "nvidia0"], {"name": "ok", "listen": "ok", "connect": "EPERM"}),
        (["null", "dri"], {"name": "EACCES", "listen": "EACCES", "connect": "EACCES"}),
    ],
)
def test_machines_with_nvidia_gpus_let_cuda_start(
    devices: list[str], attempts: dict[str, str], tmp_path: Path
) -> None:
    """Their workers name threads and listen; others do not, whatever else draws on them."""
    words = [sys.executable, "-c", _START_OF_CUDA, str(tmp_path), *devices]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)

    assert json.loads(done.stdout or "{}") == attempts, done.stderr


def test_cuda_names_its_threads(settings: Settings, tmp_path: Path) -> None:
    """CuInit fails if it cannot; nothing else can be written for that."""
    path = tmp_path / "file"
    path.touch()
    with fresh_worker(replace(settings, worker_sandbox="off")) as pool:
        pool.call(NAME, "gain_no_privileges")
        attempts = pool.call(NAME, "name_threads", str(path))

    assert attempts == {"own thread": "ok", "process": "EACCES", "file": "EACCES"}


def test_a_worker_gains_no_privileges(worker: Pool) -> None:
    """Programs that change the user do not, and the filter holds."""
    assert worker.call(NAME, "status", "NoNewPrivs") == "1"
    assert worker.call(NAME, "status", "Seccomp") == "2"


@pytest.mark.parametrize(
    "name", ["shmget", "msgget", "semget", "mq_open", "chown", "setxattr", "set-user-id",
             "clock_adjtime", "memfd_create", "shared memory", "stack", "zeros"]
)  # fmt: skip
def test_nothing_outlives_a_worker_or_its_limits(
    worker: Pool, settings: Settings, name: str
) -> None:
    """Neither memory that limits do not count, nor messages, nor owners, nor the clock.

    Without the sandbox the kernel permits each of them, at least to root.
    """
    cuda = any(each.startswith(("nvidia", "dxg")) for each in os.listdir("/dev"))  # noqa: PTH208
    shares = cuda and name in ("memfd_create", "shared memory", "zeros")
    refused = "EACCES" if name == "zeros" else "EPERM"
    assert worker.call(NAME, "reach_kernel", name) == ("ok" if shares else refused)
    if os.geteuid() == 0 and name != "clock_adjtime":
        with fresh_worker(replace(settings, worker_sandbox="off")) as free:
            assert free.call(NAME, "reach_kernel", name) == "ok"


def test_root_has_no_privileges_in_a_worker(worker: Pool) -> None:
    """But those to files, which Landlock limits; child processes do not regain others."""
    held = int(worker.call(NAME, "status", "CapPrm"), 16)

    assert held & ~0b110 == 0
    assert worker.call(NAME, "capabilities_of_child") == held


def test_memory_and_ordinary_modes_remain(worker: Pool) -> None:
    """Private memory, files in memory, and the modes of programs."""
    assert worker.call(NAME, "use_memory_and_modes") == "ok"


def test_compilers_run(worker: Pool) -> None:
    """They read the system's headers, and write temporary files."""
    assert worker.call(NAME, "compile_c") == "ran"


def test_temporary_files_go_with_their_worker(settings: Settings) -> None:
    """Each worker has a folder, which its pool removes, also if the worker was killed."""
    with fresh_worker(settings) as pool:
        folder = Path(pool.call(NAME, "scratch"))
        other = pool.call(NAME, "write", str(process_folder() / "worker-of-another"))
        with pytest.raises(WorkerLost):
            pool.call(NAME, "signal_process_kill")
        again = Path(pool.call(NAME, "scratch"))

        assert folder.is_relative_to(process_folder())
        assert not folder.exists()
        assert again.is_dir()
        assert other == "EACCES"
    assert not again.exists()


_ORPHAN = """\
import sys
from dataclasses import replace
from pathlib import Path
from tuner.settings import read_settings
from tuner.workers.factory import fresh_worker
pool = fresh_worker(read_settings({"data_dir": sys.argv[1], "engine": "tests.engines.toy"}, {}))
print(pool.call("tests.tuner.workers.inside_sandbox", "scratch"), flush=True)
sys.stdin.read()
"""


def test_temporary_files_of_a_killed_coordinator_go_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After kill -9 it cannot remove them itself."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-c", _ORPHAN, str(tmp_path / "data")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    with subprocess.Popen(command, **pipes) as killed:  # type: ignore[call-overload]
        left = Path(killed.stdout.readline().strip())
        killed.send_signal(signal.SIGKILL)
    assert left.is_dir()

    subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=60, cwd=ROOT)

    assert not left.exists()
    assert not list(tmp_path.glob("tuner-*/*"))


def test_switched_off_it_confines_nothing(home: Path, settings: Settings) -> None:
    """Debuggers and profilers need that."""
    with fresh_worker(replace(settings, worker_sandbox="off")) as pool:
        assert pool.call(NAME, "read", str(home / "own" / "notes")) == SECRET


def test_more_paths_can_be_named(home: Path, settings: Settings) -> None:
    """A toolchain may lie anywhere."""
    with fresh_worker(replace(settings, worker_paths=(home / "own" / "notes",))) as pool:
        assert pool.call(NAME, "read", str(home / "own" / "notes")) == SECRET


def test_a_kernel_without_it_is_reported_once_or_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the setting."""
    monkeypatch.setattr(landlock, "abi_version", lambda: 0)
    monkeypatch.setattr(sandbox_paths, "_report_once", sandbox_paths._report_once.__wrapped__)
    caplog.set_level(logging.WARNING)

    described = sandbox_paths.sandbox_of(replace(settings, worker_sandbox="auto"), Access(), None)

    assert described is not None
    assert "Landlock 3 (Linux 6.2), and it has none" in caplog.text
    with pytest.raises(RequestError, match="worker_sandbox is required"):
        sandbox_paths.sandbox_of(settings, Access(), None)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64")
@pytest.mark.parametrize(("number", "problem"), [(444, "Landlock"), (317, "seccomp")])
def test_a_service_does_not_start_where_system_calls_are_missing(
    tmp_path: Path, number: int, problem: str
) -> None:
    """The call of Landlock, or that of seccomp, as on a kernel built without it."""
    filtered = Path(inside_sandbox.__file__).with_name("without_system_call.py")
    serve = [sys.executable, "-m", "tuner", "worker", "--database", f"sqlite:///{tmp_path}/t.db"]
    done = subprocess.run(
        [sys.executable, filtered, str(number), *serve],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=120,
    )
    assert (done.returncode, problem in done.stderr) == (2, True), done.stderr


def test_threads_that_would_stay_free_are_refused(tmp_path: Path) -> None:
    """Landlock confines the thread that calls it."""
    program = (
        "import threading, time; from tuner.workers.confinement.sandbox import Sandbox, enter\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        f"enter(Sandbox(reads=('/usr',)), {str(tmp_path)!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert "threads are running already" in done.stderr


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_jumps_of_the_filter_stay_inside(machine: str, given: bool, cuda: bool) -> None:
    """The kernel refuses others; this machine runs but one of the architectures."""
    permissions = syscall_filter.Permissions(given, given, given, cuda)
    code = syscall_filter.program(machine, permissions, os.getpid())
    instructions = list(struct.iter_unpack("=HBBI", code))

    assert instructions[-1][0] == 0x06  # returns
    for index, (operation, if_true, if_false, _) in enumerate(instructions):
        if operation & 0x07 == 0x05:
            assert index + 1 + max(if_true, if_false) < len(instructions)


def test_paths_of_a_sandbox_are_absolute(settings: Settings) -> None:
    """A relative one would depend on the folder of the worker."""
    described = sandbox_paths.sandbox_of(settings, Access(), None)

    assert isinstance(described, Sandbox)
    paths = [*described.reads, *described.lists, *described.writes]
    assert all(Path(path).is_absolute() for path in paths)
    assert str(shared_folder()) in described.writes
    assert inside_sandbox.read("/proc/self/comm") != "EACCES"
