"""The actor on a node of a Ray cluster, which calls worker functions in a process of its own.

The actor runs neither kernels nor compilers. Its worker process does, so that time-outs and crashes
are handled as on one machine; the actor itself ends only with its node, or by kill -9.
"""

import hashlib
import importlib.metadata
import platform
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.build_cache.keys import versions_of
from tuner.devices.inventory import kind_of, local_devices, resource_of
from tuner.devices.target_matching import only_of
from tuner.engines.base import BuildRequest, BuildResult, TargetInfo
from tuner.errors import DeviceBusy, TargetError, TunerError
from tuner.executors.file_transfer import FolderContent, pack, rename, unpack
from tuner.process_folder import shared_folder
from tuner.settings import read_settings
from tuner.workers.base import CallTimeout
from tuner.workers.factory import builder_pool

if TYPE_CHECKING:
    from tuner.workers.pool import Pool

# Files of tuner/ that define what coordinator and agents exchange; they must be equal on both.
_CONTRACT = (
    "errors.py",
    "engines/base.py",
    "executors/ray/agent.py",
    "executors/file_transfer.py",
)
# Packages whose versions must be equal on both, since the results of builders depend on them.
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "xgboost-cpu")
_WARM_UP_TIMEOUT_SECS = 300.0
# An agent may ask several devices of its node before it has one of its kind.
START_TIMEOUT_SECS = 4 * _WARM_UP_TIMEOUT_SECS


@dataclass(frozen=True)
class Answer:
    """The result of a function, or the error that it raised."""

    value: Any = None
    error: Exception | None = None

    def unwrap(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


class AttachmentLost(Exception):  # noqa: N818  it is a loss of data, as WorkerLost of a process
    """A file that a call names was lost with the node that held it."""


@dataclass(frozen=True)
class Attachments:
    """Files that accompany the arguments of a call.

    Attributes:
        names: Names of the files in the arguments.
        refs: Ray references to their contents, in the order of the names.
        timeout_secs: Longest wait for the contents.
    """

    names: tuple[str, ...]
    refs: tuple[Any, ...]
    timeout_secs: float


class Agent:
    """Serves a coordinator on its node, one call at a time.

    Args:
        engine: Module with the worker functions.
        resource: Kind of device to measure on, as :func:`tuner.devices.inventory.resource_of` names
            it; None to build.
    """

    def __init__(self, engine: str, resource: str | None) -> None:
        self._settings = replace(read_settings({}), engine=engine)
        self._resource = resource
        self._folder = shared_folder()
        self._held: ExitStack
        self._pool: Pool

    def release(self) -> str:
        """Describe the release that is installed on this node."""
        return release()

    def start(self) -> Answer:
        """Start the worker and its imports; the value is the name of its device, or empty."""
        return _answer(self._start)

    def call(self, function: tuple[str, str], args: tuple[Any, ...], timeout_secs: float) -> Answer:
        """Call a function of a module in the worker."""
        return _answer(lambda: self._pool.call(*function, *args, timeout_secs=timeout_secs))

    def build(self, request: BuildRequest, timeout_secs: float) -> tuple[Answer, FolderContent]:
        """Build a candidate; the value is the result and whether it has an artifact."""
        try:
            with self._scratch() as out:
                answer = self._call_engine("build", (replace(request, out=out),), timeout_secs)
                result = answer.value
                if not isinstance(result, BuildResult) or not result.artifact:
                    return replace(answer, value=(result, False)), {}
                return Answer((result, True)), pack(Path(result.artifact))
        except OSError as error:
            return Answer(error=error), {}

    def measure(
        self, function: str, args: tuple[Any, ...], timeout_secs: float, attachments: Attachments
    ) -> Answer:
        """Call a function on the device."""
        try:
            with self._scratch() as folder:
                paths = _write_attachments(Path(folder), attachments)
                answer = self._call_engine(function, rename(args, paths), timeout_secs)
                return replace(answer, value=self._own_device(answer.value))
        except (AttachmentLost, OSError) as error:
            return Answer(error=error)

    def _scratch(self) -> "tempfile.TemporaryDirectory[str]":
        """Make a folder for one call.

        Raises:
            OSError: If the disk has no room for it.
        """
        return tempfile.TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True)

    def _own_device(self, value: Any) -> Any:
        """Restrict the description of a target to the device of this agent."""
        if self._resource is None or not isinstance(value, TargetInfo):
            return value
        return only_of(kind_of(self._resource), value)

    def _call_engine(self, function: str, args: tuple[Any, ...], timeout_secs: float) -> Answer:
        return self.call((self._settings.engine, function), args, timeout_secs)

    def _start(self) -> str:
        if self._resource is not None:
            return self._acquire_device(self._resource)
        self._pool = builder_pool(self._settings, 1)
        self._pool.call(
            self._settings.engine, "describe_target", "llvm", timeout_secs=_WARM_UP_TIMEOUT_SECS
        )
        return ""

    def _acquire_device(self, resource: str) -> str:
        """Lock the first free device of a kind, and return its name."""
        reason: TunerError = TargetError(f"{platform.node()} has no device {resource}")
        for device in local_devices():
            if device.kind != kind_of(resource):
                continue
            with ExitStack() as stack:
                try:
                    stack.enter_context(device.hold(self._settings.data_dir))
                    self._pool = stack.enter_context(device.open(self._settings))
                    info = device.describe(self._pool, self._settings)
                except (DeviceBusy, TargetError) as error:
                    reason = error
                    continue
                if resource_of(info.kind, info.device) == resource:
                    self._held = stack.pop_all()
                    return device.name
        raise reason


@lru_cache
def release() -> str:
    """Describe the installed release of the tuner, and the packages that its results depend on."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256(b"".join((root / path).read_bytes() for path in _CONTRACT))
    packages = "".join(
        f", {name} {version}" for name, version in versions_of(*_PACKAGES).items() if version
    )
    version = importlib.metadata.version("subgraph-tuner")
    return f"tuner {version} ({digest.hexdigest()[:12]}){packages}"


def _answer(function: Callable[[], Any]) -> Answer:
    try:
        return Answer(function())
    except (CallTimeout, TunerError, OSError) as error:
        return Answer(error=error)


def _write_attachments(folder: Path, attachments: Attachments) -> dict[str, str]:
    """Write attached files into a folder, and return the path of each.

    Raises:
        AttachmentLost: If a content cannot be fetched.
    """
    paths = {name: folder / str(number) for number, name in enumerate(attachments.names)}
    for path, content in zip(paths.values(), _fetch(attachments), strict=True):
        unpack(content, path)
    return {name: str(path) for name, path in paths.items()}


def _fetch(attachments: Attachments) -> list[FolderContent | bytes]:
    """Fetch contents with a time-out: Ray notices the loss of a node late."""
    import ray
    from ray.exceptions import GetTimeoutError, ObjectLostError

    try:
        contents: list[FolderContent | bytes] = ray.get(
            list(attachments.refs), timeout=attachments.timeout_secs
        )
    except (GetTimeoutError, ObjectLostError) as error:
        raise AttachmentLost(str(error)) from None
    return contents
