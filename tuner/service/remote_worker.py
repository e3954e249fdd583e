"""``tuner worker --server URL``: measure, or build, on this machine for a service elsewhere.

Each device has a thread that leases calls, fetches the files that they need, and runs them in a
process of its own, as any device of this machine; another thread sends the answers. So have the
builders of this machine. They need the URL and a token alone.
"""

import hashlib
import logging
import secrets
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tuner import interrupts
from tuner.client.errors import DISK_FULL, NotFoundError, ServiceError
from tuner.client.transport import Transport, delay_secs, is_transient
from tuner.devices.inventory import CPU, LocalDevice
from tuner.devices.runners.local import LocalRunner
from tuner.engines.base import BuildResult, RunResult
from tuner.errors import (
    DeviceFull,
    DiskFull,
    RequestError,
    TunerError,
    WorkerLost,
    WorkError,
    summary,
)
from tuner.executors.file_transfer import rename
from tuner.executors.local import LocalExecutor
from tuner.executors.remote import wire
from tuner.files.process_folder import shared_folder
from tuner.measure.disk_space import check_free_space, raising_disk_full
from tuner.schemas import LeasedCall, LeasedCalls
from tuner.settings import Settings
from tuner.workers import messages
from tuner.workers.confinement.memory import builder_count

# Calls that a device has at a time, at most; a service has fewer for it.
_MAX_LEASED = 64
_WAIT_SECS = 5.0
#: Time-out of a request.
REQUEST_TIMEOUT_SECS = 25.0
# Interval between signs of life, and between two requests with answers.
_SIGN_INTERVAL_SECS, _SEND_INTERVAL_SECS = 5.0, 0.2
# Bytes of answers in one request, of at most 1 MiB in Base64.
_MAX_SENT_BYTES = 500_000
_N_DOWNLOADS = 4
# Files that are kept for further calls.
_MAX_FILES = 256
# Time without progress, beyond the time-out of a call, after which a device gives no sign of life.
_MAX_STALL_SECS = 120.0
_POLL_INTERVAL_SECS = 0.5

# Calls the function of a leased call.
_Call = Callable[[LeasedCall, tuple[Any, ...]], Any]

_LOG = logging.getLogger(__name__)


def run_remote_workers(
    connect: Callable[[], Transport],
    settings: Settings,
    devices: Sequence[LocalDevice],
    host: str,
    *,
    builds: bool = False,
) -> None:
    """Measure on devices until interrupted, or until one of them cannot go on.

    Args:
        connect: Opens a connection to the service.
        settings: Engine, data directory and number of builders.
        devices: Devices of this machine.
        host: Name of this machine at the service.
        builds: True to build candidates, too.

    Raises:
        Interrupted: On Ctrl-C or SIGTERM.
        ServiceError: If the service rejects a device.
        DeviceBusy: If another process measures on the CPU.
    """
    workers = [
        RemoteWorker(connect, settings, device, f"{host}/{device.name}") for device in devices
    ]
    if builds:
        workers.append(RemoteWorker(connect, settings, None, f"{host}/builders"))
    with ThreadPoolExecutor(len(workers), "device") as pool:
        runs = [pool.submit(worker.run) for worker in workers]
        try:
            while not any(run.done() for run in runs):
                with interrupts.waiting():
                    time.sleep(_POLL_INTERVAL_SECS)
        finally:
            for worker in workers:
                worker.stop()
    for run in runs:
        run.result()


class RemoteWorker:
    """Measures on one device, or builds without one; see :func:`run_remote_workers`."""

    def __init__(
        self,
        connect: Callable[[], Transport],
        settings: Settings,
        device: LocalDevice | None,
        name: str,
    ) -> None:
        self._connect = connect
        self._settings = settings
        self._device = device
        self._identity = {"name": name, "key": secrets.token_hex(16)}
        self._unsent: dict[str, bytes] = {}
        # Names of the calls that were leased and whose answers have not arrived.
        self._known: set[str] = set()
        self._deadline = time.monotonic() + _MAX_STALL_SECS
        self._has_answers = threading.Event()
        # Set when a batch has ended: its last answers are sent at once.
        self._batch_ended = threading.Event()
        self._stopping = threading.Event()
        self._error: ServiceError | None = None
        self._n_builders = 0
        self._threads: ThreadPoolExecutor | None = None

    def stop(self) -> None:
        """Have :meth:`run` return before its next call."""
        self._stopping.set()

    def run(self) -> None:
        """Register, and run calls until stopped.

        Raises:
            ServiceError: If the service rejects this device.
            DeviceBusy: If another process measures on the CPU.
        """
        with ExitStack() as stack:
            call = self._open(stack)
            transport = stack.enter_context(closing(self._connect()))
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=shared_folder()))
            files = _Files(transport, Path(folder))
            sender = threading.Thread(target=self._send, name="answers")
            try:
                self._register(transport)
                sender.start()
                self._serve(transport, files, call)
            finally:
                self._stopping.set()
                self._has_answers.set()
                self._batch_ended.set()
                if sender.ident is not None:
                    sender.join()
        if self._error is not None:
            raise self._error

    def _open(self, stack: ExitStack) -> "_Call":
        """Start the processes of the device, or the builders; return what calls their functions.

        Raises:
            DeviceBusy: If another process measures on the CPU.
        """
        if self._device is None:
            self._n_builders = builder_count(self._settings)
            self._threads = ThreadPoolExecutor(self._n_builders, "builds")
            # After the builders, so that no thread waits for one.
            stack.callback(self._threads.shutdown, cancel_futures=True)
            builders = stack.enter_context(LocalExecutor(self._settings, runners=[]))
            builders.warm_up()
            return partial(_build, builders)
        if self._device.name == CPU:
            stack.enter_context(self._device.hold(self._settings.data_dir))
        runner = LocalRunner(
            self._settings, self._device.name, shares_cores=False, device=self._device
        )
        stack.callback(runner.close)
        return partial(_measure, runner)

    def _register(self, transport: Transport) -> None:
        """Register, as soon as there is a service.

        Raises:
            ServiceError: If the service rejects this device.
        """
        n_failures = 0
        while not self._stopping.is_set():
            try:
                release = wire.release(builds=self._n_builders > 0)
                body = {**self._identity, "release": release, "n_builders": self._n_builders}
                transport.request("POST", "/remote/register", json=body)
                _LOG.info("%s serves %s", self._identity["name"], transport.url)
                return
            except ServiceError as error:
                self._pause_after(error, n_failures)
                n_failures += 1

    def _serve(self, transport: Transport, files: "_Files", call: "_Call") -> None:
        # A transfer disturbs a kernel that a CPU times, and none of a GPU.
        has_next = self._device is None or self._device.name != CPU
        with ThreadPoolExecutor(1, "leases") as pool:
            lease = pool.submit(self._lease, transport, files)
            while not self._stopping.is_set():
                self._deadline = time.monotonic() + _MAX_STALL_SECS
                with suppress(TimeoutError):
                    calls = lease.result(_SIGN_INTERVAL_SECS)
                    if has_next:
                        lease = pool.submit(self._lease, transport, files)
                    self._run_calls(calls, files, call)
                    if not has_next:
                        lease = pool.submit(self._lease, transport, files)

    def _lease(self, transport: Transport, files: "_Files") -> list[LeasedCall]:
        """Wait for calls, and fetch their files; return none only when stopped.

        Raises:
            ServiceError: If the service rejects this device.
        """
        n_failures = 0
        while not self._stopping.is_set():
            # Calls whose lease did not arrive come again at once.
            wait = 0.0 if n_failures else _WAIT_SECS
            body = {
                **self._identity,
                "limit": _MAX_LEASED,
                "wait": wait,
                "known": list(self._known),
            }
            try:
                calls = transport.read(LeasedCalls, "POST", "/remote/lease", json=body).items
                files.fetch({digest for call in calls for digest in call.files})
            except NotFoundError:
                self._register(transport)
            except ServiceError as error:
                self._pause_after(error, n_failures)
                n_failures += 1
            else:
                if n_failures:
                    _LOG.info("the service is back")
                n_failures = 0
                self._known.update(call.id for call in calls)
                if calls:
                    return calls
        return []

    def _run_calls(self, calls: Sequence[LeasedCall], files: "_Files", call: "_Call") -> None:
        self._batch_ended.clear()
        for leased in calls:
            if self._stopping.is_set():
                return
            self._deadline = time.monotonic() + leased.timeout_secs + _MAX_STALL_SECS
            if self._threads is None:
                self._run_call(leased, files, call)
            else:
                self._threads.submit(self._run_call, leased, files, call)
        self._batch_ended.set()

    def _run_call(self, leased: LeasedCall, files: "_Files", call: "_Call") -> None:
        self._unsent[leased.id] = self._answer(leased, files, call)
        self._has_answers.set()

    def _answer(self, leased: LeasedCall, files: "_Files", call: "_Call") -> bytes:
        """Run a call; an error is an answer, too."""
        try:
            with raising_disk_full():
                if not files.paths.keys() >= set(leased.files):
                    raise files.problem or WorkerLost("the files of the call are gone")
                args = wire.decode_arguments(leased.function, wire.bytes_of(leased.arguments))
                result = call(leased, rename(args, files.paths))
                for each in result if isinstance(result, list) else [result]:
                    if isinstance(each, RunResult):
                        check_free_space(each, self._settings.data_dir)
            return wire.encode_answer(result)
        except DiskFull as error:
            _LOG.error("the disk is full: %s", error)
            return messages.encode_error(DeviceFull(f"{self._identity['name']}: {error}"))
        except (TunerError, OSError) as error:
            return messages.encode_error(error)
        except Exception as error:
            _LOG.exception("a call failed")
            return messages.encode_error(WorkError(f"{type(error).__name__}: {summary(error)}"))

    def _send(self) -> None:
        """Send answers and signs of life, until stopped and all are sent."""
        with closing(self._connect()) as transport:
            n_failures = 0
            while not self._stopping.is_set():
                self._has_answers.wait(_SIGN_INTERVAL_SECS)
                self._has_answers.clear()
                if time.monotonic() > self._deadline:
                    _LOG.error("%s makes no progress", self._identity["name"])
                    return
                try:
                    while self._send_some(transport):
                        pass
                    n_failures = 0
                except NotFoundError:
                    # The other thread registers again.
                    self._stopping.wait(_SEND_INTERVAL_SECS)
                    self._has_answers.set()
                except ServiceError as error:
                    try:
                        self._pause_after(error, n_failures)
                    except ServiceError as fatal:
                        self._error = fatal
                        self._stopping.set()
                        return
                    n_failures += 1
                    self._has_answers.set()
                self._batch_ended.wait(_SEND_INTERVAL_SECS)
            with suppress(ServiceError):
                self._send_some(transport, leaves=True)

    def _send_some(self, transport: Transport, *, leaves: bool = False) -> bool:
        """Send answers, as many as fit into a request; return whether there are more."""
        sent: dict[str, str] = {}
        n_bytes = 0
        for call_id, answer in list(self._unsent.items()):
            n_bytes += len(answer)
            if sent and (n_bytes > _MAX_SENT_BYTES or len(sent) == _MAX_LEASED):
                break
            sent[call_id] = wire.text_of(answer)
        body = {**self._identity, "answers": sent, "leaves": leaves}
        transport.request("POST", "/remote/answers", json=body)
        self._known.difference_update(sent)
        for call_id in sent:
            del self._unsent[call_id]
        return bool(self._unsent)

    def _pause_after(self, error: ServiceError, n_failures: int) -> None:
        """Wait after an error that may pass; raise any other."""
        if not is_transient(error) and error.kind != DISK_FULL:
            raise error
        if not n_failures:
            _LOG.warning("waiting for the service: %s", error)
        self._stopping.wait(delay_secs(n_failures, error.retry_secs))


class _Files:
    """Files of calls, by digest, in a folder that the process of a device reads."""

    def __init__(self, transport: Transport, folder: Path) -> None:
        self._transport = transport
        self._folder = folder
        # The file that was used last is the last.
        self.paths: OrderedDict[str, str] = OrderedDict()
        # Reason for which a file could not be written.
        self.problem: OSError | None = None

    def fetch(self, digests: Iterable[str]) -> None:
        """Fetch the files that are not here.

        Those that the service does not have, or that cannot be written, are left out.

        Raises:
            ServiceError: If the service cannot be reached, or a file is malformed.
        """
        self.problem = None
        digests = set(digests)
        for digest in digests & self.paths.keys():
            self.paths.move_to_end(digest)
        while len(self.paths) > max(_MAX_FILES - len(digests), 0):
            oldest = next(iter(self.paths))
            if oldest in digests:
                break
            _remove(Path(self.paths.pop(oldest)))
        missing = sorted(digests - self.paths.keys())
        with ThreadPoolExecutor(_N_DOWNLOADS) as pool:
            for digest, is_here in zip(missing, pool.map(self._download, missing), strict=True):
                if is_here:
                    self.paths[digest] = str(self._folder / digest)

    def _download(self, digest: str) -> bool:
        try:
            content = self._transport.request("GET", f"/remote/files/{digest}").content
        except NotFoundError:
            return False
        if hashlib.sha256(content).hexdigest() != digest:
            raise ServiceError(f"file {digest} is damaged", kind="broken")
        try:
            wire.unpack(content, self._folder / digest)
        except ValueError as error:
            raise ServiceError(f"the service sent a malformed file: {error}") from error
        except OSError as error:
            self.problem = error
            _remove(self._folder / digest)
            return False
        return True


def _measure(runner: LocalRunner, leased: LeasedCall, args: tuple[Any, ...]) -> Any:
    """Call a function on a device.

    Raises:
        TunerError, OSError: If it fails.
    """
    if leased.function == "describe_target":
        return runner.describe(*args).result()
    return runner.measure(leased.function, *args, timeout_secs=leased.timeout_secs).result()


def _build(builders: LocalExecutor, leased: LeasedCall, args: tuple[Any, ...]) -> wire.SentBuild:
    """Build a candidate.

    Raises:
        TunerError, OSError: If it fails.
    """
    if leased.function != "build":
        raise RequestError(f"builders do not {leased.function}")
    built = builders.build(*args, timeout_secs=leased.timeout_secs).result()
    if not isinstance(built, BuildResult):
        raise WorkError(f"the engine returned {built!r:.200}")
    try:
        return wire.pack_build(built)
    finally:
        builders.discard(built.artifact)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
