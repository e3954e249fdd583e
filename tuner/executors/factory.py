"""Open the executor that the settings name, and describe targets by its devices."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session, sessionmaker

from tuner.devices.inventory import CPU, usable_devices
from tuner.devices.runners.local import LocalRunner
from tuner.devices.target_cache import DescribeTarget
from tuner.engines.base import TargetInfo
from tuner.errors import RequestError, TargetError, WorkError
from tuner.executors.base import Executor
from tuner.executors.local import LocalExecutor
from tuner.executors.remote.fleet import RemoteFleet
from tuner.settings import Settings
from tuner.workers.utilisation import UtilisationMeter


def open_executor(
    settings: Settings,
    meter: UtilisationMeter | None = None,
    sessions: sessionmaker[Session] | None = None,
) -> Executor:
    """Start the workers of this machine, whose devices measure unless others do behind RPC.

    Args:
        settings: Engine, builders, and the tracker if there is one.
        meter: Meter of the builders' work.
        sessions: Database of a service, whose remote devices and builders work beside those of
            this machine.

    Raises:
        RequestError: If an address of the tracker is malformed.
        DeviceLost: If a tracker does not answer.
    """
    if settings.rpc is not None:
        from tuner.devices.runners.rpc_fleet import RpcFleet

        return LocalExecutor(settings, meter, fleet=RpcFleet(settings))
    meter = meter or UtilisationMeter()
    remote = None if sessions is None else RemoteFleet(settings, sessions)
    # Their processes start with their first call.
    return LocalExecutor(
        settings,
        meter,
        [
            LocalRunner(
                settings,
                "local" if device.name == CPU else device.name,
                shares_cores=device.name == CPU,
                device=device,
                meter=meter if device.name == CPU else None,
            )
            for device in usable_devices()
        ],
        fleet=remote,
        farm=remote,
    )


def has_remote_devices(settings: Settings) -> bool:
    """Return whether the devices are on other machines, so that this one cannot describe them."""
    return settings.rpc is not None


@contextmanager
def open_describer(settings: Settings) -> Iterator[DescribeTarget | None]:
    """Yield a function that asks remote devices to describe a target; None for local devices.

    Raises:
        RequestError: If an address of the tracker is malformed.
    """
    if not has_remote_devices(settings):
        yield None
        return
    with open_executor(settings) as executor:
        yield describer_of(executor)


def describer_of(executor: Executor, *, only_named: bool = False) -> DescribeTarget:
    """Return a function that asks the devices of an executor to describe a target.

    ``TARGET@DEVICE`` asks that device alone, and ``TARGET@HOST`` those of a host.

    Args:
        only_named: True to leave targets without a device to this machine.
    """

    def describe(spec: str) -> TargetInfo | None:
        target, named, device = spec.partition("@")
        if only_named and not named:
            return None
        problems = []
        for runner in executor.runners:
            if named and device not in (runner.name, runner.name.partition("/")[0]):
                continue
            try:
                info: TargetInfo = runner.describe(target).result()
            except (RequestError, WorkError) as error:
                problems.append(f"{runner.name}: {error}")
                continue
            if not info.problem:
                return info
            problems.append(f"{runner.name}: {info.problem}")
        none = f"no device {device!r} is online" if named else "the executor has no device"
        raise TargetError(f"no device runs target {spec}: {'; '.join(problems) or none}")

    return describe
