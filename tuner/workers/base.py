"""The contract of a call that a worker process runs."""

from collections.abc import Generator
from concurrent.futures import TimeoutError as CallTimeout
from typing import Any, Protocol

__all__ = ["Call", "CallTimeout"]


class Call(Protocol):
    """A call that was handed to a worker, to be waited for once.

    Both ways of waiting raise alike: CallTimeout if the call exceeded its time-out, WorkerLost
    if its worker died, DeviceLost if its device cannot take calls any more, and TunerError or
    OSError as the function raised them; any other exception of the function arrives as WorkError.
    """

    def result(self) -> Any:
        """Block until the call has ended, and return its result."""

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the call in an event loop. Cancelling the wait does not stop the call."""
