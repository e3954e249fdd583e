"""A device behind TVM's RPC tracker: lent for every call, timed there, driven from here.

One process of ours a device talks TVM's protocol, so that a crash of the client costs one call
too. A session lasts one call: whatever a kernel does to the server's process, the next one finds
a fresh one. The tracker lends any server of a key; see lending.py for how a runner gets its own.
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
from tuner.devices.runners.tracker import Lent, Server, Tracker
from tuner.engines.base import RemoteAnswer, RemoteServer, TargetInfo
from tuner.errors import DeviceLost, WorkerLost
from tuner.settings import Settings
from tuner.workers.base import CallTimeout
from tuner.workers.future_call import FutureCall
from tuner.workers.pools import fresh_worker
from tuner.workers.utilisation import UtilisationMeter

_DESCRIBE_TIMEOUT_SECS = 60
# A server that lives says so when a session expires; one that does not by then is lost.
_SILENCE_SECS = 15.0
_IMPORT_TIMEOUT_SECS = 120.0
# A key may be given away a moment before its server is gone, or takes another one.
_REFUSED_DELAYS_SECS = (0.1, 1.0, None)
# How long a server may take to notice that a session crashed.
_NOTICE_SECS = 1.0


class RpcRunner:
    """A server that a tracker lends.

    Args:
        settings: Name the engine.
        lender: Gets it from the tracker.
        address: Of the tracker, and the key of the server.
        server: Where it listens.
    """

    shares_cores = False

    def __init__(
        self, settings: Settings, lender: RpcLeases, address: RpcAddress, server: Server
    ) -> None:
        self.name = f"rpc:{address.key}/{server[0]}:{server[1]}"
        self.meter = UtilisationMeter()
        self.is_there = True
        self._lender = lender
        self._address = address
        self._server = server
        self._engine = settings.engine
        self._pool = fresh_worker(settings, "rpc")
        self._thread = ThreadPoolExecutor(1, self.name)
        self._calls: set[Future[Any]] = set()

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way."""
        return not self._calls

    def describe(self, spec: str) -> FutureCall:
        """See :class:`tuner.devices.runners.base.Runner`; the key is all that names the device."""
        return self._submit(lambda: self._describe(spec))

    def measure(self, function: str, *args: Any, timeout_secs: float) -> FutureCall:
        """See :class:`tuner.devices.runners.base.Runner`; waiting for a server is not timed."""
        return self._submit(lambda: self._call(function, args, timeout_secs))

    def leave(self) -> None:
        """Be no device for now: who waits for a server gets DeviceLost, who has one goes on."""
        self.is_there = False
        self._lender.give_up(self._server, f"{self.name} is gone")

    def close(self) -> None:
        """Kill the process; the server ends a session whose client is gone."""
        self.leave()
        self._pool.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _submit(self, work: Callable[[], Any]) -> FutureCall:
        try:
            future = self._thread.submit(self._guarded, work)
        except RuntimeError as error:  # it was closed, for its server was away for long
            raise DeviceLost(f"{self.name} is gone") from error
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return FutureCall(future)

    def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except DeviceLost:
            self.is_there = False
            raise

    def _describe(self, spec: str) -> TargetInfo:
        info: TargetInfo = self._call("describe_target", (spec,), _DESCRIBE_TIMEOUT_SECS)
        return replace(info, device={**info.device, "name": f"rpc:{self._address.key}"})

    def _call(self, function: str, args: tuple[Any, ...], timeout_secs: float) -> Any:
        most = self._address.session_timeout or math.inf
        session_secs = math.ceil(min(timeout_secs, most))
        for delay in _REFUSED_DELAYS_SECS:
            # TVM is imported before a server is lent: it takes its key back after four seconds.
            self._pool.call(__name__, "prepare", self._engine, timeout_secs=_IMPORT_TIMEOUT_SECS)
            lent = self._lend()
            server = RemoteServer(lent.host, lent.port, lent.match_key, session_secs)
            answer = self._ask(server, function, args)
            if answer.problem != "refused" or delay is None:
                break
            time.sleep(delay)
        return self._value_of(answer, session_secs)

    def _lend(self) -> Lent:
        if not self.is_there:
            raise DeviceLost(f"{self.name} is gone")
        return self._lender.lend(self._server)

    def _ask(self, server: RemoteServer, function: str, args: tuple[Any, ...]) -> RemoteAnswer:
        limit = server.session_secs + _SILENCE_SECS
        call = self._pool.submit(
            self._engine, "call_remotely", server, function, *args, timeout_secs=limit
        )
        try:
            answer: RemoteAnswer = self.meter.watch(call).result()
        except CallTimeout as error:
            raise DeviceLost(f"{self.name} has said nothing for {limit:g} s") from error
        return answer

    def _value_of(self, answer: RemoteAnswer, session_secs: int) -> Any:
        if answer.problem == "expired":
            raise CallTimeout(f"{self.name} ended the session after {session_secs} s")
        if answer.problem == "refused":
            raise DeviceLost(f"{self.name} takes no session: {answer.text}")
        if answer.problem == "broken":
            time.sleep(_NOTICE_SECS)
            if not self._is_listed():
                raise DeviceLost(f"{self.name} is gone: {answer.text}")
            raise WorkerLost(f"the session on {self.name} crashed: {answer.text}", crashed=True)
        return answer.value

    def _is_listed(self) -> bool:
        with closing(Tracker(self._address)) as tracker:
            return self._server in tracker.servers()


def prepare(engine: str) -> None:
    """Import an engine in a worker."""
    importlib.import_module(engine)
