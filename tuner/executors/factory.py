"""Which executor the settings ask for, and what targets mean to its devices."""

from collections.abc import Iterator
from contextlib import contextmanager

from tuner.devices.inventory import CPU, usable_devices
from tuner.devices.runners.base import Runner
from tuner.devices.runners.local import LocalRunner
from tuner.devices.target_cache import DescribeTarget
from tuner.engines.base import TargetInfo
from tuner.errors import RequestError, TargetError
from tuner.executors.base import Executor
from tuner.executors.local import LocalExecutor
from tuner.settings import Settings
from tuner.workers.utilisation import UtilisationMeter


def open_executor(settings: Settings, meter: UtilisationMeter | None = None) -> Executor:
    """Start the workers that the settings ask for: a cluster's, RPC devices', or this machine's.

    Raises:
        RequestError: If there is no such cluster or package.
        DeviceLost: If a tracker does not answer.
    """
    if settings.ray_address is not None:
        from tuner.executors.ray.executor import RayExecutor

        return RayExecutor(settings, meter)
    if settings.rpc is not None:
        from tuner.devices.runners.rpc_fleet import RpcFleet

        return LocalExecutor(settings, meter, fleet=RpcFleet(settings))
    meter = meter or UtilisationMeter()
    return LocalExecutor(settings, meter, _local_runners(settings, meter))


def is_elsewhere(settings: Settings) -> bool:
    """Whether the devices are other machines', so that this one cannot say what they are."""
    return settings.ray_address is not None or settings.rpc is not None


@contextmanager
def open_describer(settings: Settings) -> Iterator[DescribeTarget | None]:
    """Yield a way to ask the devices what a target is; None: ask a worker of this machine.

    Raises:
        RequestError: If there is no such cluster or tracker.
    """
    if not is_elsewhere(settings):
        yield None
        return
    with open_executor(settings) as executor:
        yield describe_by(executor)


def describe_by(executor: Executor) -> DescribeTarget:
    """Return a way to ask the devices of an executor what a target is."""

    def describe(spec: str) -> TargetInfo:
        problems = []
        for runner in executor.runners:
            try:
                found: TargetInfo = runner.describe(spec).result()
            except RequestError as error:
                problems.append(f"{runner.name}: {error}")
                continue
            if not found.problem:
                return found
            problems.append(f"{runner.name}: {found.problem}")
        reasons = "; ".join(problems) or "there is no device"
        raise TargetError(f"no device runs target {spec}: {reasons}")

    return describe


def _local_runners(settings: Settings, meter: UtilisationMeter) -> list[Runner]:
    """Make the runners of this machine; their processes start with their first call."""
    return [
        LocalRunner(
            settings,
            "local" if seat.name == CPU else seat.name,
            shares_cores=seat.name == CPU,
            seat=seat,
            meter=meter if seat.name == CPU else None,
        )
        for seat in usable_devices()
    ]
