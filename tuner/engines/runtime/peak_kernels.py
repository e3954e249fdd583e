"""Kernels that show what a CPU reaches at most, as TVMScript that both engines compile.

Multiply-adds on registers give the operations per second, sums over buffers the bandwidth of the
last-level cache and of memory. Every kernel runs on all cores, in the vectors of the target.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Protocol

from tuner.devices import cpu_caches, cpu_contention
from tuner.engines.base import DevicePeaks
from tuner.errors import WorkError

# Types whose multiply-adds every CPU has. A roof in other types follows from memory alone.
_TYPE_BYTES = {"float32": 4, "float64": 8}
# Number and bytes of the accumulators. They fill the registers of AVX-512, AVX2 and NEON in turn:
# fewer do not hide the latency of a multiply-add, more do not fit. The fastest counts.
_ACCUMULATORS = ((12, 64), (12, 32), (24, 16))
_N_STEPS = 200_000
# Undisturbed samples to take. With other processes on both cores, one of twenty was undisturbed;
# these agreed within 2 %, while many of the others showed half of the peak.
_N_SAMPLES, _N_MEMORY_SAMPLES = 5, 3
# Samples that may be disturbed before a kernel counts as one that cannot be timed now. Peaks that
# are too low would be roofs that are too high, and stop tasks that could still improve.
_MAX_DISTURBED = 150
_LINE_BYTES, _LINES_PER_STEP = 64, 8
_MAX_BUFFER_BYTES = 2**29
# Bytes of which it is found out how long the last-level cache keeps them, at least: as many as the
# weights of a large kernel. Of a cache that others share, half may be more than one gets at all.
# The times tried, the samples of each, and the answer if all were too short.
_KEPT_BYTES = 2**22
_WAITS_SECS = (0.002, 0.003, 0.004, 0.006, 0.008, 0.012, 0.016, 0.032, 0.064)
_N_WAITS = 11
_MAX_KEPT_SECS = 10.0
# Slow-down from which a part is read from memory, and least one of memory that tells it from the
# cache.
_SLOW_DOWN, _MIN_DIFFERENCE = 1.25, 1.5


@dataclass(frozen=True)
class PeakKernel:
    """A kernel with two arguments, a filled buffer and sums.

    Attributes:
        body: Statements of the function, TVMScript.
        dtype: Data type of both arguments.
        amount: Operations or bytes of one run.
        n_samples: Number of samples to take.
    """

    body: tuple[str, ...]
    dtype: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    amount: float
    n_samples: int

    def script(self, header: Iterable[str], noalias: str) -> str:
        """Return the function in the dialect of a TVM.

        Args:
            header: Decorators.
            noalias: Attribute by which arguments do not overlap, so that sums stay in registers.
        """
        buffers = (f'T.Buffer({shape}, "{self.dtype}")' for shape in self.shapes)
        signature = "def main(buffer: {}, sums: {}):".format(*buffers)
        attributes = f'    T.func_attr({{"global_symbol": "main", "{noalias}": True}})'
        return "\n".join((*header, signature, attributes, *self.body))


class Run(Protocol):
    """A kernel that can be run."""

    def __call__(self, before: Callable[[], None] = lambda: None) -> float:
        """Run it twice, and call ``before`` in between; return the seconds of the second run."""


def measure(build: Callable[[PeakKernel], Run]) -> DevicePeaks:
    """Measure the peaks of this CPU.

    Raises:
        WorkError: If something else uses the cores all the time.
    """
    n_cores = cpu_caches.n_cores()
    caches = cpu_caches.sizes_by_level()
    last = caches[max(caches)]

    def rate(kernel: PeakKernel) -> float:
        return kernel.amount / _shortest(build(kernel), kernel.n_samples)

    cached = min(4 * caches.get(2, 0) * n_cores, last // 2)
    uncached = min(max(4 * last, 2**27), _MAX_BUFFER_BYTES)
    memory_bandwidth = rate(_read(n_cores, uncached, n_passes=1, n_samples=_N_MEMORY_SAMPLES))
    # Twice the private caches, so that every line of it is read from the last one.
    n_kept = max(_KEPT_BYTES, 2 * caches.get(2, 0) * n_cores)
    kept = _read(n_cores, min(n_kept, last // 2), n_passes=1, n_samples=1)
    return DevicePeaks(
        flops={
            dtype: max(rate(_multiply_adds(n_cores, dtype, *each)) for each in _ACCUMULATORS)
            for dtype in _TYPE_BYTES
        },
        cache_bytes=last,
        cache_bandwidth=rate(_read(n_cores, cached, n_passes=16, n_samples=_N_SAMPLES)),
        memory_bandwidth=memory_bandwidth,
        weights_kept_secs=_weights_kept_secs(build(kept), kept.amount / memory_bandwidth),
    )


def _weights_kept_secs(read: Run, memory_secs: float) -> float:
    """Return the time after which reading a buffer again takes a quarter longer than at once."""
    at_once = []
    for secs in _WAITS_SECS:
        # In turns, so that a slow moment of the machine affects both.
        pairs = [(read(), read(partial(_spin, secs))) for _ in range(_N_WAITS)]
        cached_secs, waited_secs = map(median, zip(*pairs, strict=True))
        at_once.append(cached_secs)
        if waited_secs > _SLOW_DOWN * cached_secs:
            # Where memory is as fast as the cache, nothing is lost.
            return secs if memory_secs > _MIN_DIFFERENCE * min(at_once) else _MAX_KEPT_SECS
    return _MAX_KEPT_SECS


def _spin(secs: float) -> None:
    """Wait without sleep, during which the core would slow down."""
    end = time.perf_counter() + secs
    while time.perf_counter() < end:
        pass


def _shortest(run: Run, n_samples: int) -> float:
    """Return the shortest of some undisturbed samples, seconds."""
    clean: list[float] = []
    for _ in range(n_samples + _MAX_DISTURBED):
        before = cpu_contention.read()
        secs = run()
        if not before.is_disturbed_until(cpu_contention.read(), secs):
            clean.append(secs)
        if len(clean) == n_samples:
            return min(clean)
    raise WorkError("other processes use the cores, so that their peaks cannot be measured")


def _multiply_adds(n_cores: int, dtype: str, n_sums: int, n_bytes: int) -> PeakKernel:
    n_lanes = n_bytes // _TYPE_BYTES[dtype]
    body = [f"    for core in T.parallel({n_cores}):", f"        for step in range({_N_STEPS}):"]
    for i in range(n_sums):
        # A sum converges to buffer[1] / (1 - buffer[0]); it never overflows.
        product = f"sums[core, {i}, lane] * buffer[0, lane] + buffer[1, lane]"
        body += [
            f"            for lane in T.vectorized({n_lanes}):",
            f"                sums[core, {i}, lane] = {product}",
        ]
    flop = 2.0 * n_cores * _N_STEPS * n_sums * n_lanes
    shapes = ((2, n_lanes), (n_cores, n_sums, n_lanes))
    return PeakKernel(tuple(body), dtype, shapes, flop, _N_SAMPLES)


def _read(n_cores: int, n_bytes: int, *, n_passes: int, n_samples: int) -> PeakKernel:
    """Return a kernel in which every core sums up its share of a buffer."""
    n_lanes = _LINE_BYTES // _TYPE_BYTES["float32"]
    n_steps = n_bytes // (n_cores * _LINES_PER_STEP * _LINE_BYTES)
    body = [
        f"    for core in T.parallel({n_cores}):",
        f"        for turn in range({n_passes}):",
        f"            for step in range({n_steps}):",
    ]
    for i in range(_LINES_PER_STEP):
        body += [
            f"                for lane in T.vectorized({n_lanes}):",
            f"                    sums[core, {i}, lane] = sums[core, {i}, lane] + "
            f"buffer[core, step, {i}, lane]",
        ]
    amount = float(n_passes * n_cores * n_steps * _LINES_PER_STEP * _LINE_BYTES)
    sums = (n_cores, _LINES_PER_STEP, n_lanes)
    buffer = (n_cores, n_steps, _LINES_PER_STEP, n_lanes)
    return PeakKernel(tuple(body), "float32", (buffer, sums), amount, n_samples)
