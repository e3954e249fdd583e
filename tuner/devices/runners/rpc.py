"""Runner of a device behind TVM's RPC tracker: leased for every call, driven from here.

One local process per device talks TVM's protocol, so that a crash of the client costs one call
too. A session lasts one call: whatever a kernel does to the server's process, the next call has a
fresh one. The tracker leases any server of a key; :mod:`tuner.devices.runners.rpc_leases` gets a
runner its own.
"""

import importlib
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

from tuner.devices.runners.addresses import RpcAddress
from tuner.devices.runners.rpc_leases import RpcLeases
from tuner.devices.runners.tracker import Server, Tracker
from tuner.engines.base import RemoteAnswer, RemoteServer, TargetInfo
from tuner.engines.result_types import result_type
from tuner.errors import DeviceLost, WorkerLost
from tuner.settings import Settings
from tuner.workers import messages
from tuner.workers.base import CallTimeout, FutureCall
from tuner.workers.factory import client_pool
from tuner.workers.utilisation import UtilisationMeter

_DESCRIBE_TIMEOUT_SECS = 60
# A server that lives answers when a session expires; one that has not by then is lost.
_SILENCE_TIMEOUT_SECS = 15.0
_IMPORT_TIMEOUT_SECS = 120.0
# Pauses after refused sessions, None after the last: a key may be leased a moment before its
# server ends, or takes another key.
_REFUSED_DELAYS_SECS = (0.1, 1.0, None)
# Longest time in which a server notices that a session crashed.
_NOTICE_SECS = 1.0


class RpcRunner:
    """Runner on one server of a tracker.

    Args:
        settings: Settings that name the engine.
        leases: Leases of the servers of the key.
        address: Address of the tracker, and the key of the server.
        server: Address of the server.

    Attributes:
        is_online: True while the server is registered; calls raise DeviceLost otherwise.
    """

    shares_cores = False
    n_ahead = 1

    def __init__(
        self, settings: Settings, leases: RpcLeases, address: RpcAddress, server: Server
    ) -> None:
        self.name = f"rpc:{address.key}/{server[0]}:{server[1]}"
        self.meter = UtilisationMeter()
        self.is_online = True
        self._leases = leases
        self._address = address
        self._server = server
        self._engine = settings.engine
        self._pool = client_pool(settings, server[1])
        self._thread = ThreadPoolExecutor(1, self.name)
        self._calls: set[Future[Any]] = set()

    @property
    def is_idle(self) -> bool:
        """True if no call is under way."""
        return not self._calls

    def describe(self, spec: str) -> FutureCall:
        """Resolve a target on the server; the key alone names the device."""
        return self._submit(lambda: self._describe(spec))

    def measure(self, function: str, *args: Any, timeout_secs: float) -> FutureCall:
        """Call a function of the engine; waiting for the server does not count as time."""
        return self._submit(lambda: self._call(function, args, timeout_secs))

    def go_offline(self) -> None:
        """Refuse new calls; a call that waits for the server gets DeviceLost, others go on."""
        self.is_online = False
        self._leases.fail(self._server, f"{self.name} is offline")

    def close(self) -> None:
        """Kill the process; the server ends the session of a client that disconnects."""
        self.go_offline()
        self._pool.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _submit(self, work: Callable[[], Any]) -> FutureCall:
        try:
            future = self._thread.submit(self._guarded, work)
        except RuntimeError as error:  # it was closed, as its server was away for long
            raise DeviceLost(f"{self.name} is offline") from error
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return FutureCall(future)

    def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except DeviceLost:
            self.is_online = False
            raise

    def _describe(self, spec: str) -> TargetInfo:
        info: TargetInfo = self._call("describe_target", (spec,), _DESCRIBE_TIMEOUT_SECS)
        return replace(info, device={**info.device, "name": f"rpc:{self._address.key}"})

    def _call(self, function: str, args: tuple[Any, ...], timeout_secs: float) -> Any:
        limit = self._address.session_timeout or math.inf
        session_secs = math.ceil(min(timeout_secs, limit))
        for delay in _REFUSED_DELAYS_SECS:
            # TVM is imported before the lease, because a server takes its key back after four
            # seconds.
            self._pool.call(
                __name__, "prepare", self._engine, timeout_secs=_IMPORT_TIMEOUT_SECS, returns=None
            )
            if not self.is_online:
                raise DeviceLost(f"{self.name} is offline")
            lease = self._leases.acquire(self._server)
            server = RemoteServer(lease.host, lease.port, lease.match_key, session_secs)
            limit = server.session_secs + _SILENCE_TIMEOUT_SECS
            call = self._pool.submit(
                self._engine, "call_remotely", server, function, *args, timeout_secs=limit
            )
            try:
                answer: RemoteAnswer = self.meter.watch(call).result()
            except CallTimeout as error:
                raise DeviceLost(f"{self.name} did not answer for {limit:g} s") from error
            if answer.problem != "refused" or delay is None:
                break
            time.sleep(delay)
        if answer.problem == "expired":
            raise CallTimeout(f"{self.name} ended the session after {session_secs} s")
        if answer.problem == "refused":
            raise DeviceLost(f"{self.name} refuses sessions: {answer.text}")
        if answer.problem == "broken":
            time.sleep(_NOTICE_SECS)
            if not self._is_registered():
                raise DeviceLost(f"{self.name} is offline: {answer.text}")
            raise WorkerLost(f"the session on {self.name} crashed: {answer.text}", crashed=True)
        return messages.convert(answer.value, result_type(function))

    def _is_registered(self) -> bool:
        with closing(Tracker(self._address)) as tracker:
            return self._server in tracker.servers()


def prepare(engine: str) -> None:
    """Import an engine in a worker."""
    importlib.import_module(engine)
