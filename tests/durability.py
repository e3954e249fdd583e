"""Durability of SQLite in tests.

Tests commit thousands of times, and a disk takes tens of milliseconds for each. Processes that they
start, and the tests of durability, do wait for it.
"""

from records.storage import connections

# The mode of the product.
DURABLE = connections.SYNCHRONOUS


def do_not_wait() -> None:
    """Have commits of this process, and of those forked from it, wait for no disk."""
    connections.SYNCHRONOUS = "OFF"
