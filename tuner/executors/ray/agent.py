"""What runs on a node of a Ray cluster: an actor beside a worker process of ours.

The actor never runs a kernel or a compiler. Its worker does, so that time-outs and deaths there
are what they are on one machine; the actor itself only ends with its node, or by kill -9.
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

from tuner.build_cache.key_inputs import versions_of
from tuner.devices.inventory import kind_of, local_devices, resource_of
from tuner.devices.target_matching import only_of
from tuner.engines.base import BuildRequest, BuildResult, TargetInfo
from tuner.errors import DeviceBusy, TargetError, TunerError
from tuner.executors.ray.file_transfer import Parcel, pack, rename, unpack
from tuner.executors.ray.folders import folder_of_process
from tuner.settings import read_settings
from tuner.workers.base import CallTimeout
from tuner.workers.pools import builder_pool

if TYPE_CHECKING:
    from tuner.workers.pool import Pool

# What has to be alike where calls are made and where they are served, whatever the release.
_CONTRACT = (
    "errors.py",
    "engines/base.py",
    "executors/ray/agent.py",
    "executors/ray/file_transfer.py",
)
# What a builder's answers depend on beside our own code.
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "xgboost-cpu")
_WARM_UP_TIMEOUT_SECS = 300.0
# A device that begins may have to ask several before it finds its own.
BEGIN_SECS = 4 * _WARM_UP_TIMEOUT_SECS


@dataclass(frozen=True)
class Answer:
    """What a function returned, or the error it ended with."""

    value: Any = None
    error: Exception | None = None

    def unwrap(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


class PartsLost(Exception):  # noqa: N818  the name says what happened
    """What a call was to be sent is gone with the node that held it."""


@dataclass(frozen=True)
class Parcels:
    """What comes along with the arguments of a call.

    Attributes:
        names: Over there.
        parts: References to their contents, in that order.
        limit_secs: How long to wait for them.
        written: Names of files that the call writes, whose contents are to come back.
    """

    names: tuple[str, ...]
    parts: tuple[Any, ...]
    limit_secs: float
    written: tuple[str, ...] = ()


class Agent:
    """Serves a coordinator on its node, one call at a time.

    Args:
        engine: Module with the worker functions.
        resource: The device to measure on, as :func:`tuner.devices.inventory.resource_of` names its
            kind; None to build.
    """

    def __init__(self, engine: str, resource: str | None) -> None:
        self._settings = replace(read_settings({}), engine=engine)
        self._resource = resource
        self._folder = folder_of_process()
        self._held: ExitStack
        self._pool: Pool

    def release(self) -> str:
        """Tell what is installed here."""
        return release()

    def begin(self) -> Answer:
        """Start the worker and its imports, and tell which device of this machine it has."""
        return _answer(self._begin)

    def call(self, function: tuple[str, str], args: tuple[Any, ...], timeout_secs: float) -> Answer:
        """Call a function of a module in the worker."""
        return _answer(lambda: self._pool.call(*function, *args, timeout_secs=timeout_secs))

    def build(self, request: BuildRequest, timeout_secs: float) -> tuple[Answer, Parcel]:
        """Build a candidate, and say whether there is an artifact, which comes apart."""
        try:
            with self._scratch() as out:
                answer = self._engine("build", (replace(request, out=out),), timeout_secs)
                result = answer.value
                if not isinstance(result, BuildResult) or not result.artifact:
                    return replace(answer, value=(result, False)), {}
                return Answer((result, True)), pack(Path(result.artifact))
        except OSError as error:
            return Answer(error=error), {}

    def measure(
        self, function: str, args: tuple[Any, ...], timeout_secs: float, parcels: Parcels
    ) -> Answer:
        """Time on the device; with the value come the contents of the files that it wrote."""
        try:
            with self._scratch() as folder:
                places = _lay_out(Path(folder), parcels)
                answer = self._engine(function, rename(args, places), timeout_secs)
                if answer.error is not None:
                    return answer
                written = tuple(Path(places[name]).read_bytes() for name in parcels.written)
                return Answer((self._own(answer.value), written))
        except (PartsLost, OSError) as error:
            return Answer(error=error)

    def _scratch(self) -> "tempfile.TemporaryDirectory[str]":
        """Make a folder for one call.

        Raises:
            OSError: If there is no room for one.
        """
        return tempfile.TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True)

    def _own(self, value: Any) -> Any:
        """Describe a target as the device of this agent sees it, not as its process does."""
        if self._resource is None or not isinstance(value, TargetInfo):
            return value
        return only_of(kind_of(self._resource), value)

    def _engine(self, function: str, args: tuple[Any, ...], timeout_secs: float) -> Answer:
        return self.call((self._settings.engine, function), args, timeout_secs)

    def _begin(self) -> str:
        if self._resource is not None:
            return self._take_device(self._resource)
        self._pool = builder_pool(self._settings, 1)
        self._pool.call(
            self._settings.engine, "describe_target", "llvm", timeout_secs=_WARM_UP_TIMEOUT_SECS
        )
        return ""

    def _take_device(self, resource: str) -> str:
        """Take the first device of a kind that nobody holds."""
        reason: TunerError = TargetError(f"{platform.node()} has no device {resource}")
        for seat in local_devices():
            if seat.kind != kind_of(resource):
                continue
            with ExitStack() as stack:
                try:
                    stack.enter_context(seat.hold(self._settings.data_dir))
                    self._pool = stack.enter_context(seat.open(self._settings))
                    info = seat.describe(self._pool, self._settings)
                except (DeviceBusy, TargetError) as error:
                    reason = error
                    continue
                if resource_of(info.kind, info.device) == resource:
                    self._held = stack.pop_all()
                    return seat.name
        raise reason


@lru_cache
def release() -> str:
    """Tell which release of the tuner is installed, and what its answers depend on."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256(b"".join((root / path).read_bytes() for path in _CONTRACT))
    packages = {name: found for name, found in versions_of(*_PACKAGES).items() if found}
    listed = "".join(f", {name} {found}" for name, found in packages.items())
    version = importlib.metadata.version("subgraph-tuner")
    return f"tuner {version} ({digest.hexdigest()[:12]}){listed}"


def _answer(function: Callable[[], Any]) -> Answer:
    try:
        return Answer(function())
    except (CallTimeout, TunerError, OSError) as error:
        return Answer(error=error)


def _lay_out(folder: Path, parcels: Parcels) -> dict[str, str]:
    """Unpack what came along, and say where it lies by the name it has over there.

    Raises:
        PartsLost: If it cannot be had.
    """
    places = {name: folder / str(number) for number, name in enumerate(parcels.names)}
    for place, content in zip(places.values(), _fetch(parcels), strict=True):
        unpack(content, place)
    # The ending stays: numpy adds its own to a file that has none.
    written = {name: folder / f"written-{Path(name).name}" for name in parcels.written}
    return {name: str(place) for name, place in {**places, **written}.items()}


def _fetch(parcels: Parcels) -> list[Parcel | bytes]:
    """Get contents from where they lie; that a node is gone is known late, so not for long."""
    import ray
    from ray.exceptions import GetTimeoutError, ObjectLostError

    try:
        contents: list[Parcel | bytes] = ray.get(list(parcels.parts), timeout=parcels.limit_secs)
    except (GetTimeoutError, ObjectLostError) as error:
        raise PartsLost(str(error)) from None
    return contents
