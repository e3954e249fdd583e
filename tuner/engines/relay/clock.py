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
from tvm import te

from tuner.engines import timing
from tuner.engines.clock_readings import ClockReadings
from tuner.engines.relay.targets import make_target
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
        tvm._ffi.register_func(_HOOK, hook.__call__, override=True)
        evaluator = module.time_evaluator(
            "main", tvm.cpu(), repeat=repeat, f_preproc=_HOOK, number=1
        )
        return hook.samples(evaluator(*arguments).results, timing.CLOCK_SETTINGS)

    return _READINGS.read(lambda: timing.read_clock(take))


@lru_cache(maxsize=1)
def _load(target: str) -> tuple[Any, list[Any]]:
    """Build the kernel once in a process; return it and its arguments."""
    schedule, tensors = _schedule()
    module = tvm.build(schedule, tensors, target=make_target(target), name="main")
    values = np.random.default_rng(0).random((_SIZE, _SIZE), dtype=np.float32)
    arguments = [tvm.nd.array(values), tvm.nd.array(values)]
    arguments.append(tvm.nd.empty((_SIZE, _SIZE), "float32"))
    return module, arguments


def _schedule() -> tuple[Any, list[Any]]:
    a = te.placeholder((_SIZE, _SIZE), name="a")
    b = te.placeholder((_SIZE, _SIZE), name="b")
    k = te.reduce_axis((0, _SIZE), name="k")
    c = te.compute((_SIZE, _SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    schedule = te.create_schedule(c.op)
    rows, row = schedule[c].split(c.op.axis[0], _N_ROWS)
    columns, column = schedule[c].split(c.op.axis[1], _N_LANES)
    schedule[c].reorder(rows, columns, k, row, column)
    schedule[c].parallel(rows)
    schedule[c].unroll(row)
    schedule[c].vectorize(column)
    return schedule, [a, b, c]
