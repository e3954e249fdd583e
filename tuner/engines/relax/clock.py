"""Clock kernel: a product on all cores that is timed beside candidates to see the device drift.

It loads the vector units of every core as tuned kernels do: a scalar loop on one core does not slow
down when they do, see docs/decisions/0036. ``target.clock_secs`` holds its first time, so that
another kernel would need another column.
"""

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import te

from tuner.engines import timing
from tuner.engines.clock_readings import ClockReadings
from tuner.engines.relax.targets import make_target
from tuner.engines.timing import Sample, SampleHook

_SIZE = 384
_N_ROWS = 4
_N_LANES = 64
_LOG = logging.getLogger(__name__)
_HOOK = "tuner.before_clock"
_READINGS = ClockReadings()


def read(target: str) -> float | None:
    """Return the time of the clock kernel now, seconds; None if it fails or stays disturbed."""
    try:
        module, arguments = _load(target)
    except Exception:  # no candidate fails for want of a clock
        _LOG.exception("the clock kernel cannot be built for %s", target)
        return None

    def take(repeat: int) -> Sequence[Sample]:
        hook = SampleHook(lambda: None)
        tvm_ffi.register_global_func(_HOOK, hook, override=True)
        evaluator = module.time_evaluator(
            "main", tvm.cpu(), repeat=repeat, f_preproc=_HOOK, number=1
        )
        return hook.samples(evaluator(*arguments).results, timing.CLOCK_SETTINGS)

    return _READINGS.read(lambda: timing.read_clock(take))


@lru_cache(maxsize=1)
def _load(target: str) -> tuple[Any, list[Any]]:
    """Build the kernel once in a process; return it and its arguments."""
    module = tvm.tirx.build(_schedule().mod, target=make_target(target, intrinsics=False))
    values = np.random.default_rng(0).random((_SIZE, _SIZE), dtype=np.float32)
    arguments = [tvm.runtime.tensor(values), tvm.runtime.tensor(values)]
    arguments.append(tvm.runtime.empty((_SIZE, _SIZE), "float32"))
    return module, arguments


def _schedule() -> Any:
    a = te.placeholder((_SIZE, _SIZE), name="a")
    b = te.placeholder((_SIZE, _SIZE), name="b")
    k = te.reduce_axis((0, _SIZE), name="k")
    c = te.compute((_SIZE, _SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([a, b, c]))
    block = schedule.get_sblock("c")
    i, j, k_ = schedule.get_loops(block)
    rows, row = schedule.split(i, [None, _N_ROWS])
    columns, column = schedule.split(j, [None, _N_LANES])
    schedule.reorder(rows, columns, k_, row, column)
    schedule.parallel(rows)
    schedule.unroll(row)
    schedule.vectorize(column)
    schedule.decompose_reduction(block, k_)
    return schedule
