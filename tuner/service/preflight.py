"""Check of the settings of a worker before it starts: what cannot be honoured stops the start.

Later, each would be an error that a worker meets, and tries again for ever.
"""

import importlib.util
import logging
from dataclasses import replace

from tuner.devices.locks import check_runtime_dir
from tuner.devices.runners.addresses import parse_addresses
from tuner.engines import environments
from tuner.errors import RequestError
from tuner.executors.factory import has_remote_devices
from tuner.library.signatures import policy_of
from tuner.settings import Settings
from tuner.workers.confinement import sandbox

_LOG = logging.getLogger(__name__)


def check_worker(settings: Settings) -> Settings:
    """Check that this machine can run a worker with some settings.

    Returns:
        The settings, in which ``worker_sandbox`` is not ``auto``.

    Raises:
        RequestError: If it cannot; the message names the setting and the reason.
    """
    if settings.worker_sandbox == "auto":
        settings = replace(settings, worker_sandbox="required")
    problem = sandbox.shortcoming()
    if settings.worker_sandbox == "required" and problem:
        raise RequestError(
            f"the kernel cannot confine the processes that parse models and run kernels: {problem};"
            " set worker_sandbox to 'partial' to serve with what it can, or to 'off'"
        )
    state = sandbox.state(settings.worker_sandbox)
    if state != sandbox.CONFINED:
        _LOG.warning("worker processes are not confined as they should be: %s", state)
    settings.check_engine()
    # A cluster or a tracker has engines of its own, but builds are made here with a tracker.
    is_elsewhere = has_remote_devices(settings) and settings.ray_address is not None
    needs_tvm = settings.engine == environments.ENGINES[environments.RELAX]
    if needs_tvm and not is_elsewhere and importlib.util.find_spec("tvm") is None:
        raise RequestError("the engine relax needs TVM, which is not installed; see tuner doctor")
    policy_of(settings)
    if settings.rpc is not None:
        parse_addresses(settings.rpc)
    check_runtime_dir()
    return settings
