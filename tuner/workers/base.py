"""The contract of a call that a worker process runs."""

from collections.abc import Generator
from concurrent.futures import TimeoutError as CallTimeout
from typing import Any, Protocol

__all__ = ["Call", "CallTimeout"]


class Call(Protocol):
    """A call that was handed to a worker, to be waited for once.

    Both ways of waiting raise alike: CallTimeout if it took longer than its time-out, WorkerLost
    if its worker died, DeviceLost if nobody can take it any more, and TunerError or OSError as
    the function raised them; anything else that it raised arrives as WorkError.
    """

    def result(self) -> Any:
        """Wait for the call, and do nothing else meanwhile."""

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the call in an event loop. Who stops waiting does not stop the call."""
