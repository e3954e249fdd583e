"""Settings: flags, then ``TUNER_*`` environment variables, then a config file, then defaults."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import platformdirs

from tuner.engines import environments
from tuner.engines.environments import Interpreter
from tuner.errors import RequestError

DEVICE_TOLERANCE = 0.05

_APP = "subgraph-tuner"
_KEYS = (
    "database",
    "data_dir",
    "engine",
    "n_builders",
    "cache_dir",
    "cache_remote",
    "rpc",
    "ray_address",
    "device_tolerance",
    "relay_python",
)
# What the launchers of several processes at once number them by.
_RANKS = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"),
    "local_rank": (
        "LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MPI_LOCALRANKID",
        "SLURM_LOCALID",
    ),
}


@dataclass(frozen=True)
class Settings:
    """What holds for every command of one process.

    Attributes:
        database: SQLAlchemy URL.
        data_dir: Where models, references, compiled code and logs are kept.
        engine: Module with the worker functions.
        n_builders: Worker processes that search, build and train.
        cache_dir: Where compiled code is kept; ``cache`` in the data directory by default.
        cache_remote: URL of a second store, which many machines share; None for none.
        rpc: Devices behind TVM's RPC trackers; see :mod:`tuner.devices.runners.addresses`.
        ray_address: Ray cluster that builds and measures; None: this machine does.
        most_builders: ``n_builders`` as it was given; None: a cluster has one per free CPU.
        device_tolerance: By which share devices of one kind may differ before one is kept apart.
        environment: The environment that the engine runs in, see
            :mod:`tuner.engines.environments`; empty for ours.
        relay_python: The Python of the environment for Relay; by default where it is installed.
    """

    database: str
    data_dir: Path
    engine: str
    n_builders: int
    cache_dir: Path = Path()
    cache_remote: str | None = None
    rpc: str | None = None
    ray_address: str | None = None
    most_builders: int | None = None
    device_tolerance: float = DEVICE_TOLERANCE
    environment: str = ""
    relay_python: Path = Path()

    def __post_init__(self) -> None:
        if self.cache_dir == Path():
            object.__setattr__(self, "cache_dir", self.data_dir / "cache")
        if not self.environment:
            object.__setattr__(self, "environment", environments.environment_of(self.engine))
        if self.relay_python == Path():
            python = environments.default_python(self.data_dir, environments.RELAY)
            object.__setattr__(self, "relay_python", python)

    def running(self, engine: str) -> "Settings":
        """Return the same settings for another engine, such as that of a library."""
        if engine == self.engine:
            return self
        return replace(self, engine=engine, environment="")

    def check_engine(self) -> None:
        """Refuse an engine that is not installed.

        Raises:
            RequestError: If so; the message says what to type.
        """
        _ = self.interpreter

    @property
    def interpreter(self) -> Interpreter | None:
        """The Python that runs the engine; None: that of this process.

        Raises:
            RequestError: If it is not installed.
        """
        return environments.interpreter_of(self.environment, self.engine, self.relay_python)


def read_settings(flags: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    """Merge the sources; the first that names a setting wins.

    Args:
        flags: Settings by name; None means not given.
        environ: Defaults to the environment of the process.

    Raises:
        RequestError: If the config file cannot be read, or a setting is unknown or malformed.
    """
    environ = os.environ if environ is None else environ
    config = _read_config(Path(environ.get("TUNER_CONFIG", "") or _default_config()), environ)
    from_environ = {
        key: environ[f"TUNER_{key.upper()}"] for key in _KEYS if f"TUNER_{key.upper()}" in environ
    }
    given = {key: value for key, value in flags.items() if value is not None}
    merged = {**config, **from_environ, **given}
    data_dir = Path(merged.get("data_dir") or platformdirs.user_data_dir(_APP)).expanduser()
    engine, environment = environments.parse(str(merged.get("engine") or environments.DEFAULT))
    return Settings(
        database=str(merged.get("database") or f"sqlite:///{data_dir.absolute() / 'tuner.db'}"),
        data_dir=data_dir.absolute(),
        engine=engine,
        n_builders=_count("n_builders", merged.get("n_builders", _n_cores())),
        cache_dir=_cache_dir(str(merged.get("cache_dir") or data_dir / "cache"), environ),
        cache_remote=str(merged.get("cache_remote") or "") or None,
        rpc=str(merged.get("rpc") or "") or None,
        ray_address=str(merged.get("ray_address") or "") or None,
        most_builders=_count("n_builders", merged["n_builders"])
        if "n_builders" in merged
        else None,
        device_tolerance=_share(
            "device_tolerance", merged.get("device_tolerance", DEVICE_TOLERANCE)
        ),
        environment=environment,
        relay_python=_python(merged.get("relay_python")),
    )


def _cache_dir(text: str, environ: Mapping[str, str]) -> Path:
    """Put the rank of this process in the place of ``{rank}`` and ``{local_rank}``."""
    for word, names in _RANKS.items():
        if f"{{{word}}}" not in text:
            continue
        number = next((environ[name] for name in names if environ.get(name)), None)
        if number is None:
            raise RequestError(
                f"cache_dir names {{{word}}}, but none of {', '.join(names)} is set: "
                "start the process by a launcher that numbers its processes"
            )
        if not number.isdigit():
            raise RequestError(f"cache_dir names {{{word}}}, which is no number: {number!r}")
        text = text.replace(f"{{{word}}}", number)
    return Path(text).expanduser().absolute()


def _default_config() -> Path:
    return Path(platformdirs.user_config_dir(_APP)) / "config.toml"


def _read_config(path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    if not path.is_file():
        if environ.get("TUNER_CONFIG"):
            raise RequestError(f"TUNER_CONFIG names {path}, which is not a file")
        return {}
    try:
        config = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read {path}: {error}") from error
    unknown = sorted(set(config) - set(_KEYS))
    if unknown:
        raise RequestError(
            f"{path}: unknown setting {unknown[0]!r}; settings are {', '.join(_KEYS)}"
        )
    return config


def _python(given: Any) -> Path:
    """Return the path of an interpreter; a link stays one, as it is what names an environment."""
    return Path(str(given)).expanduser().absolute() if given else Path()


def _count(name: str, value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise RequestError(f"{name} must be a whole number from 1 up, got {value!r}")
    return number


def _share(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0.0 < number <= 1.0:
        raise RequestError(f"{name} must be above 0 and at most 1, got {value!r}")
    return number


def _n_cores() -> int:
    return len(os.sched_getaffinity(0))
