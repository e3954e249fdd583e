"""``tuner doctor`` with ``--server``: checks of a server through its API."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from tuner.cli.doctor.check import Check
from tuner.client import AuthError, ServiceError, TunerClient

_MAX_SKEW_SECS = 5.0
# A job id that never exists, so that a request for it changes nothing.
_NO_JOB = 2**31 - 1


def run_checks(client: TunerClient) -> Iterator[Check]:
    """Run the checks one after the other; end early if the server cannot be used."""
    try:
        health = client.health()
    except ServiceError as error:
        yield Check("service", "missing", str(error), "start it with `tuner serve`")
        return
    yield _check_version(client.url, health.version)
    yield _check_database(ready=health.ready, detail=health.detail)
    yield _check_clock(health.skew_secs)
    if not health.ready:
        return
    access = _check_access(client)
    yield access
    if not access.fatal:
        yield _check_workers(client)


def _check_version(url: str, server_version: str | None) -> Check:
    try:
        client_version = version("subgraph-tuner")
    except PackageNotFoundError:
        client_version = None
    result = f"{url}, version {server_version or 'unknown'}"
    if None not in (server_version, client_version) and server_version != client_version:
        result = f"{result}; this is {client_version}"
        return Check("service", "warning", result, "install the same version")
    return Check("service", "ok", result)


def _check_database(*, ready: bool, detail: str) -> Check:
    if ready:
        return Check("database", "ok", "the server is ready")
    return Check("database", "missing", detail, "read the log of the server")


def _check_clock(skew_secs: float | None) -> Check:
    if skew_secs is None:
        return Check("clock", "ok", "not reported by the server", essential=False)
    if abs(skew_secs) <= _MAX_SKEW_SECS:
        return Check("clock", "ok", "within seconds of this machine's", essential=False)
    direction = "ahead of" if skew_secs > 0 else "behind"
    result = f"{abs(skew_secs):.0f} s {direction} this machine's"
    return Check("clock", "warning", result, "set both clocks", essential=False)


def _check_access(client: TunerClient) -> Check:
    """List the scopes of the token by sending requests that change nothing."""
    try:
        next(client.jobs(), None)
    except AuthError as error:
        return Check("access", "missing", str(error), "create a token with `tuner token create`")
    scopes = ["read"]
    for scope, request in (
        ("submit", lambda: client.pause(_NO_JOB)),
        ("admin", lambda: next(client.audit(), None)),
    ):
        try:
            request()
        except AuthError:
            continue
        except ServiceError:
            pass
        scopes.append(scope)
    return Check("access", "ok", ", ".join(scopes), details={"scopes": scopes})


def _check_workers(client: TunerClient) -> Check:
    online = [worker for worker in client.workers() if worker.alive]
    active = [worker for worker in online if worker.role == "active"]
    n_standby = len(online) - len(active)
    if not active:
        result = f"none is active, {n_standby} on standby"
        return Check("workers", "warning", result, "start one with `tuner worker`")
    activities = ", ".join(
        f"{worker.name} on {worker.device.get('name', 'a device')}: {worker.activity}"
        for worker in active
    )
    return Check("workers", "ok", f"{activities}; {n_standby} on standby")
