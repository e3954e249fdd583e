"""Choice between committing every step of a round and committing many steps together."""

from enum import Enum


class WritePolicy(Enum):
    """Point at which a :class:`~tuner.tuning.writing.record_writer.RecordWriter` commits.

    The policy follows the number of devices alone and is chosen in
    :meth:`for_devices`. It can change while a coordinator runs, when devices appear or vanish;
    writes that wait at that moment are committed under the new policy.

    **Ordering**

    The same under both policies: within one transaction trials are written first, then grouped
    items, then changes in the order of their submission. Transactions never overlap, and a write
    is never committed before one of the same kind that was submitted earlier.

    **Durability**

    Under ``IMMEDIATE`` everything that a job submitted is committed before its next pick is
    chosen. Under ``BATCHED`` it is committed with the next batch, while further rounds run. Under
    both, a round returns only after its trials are committed, so that a completed pick never
    lacks one, and on a CPU each trial is committed before the next is timed, because a commit
    would disturb the timing. A process that is killed loses what was submitted since the last
    commit; a resumed job spends those trials again.

    **Thread safety**

    None. Writers are used by the thread of the event loop alone; threads that load jobs or run
    calls hand their results to the loop first.
    """

    IMMEDIATE = "immediate"
    BATCHED = "batched"

    @classmethod
    def for_devices(cls, n_devices: int) -> "WritePolicy":
        """Return the policy of a coordinator that uses a number of devices.

        A commit per trial would take all the time of a coordinator of a thousand devices.
        """
        return cls.BATCHED if n_devices > 1 else cls.IMMEDIATE
