"""A worker that is kept for a moment after it was used: a second signature often follows a first.

Starting a process that can compile takes a second or more, what it does for a small function less.
"""

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tuner.settings import Settings
from tuner.workers.pool import Pool
from tuner.workers.pools import fresh_worker

_IDLE_SECS = 15.0

_lock = threading.Lock()
_spares: dict[Settings, Pool] = {}


@contextmanager
def worker(settings: Settings) -> Iterator[Pool]:
    """Lend a process that may load and compile a whole network; nobody else uses it meanwhile."""
    with _lock:
        pool = _spares.pop(settings, None)
    if pool is None:
        pool = fresh_worker(settings, "jit")
    try:
        yield pool
    except BaseException:
        pool.close()
        raise
    _keep(settings, pool)


def _keep(settings: Settings, pool: Pool) -> None:
    with _lock:
        is_kept = settings not in _spares
        if is_kept:
            _spares[settings] = pool
    if not is_kept:
        pool.close()
        return
    timer = threading.Timer(_IDLE_SECS, _drop, (settings, pool))
    timer.daemon = True
    timer.start()


def _drop(settings: Settings, pool: Pool) -> None:
    """Close a pool, if it still lies idle."""
    with _lock:
        if _spares.get(settings) is not pool:
            return
        del _spares[settings]
    pool.close()


@atexit.register
def _close_all() -> None:
    with _lock:
        pools = list(_spares.values())
        _spares.clear()
    for pool in pools:
        pool.close()


# The processes belong to the parent of a fork, and so do the threads that speak with them.
os.register_at_fork(after_in_child=_spares.clear)
