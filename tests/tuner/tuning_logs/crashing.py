"""An engine whose worker crashes on one trace and hangs on another."""

import os
import time

from tuner.engines.log_base import TraceBatch, TraceText


def read_traces(batch: TraceBatch) -> list[TraceText]:
    """Return the traces unchanged, unless one of them crashes or hangs the worker."""
    if "die" in batch.texts:
        os.abort()
    if "hang" in batch.texts:
        time.sleep(60)
    return [TraceText(text, problem="it is bad" if text == "bad" else "") for text in batch.texts]
