"""Features of scheduled programs for cost models, extracted once for equal programs.

A quarter of the programs of a search occur more than once: mutations often lead back, and islands
that follow each other in a process meet the same ones.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

from tuner.engines.relax.ir import workloads
from tuner.engines.relax.schedules.variants.base import without_packing

Features = np.ndarray[Any, np.dtype[np.float32]]

# Programs whose features are kept, some kilobytes each.
_MAX_KEPT = 2048
_KEPT: OrderedDict[tuple[str, str], Features] = OrderedDict()


def extract(context: TuneContext, schedules: Sequence[Schedule]) -> list[Features]:
    """Return the features of programs, one row for each of their stores.

    Args:
        context: Context of the programs, whose target they are for.
        schedules: Programs. What they compute from weights alone runs once, in no call, and has
            no features.
    """
    kind = str(context.target.kind.name)
    keys = [(kind, workloads.hash_of(schedule.mod)) for schedule in schedules]
    new = {
        key: MeasureCandidate(_without_packing(schedule), [])
        for key, schedule in zip(keys, schedules, strict=True)
        if key not in _KEPT
    }
    if new:
        extracted = PerStoreFeature().extract_from(context, list(new.values()))
        _KEPT.update(
            (key, array.numpy().astype(np.float32))
            for key, array in zip(new, extracted, strict=True)
        )
    features = [_KEPT[key] for key in keys]
    for key in keys:
        _KEPT.move_to_end(key)
    while len(_KEPT) > _MAX_KEPT:
        _KEPT.popitem(last=False)
    return features


def _without_packing(schedule: Schedule) -> Schedule:
    module = without_packing(schedule.mod)
    return schedule if module.same_as(schedule.mod) else Schedule(module)
