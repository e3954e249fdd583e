"""Features of states for the cost model: Ansor's features of every store, in a fixed order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm.auto_scheduler import SearchTask
from tvm.auto_scheduler.feature import (
    get_per_store_feature_names,
    get_per_store_features_from_states,
)

Array = np.ndarray[Any, np.dtype[np.float32]]

_NAMES = [str(name) for name in get_per_store_feature_names()]
_FIRST = next(i for i, name in enumerate(_NAMES) if name.startswith("B0."))
_WIDTH = sum(name.startswith("B0.") for name in _NAMES)
_N_BUFFERS = sum(name.endswith(".acc_type.kRead") for name in _NAMES)
_LINES = _NAMES.index("B0.lines") - _FIRST
_BYTES = _NAMES.index("B0.bytes") - _FIRST


def extract(task: SearchTask, states: Sequence[Any]) -> list[Array]:
    """Return the features of states; one row of zeros for a state that cannot be lowered.

    Returns:
        One array per state, shape (n_stores, 164).
    """
    if not states:
        return []
    extracted = get_per_store_features_from_states(states, task)
    arrays = [np.atleast_2d(np.asarray(array, np.float32)) for array in extracted]
    counts = [len(array) for array in arrays]
    rows = _with_ordered_buffers(np.concatenate(arrays))
    state = np.repeat(np.arange(len(arrays)), counts)
    # Ansor lists stores, too, in the order of their addresses.
    keys: list[Any] = [*rows.T[::-1], state]
    return np.split(rows[np.lexsort(keys)], np.cumsum(counts)[:-1])


def _with_ordered_buffers(rows: Array) -> Array:
    """Order the buffers of each store, shape (n_stores, 164).

    Ansor orders them by the cache lines and bytes they touch, and ties
    by their addresses, so that the features of a state would differ between processes.
    """
    buffers = rows[:, _FIRST : _FIRST + _N_BUFFERS * _WIDTH].reshape(-1, _WIDTH)
    store = np.repeat(np.arange(len(rows)), _N_BUFFERS)
    rest = [-buffers[:, column] for column in reversed(range(_WIDTH))]
    keys: list[Any] = [*rest, -buffers[:, _BYTES], -buffers[:, _LINES], store]
    order = np.lexsort(keys)
    ordered = rows.copy()
    ordered[:, _FIRST : _FIRST + _N_BUFFERS * _WIDTH] = buffers[order].reshape(len(rows), -1)
    return ordered
