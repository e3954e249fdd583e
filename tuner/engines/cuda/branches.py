"""Capture of kernels that may run beside each other: each waits for those whose results it needs.

A stream orders all its kernels. While one captures, the kernels that the next one waits for can be
named instead (``cuStreamUpdateCaptureDependencies``), before each call of a program.
"""

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, c_int, c_size_t, c_uint64, c_void_p

from tuner.engines.cuda.cuda_calls import Cuda

_SET = 1
_current = threading.local()


class Branches:
    """The calls of a program that a stream captures, with those that each of them waits for.

    Attributes:
        current: Number of the call that is captured; -1 before the first.
    """

    def __init__(self, cuda: Cuda, stream: int, after: Sequence[Sequence[int]]) -> None:
        self.current = -1
        self._cuda = cuda
        self._stream = stream
        self._after = after
        # Nodes of the graph after which each call has ended.
        self._ends: list[list[int]] = []
        self._before: list[int] = []

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Order the calls that this thread begins, and let the graph end after all of them."""
        _current.branches = self
        try:
            yield
        finally:
            _current.branches = None
        self._end()
        needed = {call for calls in self._after for call in calls}
        self._wait_for([call for call in range(len(self._ends)) if call not in needed])

    def begin(self, number: int) -> None:
        """Let the kernels that follow wait for the calls that call ``number`` needs, alone."""
        self._end()
        self.current = number
        self._wait_for(self._after[number])
        before = 0
        for call in self._after[number]:
            before |= self._before[call] | 1 << call
        self._before.append(before)

    def is_over(self, call: int) -> bool:
        """Return whether a call has ended when the current one begins."""
        return call == self.current or bool(self._before[self.current] >> call & 1)

    def _end(self) -> None:
        if self.current < 0:
            return
        status, number, graph = c_int(), c_uint64(), c_void_p()
        nodes, edges, count = POINTER(c_void_p)(), c_void_p(), c_size_t()
        results = (status, number, graph, nodes, edges, count)
        self._cuda.call("cuStreamGetCaptureInfo_v3", self._stream, *map(ctypes.byref, results))
        self._ends.append([nodes[index] or 0 for index in range(count.value)])

    def _wait_for(self, calls: Sequence[int]) -> None:
        nodes = list(dict.fromkeys(node for call in calls for node in self._ends[call]))
        array = (c_void_p * len(nodes))(*nodes)
        name = "cuStreamUpdateCaptureDependencies_v2"
        self._cuda.call(name, self._stream, array, None, len(nodes), _SET)


def current() -> Branches | None:
    """Return what orders the calls of this thread; None unless it captures branches."""
    return getattr(_current, "branches", None)


def begin_call(number: int) -> None:
    """Begin a kernel call of a program; see :data:`tuner.library.manifest.BEGIN_CALL`."""
    branches = current()
    if branches is not None:
        branches.begin(number)
