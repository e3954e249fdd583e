"""The contract of runners: one device each, and what is timed on it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tuner.workers.utilisation import UtilisationMeter

if TYPE_CHECKING:
    from tuner.workers.base import Call


class Runner(Protocol):
    """Times kernels on one device; its calls run one after the other.

    A call raises DeviceLost once the device is gone; the runner then leaves the runners of its
    executor, until it is back.
    """

    @property
    def name(self) -> str:
        """Of the device, unique among the runners of its executor; every record carries it."""

    @property
    def shares_cores(self) -> bool:
        """Whether it times on cores that builders use too: while it measures, they rest.

        For any other device the next round is prepared while it measures the one before.
        """

    @property
    def meter(self) -> UtilisationMeter:
        """Told when the device works."""

    def describe(self, spec: str) -> "Call":
        """Resolve a target as a user writes it, as this device sees it.

        Returns:
            A call whose TargetInfo has the fingerprint of this device, and no ``problem`` if
            it runs such code.
        """

    def measure(self, function: str, *args: Any, timeout_secs: float) -> "Call":
        """Call ``run``, ``run_interleaved`` or ``reference`` of the engine on this device.

        Artifacts in the requests are named as the executor's builders named them, references
        are files of the coordinator.
        """

    def close(self) -> None:
        """Let go of the device."""


class Fleet(Protocol):
    """Devices that come and go."""

    @property
    def runners(self) -> Sequence[Runner]:
        """Those that are there now."""

    def close(self) -> None:
        """Let go of all, those that are away too."""
