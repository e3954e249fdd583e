"""Kernels on a device behind TVM's RPC server: one session per call, without leftovers.

The server is TVM's own, in Python or C++. Functions that it lacks, such as a flush of the caches
of its CPU, are replaced by those that TVM's runtime has everywhere.
"""

import json
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import tvm
from tvm import rpc

from tuner.engines.base import EvaluatorSettings, RemoteAnswer, RemoteServer, RunResult
from tuner.engines.relax.run import artifacts
from tuner.engines.relax.run.run_device import gpu_flush_bytes
from tuner.engines.relax.target import remote_targets
from tuner.engines.runtime.cache_state import Arguments
from tuner.engines.runtime.timing import SampleHook
from tuner.errors import RequestError, TunerError, error_text

_CONNECT_SECS = 10.0
# The server's clock starts slightly before the clock here.
_NEARLY = 0.95
# The remote CPU cannot be queried: no known core has a larger private cache.
_MAX_PRIVATE_CACHE_BYTES = 2 * 2**20
# Size from which on a network counts as larger than the shared cache, and the bytes that are then
# copied: in sizes of the network, because a cache that is swept in circles keeps nothing.
_MAX_SHARED_CACHE_BYTES = 32 * 2**20
_SWEEPS = 3
_MAX_FLUSH_BYTES = 256 * 2**20


def _refuse_to_sanitize(*_: Any) -> None:
    raise RequestError(
        "the sanitizer checks kernels on local GPUs and those over HTTPS, not behind RPC"
    )


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "describe_target": remote_targets.describe_target,
    "run": artifacts.run,
    "run_interleaved": artifacts.run_interleaved,
    "sanitize": _refuse_to_sanitize,
}


class RemoteDevice:
    """The device behind a session; see :class:`tuner.engines.relax.run.run_device.RunDevice`."""

    has_graphs = False

    def __init__(self, session: Any) -> None:
        self.session = session
        self._uploaded: list[str] = []

    def device(self, target: str) -> Any:
        """Return the remote CPU or GPU."""
        is_gpu = json.loads(target)["kind"] == "cuda"
        return self.session.cuda() if is_gpu else self.session.cpu()

    def load(self, library: Path) -> tvm.runtime.Module:
        """Upload a library and load it on the device."""
        name = f"{len(self._uploaded)}-{library.name}"
        self._uploaded.append(name)
        self.session.upload(str(library), name)
        return self.session.load_module(name)

    def sample_hook(
        self, target: str, arguments: Arguments, settings: EvaluatorSettings
    ) -> SampleHook | None:
        """Return None: the device cannot call functions of this process."""

    def flush_bytes(self, target: str, settings: EvaluatorSettings) -> int:
        """Return the bytes that replace the L2 of a GPU or the private caches of a CPU.

        On a CPU one core copies them; measured locally, the samples equal those after a flush that
        reads on every core, see docs/fleet.md. Weights of a network that no cache is known to hold
        are flushed as well.
        """
        if json.loads(target)["kind"] == "cuda":
            return gpu_flush_bytes(target)
        if settings.network_bytes > _MAX_SHARED_CACHE_BYTES:
            return min(_SWEEPS * settings.network_bytes, _MAX_FLUSH_BYTES)
        return 2 * _MAX_PRIVATE_CACHE_BYTES

    def cache_state(self, target: str, settings: EvaluatorSettings) -> dict[str, Any]:  # noqa: ARG002
        """Return no conditions: the caches of the device are unknown."""
        return {}

    def conditions(self, target: str) -> dict[str, Any]:  # noqa: ARG002  the server reports no clocks
        """Return no conditions."""
        return {}

    def check_after(self, target: str, error: Exception) -> None:
        """Do nothing: a session ends with its call."""

    def clear(self) -> None:
        """Remove the uploaded files; the server's process ends with the session."""
        for name in self._uploaded:
            with suppress(Exception):  # a server without this function has no such file
                self.session.remove(name)


def call_remotely(server: RemoteServer, function: str, *args: Any) -> RemoteAnswer:
    """Call a function on a remote device; see :class:`Engine`."""
    started = time.monotonic()
    try:
        session = _connect(server)
    except Exception as error:  # TVM wraps socket errors in several types
        return RemoteAnswer(problem="refused", text=error_text(error, 500))
    answer = _call(RemoteDevice(session), function, args)
    # The server in C++ closes the connection without a message.
    is_late = time.monotonic() - started >= _NEARLY * server.session_secs
    if answer.problem == "broken" and is_late:
        return RemoteAnswer(problem="expired", text=answer.text)
    return answer


def _call(device: RemoteDevice, function: str, args: tuple[Any, ...]) -> RemoteAnswer:
    try:
        value = _FUNCTIONS[function](*args, device)
    except tvm.error.RPCSessionTimeoutError as error:  # which is an OSError, too
        return RemoteAnswer(problem="expired", text=error_text(error, 500))
    except (OSError, TunerError):
        raise  # an unreadable artifact or a wrong target is not a failure of the session
    except Exception as error:
        if _is_alive(device.session):
            raise
        return RemoteAnswer(problem="broken", text=error_text(error, 500))
    failed = isinstance(value, RunResult) and value.error_kind == "run_error"
    if failed and not _is_alive(device.session):
        return RemoteAnswer(problem="broken", text=value.error_text)
    device.clear()
    return RemoteAnswer(value)


def _connect(server: RemoteServer) -> Any:
    """Open a session; the wait for an absent host is bounded."""
    with _time_limit(_CONNECT_SECS):
        return rpc.connect(
            server.host, server.port, server.match_key, session_timeout=server.session_secs
        )


@contextmanager
def _time_limit(secs: float) -> Generator[None]:
    """Interrupt system calls that take longer than a limit."""

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer within {secs:g} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, secs)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _is_alive(session: Any) -> bool:
    try:
        session.get_function("runtime.GetDeviceAttr")
    except AttributeError:
        return True  # the server has none
    except Exception:  # TVM wraps the error of a closed socket in several types
        return False
    return True
