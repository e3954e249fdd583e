"""Sets the clock of a process by as many seconds as a file says, at any time."""

import os
import time
from datetime import datetime, timedelta
from pathlib import Path

from records import models

_OFFSET = Path(os.environ["CLOCK_OFFSET"])
_time, _now = time.time, models.now


def _offset_secs() -> float:
    return float(_OFFSET.read_text() or 0.0) if _OFFSET.is_file() else 0.0


def _shifted_time() -> float:
    return _time() + _offset_secs()


def _shifted_now() -> datetime:
    return _now() + timedelta(seconds=_offset_secs())


time.time = _shifted_time
models.now = _shifted_now
