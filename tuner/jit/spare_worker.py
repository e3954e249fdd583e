"""A worker that is kept for a while after its use, since a second signature often follows a first.

Starting a process that can compile takes a second or more; compiling a small function takes less.
"""

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tuner.settings import Settings
from tuner.workers.confinement.sandbox_paths import Access
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool

_MAX_IDLE_SECS = 15.0

_Kind = tuple[Settings, Access]
_lock = threading.Lock()
# By their settings, and the files that they may reach.
_spares: dict[_Kind, Pool] = {}


@contextmanager
def borrow_worker(settings: Settings, access: Access) -> Iterator[Pool]:
    """Yield a process that may load and compile a whole network, for the caller's use alone."""
    kind = (settings, access)
    with _lock:
        pool = _spares.pop(kind, None)
    if pool is None:
        pool = fresh_worker(settings, "jit", access)
    try:
        yield pool
    except BaseException:
        pool.close()
        raise
    with _lock:
        is_kept = kind not in _spares
        if is_kept:
            _spares[kind] = pool
    if not is_kept:
        pool.close()
        return
    timer = threading.Timer(_MAX_IDLE_SECS, _drop, (kind, pool))
    timer.daemon = True
    timer.start()


def _drop(kind: _Kind, pool: Pool) -> None:
    """Close a pool if it is still idle."""
    with _lock:
        if _spares.get(kind) is not pool:
            return
        del _spares[kind]
    pool.close()


@atexit.register
def _close_all() -> None:
    with _lock:
        pools = list(_spares.values())
        _spares.clear()
    for pool in pools:
        pool.close()


# In a forked child, these processes and the threads that serve them are the parent's.
os.register_at_fork(after_in_child=_spares.clear)
