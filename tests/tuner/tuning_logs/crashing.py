"""An engine whose worker dies of one trace, and waits for ever on another."""

import os
import time

from tuner.engines.log_base import TraceBatch, TraceText


def read_traces(batch: TraceBatch) -> list[TraceText]:
    """Say the traces back, if there is still somebody to do so."""
    if "die" in batch.texts:
        os.abort()
    if "hang" in batch.texts:
        time.sleep(60)
    return [TraceText(text, problem="it is bad" if text == "bad" else "") for text in batch.texts]
