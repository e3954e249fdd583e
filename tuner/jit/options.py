"""What a user may ask of :func:`tuner.jit`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

DEFAULT_SIZE = 64
DEFAULT_TRIALS = 1000


class JitFields(TypedDict, total=False):
    """Options of :func:`tuner.jit`; what is left out is as in :class:`JitOptions`."""

    target: str
    database: str | None
    data_dir: str | Path | None
    maxsize: int
    service: str | None
    token: str | None
    trials: int
    name: str


@dataclass(frozen=True)
class JitOptions:
    """How functions are compiled and kept.

    Attributes:
        target: A CPU target, as ``tuner build`` takes it.
        database: Where the records are; None: as the settings say.
        data_dir: Where the cache is; None: as the settings say.
        maxsize: Signatures kept in memory; the least recently used one makes room.
        service: URL of a service that tunes what has no records; None for none.
        token: Of the service.
        trials: Budget of one job there.
        name: For people; empty: what the function is called.
    """

    target: str = "llvm"
    database: str | None = None
    data_dir: str | Path | None = None
    maxsize: int = DEFAULT_SIZE
    service: str | None = None
    token: str | None = None
    trials: int = DEFAULT_TRIALS
    name: str = ""

    def __post_init__(self) -> None:
        for key in ("maxsize", "trials"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
