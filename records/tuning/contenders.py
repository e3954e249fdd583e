"""Choice of the records that race in a final: all that could be the fastest, given their noise."""

import math
from collections.abc import Sequence
from statistics import median

from sqlalchemy.orm import Session

from records import bests
from records.models import BestRecord, MeasureRecord

# Records that are looked at, the fastest first.
_N_CONSIDERED = 64
# Smallest relative noise of a latency. The samples of one visit share the moment in which they
# were taken, those of a final are spread over its whole duration.
_MIN_NOISE = 0.03
_MIN_CONFIRMED_NOISE = 0.01
# Samples that stayed disturbed are too long by an unknown amount.
_DISTURBED_NOISE = 0.25
# Two standard errors: an interval of 95 %.
_Z = 2.0
# Standard deviation of a normal distribution by its median absolute deviation, and the standard
# error of its median by that of its mean.
_SIGMA_BY_MAD = 1.4826
_MEDIAN_BY_MEAN = 1.2533


def contenders(session: Session, task_id: int, limit: int) -> list[MeasureRecord]:
    """Return the records of a task that have to race, at least the best one, the fastest first.

    Args:
        limit: Maximum number of records.

    Returns:
        Records whose latency less its noise is below that of the best record plus its noise, and
        the winner of earlier finals. None if that is the best record, and no record that was in no
        final comes so near, or if the task has one undisturbed record only.
    """
    row = session.get(BestRecord, task_id)
    if row is None:
        return []
    best = session.get_one(MeasureRecord, row.record_id)
    bound = row.latency * (1.0 + noise(best))
    confirmed = bests.confirmed_records(session, task_id)
    # The fastest of many may be luckier than its samples tell: the last winner defends its place.
    fixed = {best.id: best}
    if confirmed and not row.confirmed:
        champion = min(confirmed, key=bests.latency_of)
        fixed[champion.id] = champion
    considered = [*bests.top_records(session, task_id, _N_CONSIDERED), *confirmed]
    rivals = {
        record.id: record
        for record in sorted(considered, key=bests.latency_of)
        if record.id not in fixed and bests.latency_of(record) * (1.0 - noise(record)) <= bound
    }
    if row.confirmed and all(rival.confirmed_secs for rival in rivals.values()):
        return []
    if len({record.id for record in considered}) == 1 and not _is_disturbed(best):
        # The first of its task: no choice among many made it lucky.
        return []
    racing = [*fixed.values(), *rivals.values()][:limit]
    return sorted(racing, key=bests.latency_of)


def noise(record: MeasureRecord) -> float:
    """Return the half width of the interval that holds a record's latency, relative to it."""
    if record.confirmed_secs:
        return max(_Z * _standard_error(record.confirmed_secs), _MIN_CONFIRMED_NOISE)
    smallest = _DISTURBED_NOISE if _is_disturbed(record) else _MIN_NOISE
    return max(_Z * _standard_error(record.run_secs or ()), smallest)


def _is_disturbed(record: MeasureRecord) -> bool:
    return bool((record.conditions or {}).get("disturbed"))


def _standard_error(samples: Sequence[float]) -> float:
    """Estimate the standard error of the median of samples, relative to it."""
    if not samples or not (middle := median(samples)):
        return 0.0
    deviation = _SIGMA_BY_MAD * median(abs(one - middle) for one in samples)
    return _MEDIAN_BY_MEAN * deviation / math.sqrt(len(samples)) / middle
