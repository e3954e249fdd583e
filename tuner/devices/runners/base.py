"""Contract of runners and of fleets of runners."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tuner.workers.utilisation import UtilisationMeter

if TYPE_CHECKING:
    from tuner.workers.base import Call


class Runner(Protocol):
    """Timing of kernels on one device, one call at a time.

    A call raises DeviceLost once the device is lost; the runner then leaves the runners of its
    executor until the device is back.
    """

    @property
    def name(self) -> str:
        """Name of the device, unique among the runners of its executor; every record has it."""

    @property
    def shares_cores(self) -> bool:
        """True if it times on cores that builders use too, which then rest while it measures.

        For any other device, the next round is prepared while it measures the one before.
        """

    @property
    def n_ahead(self) -> int:
        """Number of calls to request while one goes on, so that the device never waits."""

    @property
    def meter(self) -> UtilisationMeter:
        """Meter of the time that the device works."""

    def describe(self, spec: str) -> "Call":
        """Resolve a target, as a user writes it, for this device.

        Returns:
            A call whose TargetInfo has the fingerprint of this device, and no ``problem`` if
            it runs code for the target.
        """

    def measure(self, function: str, *args: Any, timeout_secs: float) -> "Call":
        """Call ``run``, ``run_interleaved``, ``reference`` or ``sanitize`` of the engine here.

        Requests name artifacts as the executor's builders do; references are files of the
        coordinator.
        """

    def close(self) -> None:
        """Release the device."""


class Fleet(Protocol):
    """Set of runners that changes as devices come and go."""

    @property
    def runners(self) -> Sequence[Runner]:
        """Runners whose devices are there now."""

    def close(self) -> None:
        """Release all devices, including offline ones."""
