"""``tuner doctor`` of a service: what can be told of it from here."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from tuner.cli.doctor import Check
from tuner.client import AuthError, ServiceError, TunerClient

_MOST_SKEW_SECS = 5.0
# No job has it, so that asking for it changes nothing.
_NO_JOB = 2**31 - 1


def run_checks(client: TunerClient) -> Iterator[Check]:
    """Look at a service; without one that answers there is nothing more to see."""
    try:
        health = client.health()
    except ServiceError as error:
        yield Check("service", "missing", str(error), "tuner serve starts one")
        return
    yield _version(client.url, health.version)
    yield _ready(ready=health.ready, detail=health.detail)
    yield _clock(health.skew_secs)
    if not health.ready:
        return
    token = _token(client)
    yield token
    if not token.fatal:
        yield _workers(client)


def _version(url: str, theirs: str | None) -> Check:
    try:
        ours = version("subgraph-tuner")
    except PackageNotFoundError:
        ours = None
    found = f"{url}, version {theirs or 'unknown'}"
    if theirs is not None and ours is not None and theirs != ours:
        return Check("service", "warning", f"{found}; this is {ours}", "install the same version")
    return Check("service", "ok", found)


def _ready(*, ready: bool, detail: str) -> Check:
    if ready:
        return Check("database", "ok", "the service is ready")
    return Check("database", "missing", detail, "look into the log of the service")


def _clock(skew_secs: float | None) -> Check:
    if skew_secs is None:
        return Check("clock", "ok", "the service does not say", essential=False)
    found = f"{abs(skew_secs):.0f} s {'ahead of' if skew_secs > 0 else 'behind'} ours"
    if abs(skew_secs) > _MOST_SKEW_SECS:
        return Check("clock", "warning", found, "set both clocks", essential=False)
    return Check("clock", "ok", "within seconds of ours", essential=False)


def _token(client: TunerClient) -> Check:
    """Find out what we may do by asking for what changes nothing."""
    try:
        next(client.jobs(), None)
    except AuthError as error:
        return Check("access", "missing", str(error), "tuner token create makes a token")
    allowed = ["read"]
    for scope, ask in (
        ("submit", lambda: client.pause(_NO_JOB)),
        ("admin", lambda: next(client.audit(), None)),
    ):
        try:
            ask()
        except AuthError:
            continue
        except ServiceError:
            pass
        allowed.append(scope)
    return Check("access", "ok", ", ".join(allowed), details={"scopes": allowed})


def _workers(client: TunerClient) -> Check:
    alive = [worker for worker in client.workers() if worker.alive]
    active = [worker for worker in alive if worker.role == "active"]
    if not active:
        found = f"none is active, {len(alive)} stand by"
        return Check("workers", "warning", found, "tuner worker starts one")
    said = ", ".join(
        f"{worker.name} on {worker.device.get('name', 'a device')}: {worker.activity}"
        for worker in active
    )
    return Check("workers", "ok", f"{said}; {len(alive) - len(active)} stand by")
