"""One process at a time measures on a device of this machine."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.errors import DeviceBusy


@contextmanager
def device_lock(data_dir: Path, device: str = "cpu") -> Iterator[None]:
    """Hold a device for measuring; two runs at once would slow each other's candidates.

    The lock dies with its process, however that dies.

    Raises:
        DeviceBusy: If another process holds it.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    name = "measuring.lock" if device == "cpu" else f"measuring-{device}.lock"
    with (data_dir / name).open("a+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            stream.seek(0)
            holder = stream.read().strip() or "unknown"
            raise DeviceBusy(
                f"process {holder} is measuring on this machine; wait for it to end"
            ) from error
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        yield
