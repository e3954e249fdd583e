"""Check of the settings of a worker before it starts: what cannot be honoured stops the start.

Later, each would be an error that a worker meets, and tries again for ever.
"""

import importlib.util

from tuner.devices.locks import check_runtime_dir
from tuner.devices.runners.addresses import parse_addresses
from tuner.engines import environments
from tuner.errors import RequestError
from tuner.executors.factory import has_remote_devices
from tuner.library.signatures import policy_of
from tuner.settings import Settings
from tuner.workers import sandbox


def check_worker(settings: Settings) -> None:
    """Check that this machine can run a worker with some settings.

    Raises:
        RequestError: If it cannot; the message names the setting and the reason.
    """
    _check_sandbox(settings)
    _check_engine(settings)
    policy_of(settings)
    if settings.rpc is not None:
        parse_addresses(settings.rpc)
    check_runtime_dir()


def _check_sandbox(settings: Settings) -> None:
    if settings.worker_sandbox == "required" and (problem := sandbox.shortcoming()):
        raise RequestError(
            f"worker_sandbox is 'required', and the kernel cannot confine workers: {problem}"
        )


def _check_engine(settings: Settings) -> None:
    settings.check_engine()
    # A cluster or a tracker has engines of its own, but builds are made here with a tracker.
    is_elsewhere = has_remote_devices(settings) and settings.ray_address is not None
    needs_tvm = settings.engine == environments.ENGINES[environments.RELAX]
    if needs_tvm and not is_elsewhere and importlib.util.find_spec("tvm") is None:
        raise RequestError("the engine relax needs TVM, which is not installed; see tuner doctor")
