"""The turn of work that several processes died over: one piece of it at a time."""


class SuspectTurn:
    """A turn that is taken or left for later, never waited for; used by one thread.

    Work that waits would hold what it has until then: a device, or the queue behind it. See
    :mod:`records.tuning.attempts`.
    """

    def __init__(self) -> None:
        self._is_taken = False

    def try_take(self) -> bool:
        """Take the turn; False if other work has it."""
        is_free = not self._is_taken
        self._is_taken = True
        return is_free

    def give_back(self) -> None:
        """End the turn."""
        self._is_taken = False
