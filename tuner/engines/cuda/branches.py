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
    """The order of the kernel calls of a program, with which streams capture them.

    Attributes:
        blocks: Address of each block of scratch memory, by the call that takes it and its number
            among those of the call.
    """

    def __init__(self, cuda: Cuda, after: Sequence[Sequence[int]]) -> None:
        self.blocks: dict[tuple[int, int], int] = {}
        self._cuda = cuda
        self._after = after
        # Calls that have ended when a call begins, as bits.
        self._before: list[int] = []
        for needed in after:
            bits = 0
            for call in needed:
                bits |= self._before[call] | 1 << call
            self._before.append(bits)

    @contextmanager
    def serving(self, capturing: int | None) -> Iterator[None]:
        """Order the calls that this thread begins; what follows them waits for all of them.

        Args:
            capturing: The stream that captures them; None for a run that finds the scratch memory,
                as none can be allocated in a capture.
        """
        self._stream = capturing
        self._current, self._n_blocks = -1, 0
        # Nodes of the graph after which each call has ended, and those before the first call.
        self._ends: list[list[int]] = []
        self._start = [] if capturing is None else self._last_nodes()
        _current.branches = self
        try:
            yield
        finally:
            _current.branches = None
        if capturing is not None:
            self._end()
            needed = {call for calls in self._after for call in calls}
            self._wait_for([call for call in range(len(self._ends)) if call not in needed])

    def begin(self, number: int) -> None:
        """Let the kernels that follow wait for the calls that call ``number`` needs, alone."""
        if self._stream is not None:
            self._end()
            self._wait_for(self._after[number])
        self._current, self._n_blocks = number, 0

    def next_block(self) -> tuple[int, int]:
        """Return the name of the next block of scratch memory that the current call takes."""
        self._n_blocks += 1
        return self._current, self._n_blocks

    def may_use(self, address: int) -> bool:
        """Return whether the calls that use a block have ended when the current one begins."""
        users = {call for (call, _), taken in self.blocks.items() if taken == address}
        before = self._before[self._current] | 1 << self._current
        return all(before >> call & 1 for call in users)

    def _end(self) -> None:
        if self._current >= 0:
            self._ends.append(self._last_nodes())

    def _last_nodes(self) -> list[int]:
        """Return the nodes that the next kernel of the stream would wait for."""
        status, number, graph = c_int(), c_uint64(), c_void_p()
        nodes, edges, count = POINTER(c_void_p)(), c_void_p(), c_size_t()
        results = (status, number, graph, nodes, edges, count)
        self._cuda.call("cuStreamGetCaptureInfo_v3", self._stream, *map(ctypes.byref, results))
        return [nodes[index] or 0 for index in range(count.value)]

    def _wait_for(self, calls: Sequence[int]) -> None:
        ends = [self._ends[call] for call in calls] or [self._start]
        nodes = list(dict.fromkeys(node for end in ends for node in end))
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
