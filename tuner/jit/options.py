"""The options of :func:`tuner.jit`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

DEFAULT_SIZE = 64
DEFAULT_TRIALS = 1000


class JitFields(TypedDict, total=False):
    """Keyword arguments of :func:`tuner.jit`; :class:`JitOptions` has the defaults."""

    target: str
    database: str | None
    data_dir: str | Path | None
    maxsize: int
    service: str | None
    token: str | None
    trials: int
    name: str
    strict: bool


@dataclass(frozen=True)
class JitOptions:
    """Options of a jitted function.

    Attributes:
        target: A target, as ``tuner build`` takes it; empty for the CPU or the GPU that the
            arguments are on.
        database: URL of the records; None for that of the settings.
        data_dir: Data directory with the cache; None for that of the settings.
        maxsize: Largest number of signatures in memory; the least recently used one is dropped.
        service: URL of a service that tunes subgraphs without records; None for none.
        token: Token for the service.
        trials: Budget of one job of the service.
        name: Name for people; empty for that of the function.
        strict: True to raise an error where a function of torch would run in eager.
    """

    target: str = ""
    database: str | None = None
    data_dir: str | Path | None = None
    maxsize: int = DEFAULT_SIZE
    service: str | None = None
    token: str | None = None
    trials: int = DEFAULT_TRIALS
    name: str = ""
    strict: bool = False

    def __post_init__(self) -> None:
        for key in ("maxsize", "trials"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
