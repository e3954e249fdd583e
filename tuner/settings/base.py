"""Settings of one process, read from flags, environment variables, a config file and defaults."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from tuner.engines import environments
from tuner.engines.environments import Interpreter
from tuner.errors import RequestError
from tuner.settings import request_caps, retention
from tuner.settings.request_caps import RequestCaps
from tuner.settings.retention import RetentionSettings
from tuner.settings.values import (
    OTHER_VARIABLES,
    SECRET_VARIABLES,
    check_names,
    parse_age,
    parse_size,
    read_choice,
    read_count,
    read_flag,
)

DEFAULT_DEVICE_TOLERANCE = 0.05
DEFAULT_MAX_STALL_SECS = 120.0

_APP = "subgraph-tuner"
_KEYS = (
    "database",
    "data_dir",
    "engine",
    "n_builders",
    "cache_dir",
    "cache_remote",
    "rpc",
    "device_tolerance",
    "relay_python",
    "worker_memory",
    "load_share",
    "worker_sandbox",
    "worker_paths",
    "signing_key",
    "trusted_keys",
    "signatures",
    "shipped_records",
    "max_stall",
    "log_level",
    "log_format",
    *request_caps.KEYS,
    *retention.KEYS,
)
SANDBOX_MODES = ("auto", "required", "partial", "off")
SIGNATURE_MODES = ("optional", "required")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("json", "text")
# Less does not suffice to import a compiler.
_MIN_WORKER_BYTES = 256 << 20
# A busy machine keeps a healthy loop from its core for longer than that now and then.
_MIN_STALL_SECS = 5.0
# Environment variables in which process launchers number their processes.
_RANKS = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"),
    "local_rank": (
        "LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MPI_LOCALRANKID",
        "SLURM_LOCALID",
    ),
}


class SettingOverrides(TypedDict, total=False):
    """Settings given by the caller; see :class:`Settings`. None stands for a missing one."""

    database: str | None
    data_dir: str | Path | None
    rpc: str | None
    engine: str | None


@dataclass(frozen=True)
class Settings:
    """Settings of one process.

    Attributes:
        database: SQLAlchemy URL.
        data_dir: Directory of models, references, compiled code and logs.
        engine: Module with the worker functions.
        n_builders: Worker processes that search, build and train; without a setting fewer where
            memory is short, see :func:`tuner.workers.confinement.memory.builder_count`.
        cache_dir: Directory of the build cache; ``cache`` in the data directory by default.
        cache_remote: URL of a second store that several machines share; None for none.
        rpc: Devices behind TVM's RPC trackers; see :mod:`tuner.devices.runners.addresses`.
        max_builders: Number of builders as it was set; None for one per core.
        device_tolerance: Relative difference above which one of several devices of a kind is
            kept apart, from 0 to 1.
        environment: Name of the environment that runs the engine, see
            :mod:`tuner.engines.environments`; empty for that of this process.
        relay_python: Python of the environment for Relay; by default the one that
            ``tuner engine install relay`` makes.
        worker_bytes: Memory of each worker process, bytes; None for shares of this machine's, see
            :func:`tuner.workers.confinement.memory.memory_limits`.
        load_share: Part of the cores that processes which load and compile submitted models may
            use, above 0 and at most 1.
        max_stall_secs: Time without progress of a coordinator's main loop after which it ends.
        request_caps: Limits of a service on the options of a request.
        retention: Limits on what the service keeps.
        worker_sandbox: ``required`` to refuse a kernel that cannot confine worker processes,
            ``partial`` to confine them as far as it can, ``off`` for none; ``auto`` is
            ``required`` for a service and ``partial`` for commands; see
            :mod:`tuner.workers.confinement.sandbox`.
        worker_paths: More files and folders that confined workers may read.
        signing_key: File of the Ed25519 key that signs entries and libraries for others; None to
            sign nothing.
        trusted_keys: File of the public keys whose signatures are accepted; None for none.
        signatures: ``required`` to refuse entries and libraries from elsewhere without a trusted
            signature, ``optional`` to refuse wrong signatures only.
        shipped_records: False to build without the records that come with the package.
        log_level: Least severe level that services log, one of ``LOG_LEVELS``.
        log_format: Format of their lines, one of ``LOG_FORMATS``.
    """

    database: str
    data_dir: Path
    engine: str
    n_builders: int
    cache_dir: Path = Path()
    cache_remote: str | None = None
    rpc: str | None = None
    max_builders: int | None = None
    device_tolerance: float = DEFAULT_DEVICE_TOLERANCE
    environment: str = ""
    relay_python: Path = Path()
    worker_bytes: int | None = None
    load_share: float = 1.0
    max_stall_secs: float = DEFAULT_MAX_STALL_SECS
    request_caps: RequestCaps = request_caps.DEFAULTS
    retention: RetentionSettings = retention.DEFAULTS
    worker_sandbox: str = "auto"
    worker_paths: tuple[Path, ...] = ()
    signing_key: Path | None = None
    trusted_keys: Path | None = None
    signatures: str = "optional"
    shipped_records: bool = True
    log_level: str = LOG_LEVELS[1]
    log_format: str = LOG_FORMATS[0]

    def __post_init__(self) -> None:
        if self.cache_dir == Path():
            object.__setattr__(self, "cache_dir", self.data_dir / "cache")
        if not self.environment:
            object.__setattr__(self, "environment", environments.environment_of(self.engine))
        if self.relay_python == Path():
            python = environments.default_python(self.data_dir, environments.RELAY)
            object.__setattr__(self, "relay_python", python)

    @property
    def owns_database(self) -> bool:
        """True for the default database: the file in the data directory of this machine."""
        return self.database == _default_database(self.data_dir)

    def with_engine(self, engine: str) -> "Settings":
        """Return the same settings for another engine, such as that of a library."""
        if engine == self.engine:
            return self
        return replace(self, engine=engine, environment="")

    def check_engine(self) -> None:
        """Check that the engine is installed.

        Raises:
            RequestError: If it is not; the message names the command that installs it.
        """
        _ = self.interpreter

    @property
    def engine_package(self) -> str:
        """Name of the package of the engine."""
        return self.engine.partition(".")[0]

    @property
    def interpreter(self) -> Interpreter | None:
        """Python that runs the engine; None for that of this process.

        Raises:
            RequestError: If the engine is not installed.
        """
        return environments.interpreter_of(self.environment, self.engine, self.relay_python)


@dataclass(frozen=True)
class EffectiveSetting:
    """A setting with its value, and the flag, variable or file that it comes from."""

    name: str
    value: Any
    source: str


def explain_settings(
    flags: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> list[EffectiveSetting]:
    """Return every setting as :func:`read_settings` reads it, and other variables that are set.

    Raises:
        RequestError: If a setting cannot be read.
    """
    environ = os.environ if environ is None else environ
    settings, config = read_settings(flags, environ), _read_config(environ)

    def source_of(name: str) -> str:
        if flags.get(name) is not None:
            return f"--{name.replace('_', '-')}"
        if f"TUNER_{name.upper()}" in environ:
            return f"TUNER_{name.upper()}"
        return str(config_file(environ)) if name in config else "default"

    explained = [
        EffectiveSetting(name, _value_of(settings, name), source_of(name)) for name in _KEYS
    ]
    others = sorted(name for name in OTHER_VARIABLES if environ.get(f"TUNER_{name}"))
    return explained + [
        EffectiveSetting(name.lower(), environ[f"TUNER_{name}"], f"TUNER_{name}")
        for name in others
        if not name.endswith(SECRET_VARIABLES)
    ]


def _value_of(settings: Settings, name: str) -> Any:
    """Return the value of a setting by its name in the config file."""
    renamed = {"max_stall": "max_stall_secs", "worker_memory": "worker_bytes"}
    if name == "engine":
        names = {module: engine for engine, module in environments.ENGINES.items()}
        return names.get(settings.engine, settings.engine)
    for group in (settings.request_caps, settings.retention):
        if hasattr(group, name):
            return getattr(group, name)
    value = getattr(settings, renamed.get(name, name))
    return [str(path) for path in value] if isinstance(value, tuple) else value


def read_settings(flags: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    """Merge the sources; the first one that names a setting wins.

    Args:
        flags: Settings by name; None stands for a missing one.
        environ: Environment variables; those of the process by default.

    Raises:
        RequestError: If the config file cannot be read, or a setting is unknown or malformed.
    """
    environ = os.environ if environ is None else environ
    check_variables(environ)
    config = _read_config(environ)
    variables = {
        key: environ[f"TUNER_{key.upper()}"] for key in _KEYS if f"TUNER_{key.upper()}" in environ
    }
    overrides = {key: value for key, value in flags.items() if value is not None}
    return _parse({**config, **variables, **overrides}, environ)


def check_variables(environ: Mapping[str, str]) -> None:
    """Check that no ``TUNER_*`` variable is a misspelled setting.

    Raises:
        RequestError: If one is; the message has the right name.
    """
    check_names(environ, _KEYS)


def _parse(values: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    values = {name: value for name, value in values.items() if value != ""}
    data_dir = Path(values.get("data_dir") or _default_data_dir()).expanduser().absolute()
    engine, environment = environments.parse(
        str(values.get("engine") or environments.DEFAULT_ENGINE)
    )
    max_builders = (
        read_count("n_builders", values["n_builders"], 1) if "n_builders" in values else None
    )
    python = values.get("relay_python")
    return Settings(
        database=str(values.get("database") or _default_database(data_dir)),
        data_dir=data_dir,
        engine=engine,
        n_builders=max_builders or len(os.sched_getaffinity(0)),
        cache_dir=_cache_dir(str(values.get("cache_dir") or data_dir / "cache"), environ),
        cache_remote=str(values.get("cache_remote") or "") or None,
        rpc=str(values.get("rpc") or "") or None,
        max_builders=max_builders,
        device_tolerance=_fraction(
            "device_tolerance", values.get("device_tolerance", DEFAULT_DEVICE_TOLERANCE)
        ),
        environment=environment,
        # Not resolved: the path of the link is what makes Python use that environment.
        relay_python=Path(str(python)).expanduser().absolute() if python else Path(),
        worker_bytes=_worker_bytes(values.get("worker_memory")),
        load_share=_fraction("load_share", values.get("load_share", 1.0)),
        max_stall_secs=_max_stall(values.get("max_stall")),
        request_caps=request_caps.parse(values),
        retention=retention.parse(values),
        worker_sandbox=read_choice(
            "worker_sandbox", values.get("worker_sandbox") or SANDBOX_MODES[0], SANDBOX_MODES
        ),
        worker_paths=tuple(
            Path(text).expanduser().absolute()
            for text in str(values.get("worker_paths") or "").split(os.pathsep)
            if text
        ),
        signing_key=_optional_path(values.get("signing_key")),
        trusted_keys=_optional_path(values.get("trusted_keys")),
        signatures=read_choice(
            "signatures", values.get("signatures") or SIGNATURE_MODES[0], SIGNATURE_MODES
        ),
        shipped_records=read_flag("shipped_records", values.get("shipped_records", True)),
        log_level=read_choice("log_level", values.get("log_level") or LOG_LEVELS[1], LOG_LEVELS),
        log_format=read_choice(
            "log_format", values.get("log_format") or _default_log_format(), LOG_FORMATS
        ),
    )


def _default_log_format() -> str:
    """Return text for people at a terminal, and JSON for whatever collects logs."""
    return LOG_FORMATS[1 if sys.stderr is not None and sys.stderr.isatty() else 0]


def _max_stall(value: Any) -> float:
    if value is None or value == "":
        return DEFAULT_MAX_STALL_SECS
    secs = parse_age("max_stall", str(value))
    if secs < _MIN_STALL_SECS:
        raise RequestError(f"max_stall must be at least {_MIN_STALL_SECS:g}s, got {value!r}")
    return secs


def _worker_bytes(value: Any) -> int | None:
    if value is None or value == "":
        return None
    n_bytes = parse_size("worker_memory", str(value))
    if n_bytes < _MIN_WORKER_BYTES:
        raise RequestError(f"worker_memory must be at least 256MiB, got {value!r}")
    return n_bytes


def _cache_dir(text: str, environ: Mapping[str, str]) -> Path:
    """Replace ``{rank}`` and ``{local_rank}`` by the numbers of this process."""
    for word, names in _RANKS.items():
        if f"{{{word}}}" not in text:
            continue
        number = next((environ[name] for name in names if environ.get(name)), None)
        if number is None:
            raise RequestError(
                f"cache_dir contains {{{word}}}, but none of {', '.join(names)} is set: "
                "start the process with a launcher that numbers its processes"
            )
        if not number.isdigit():
            raise RequestError(f"{{{word}}} in cache_dir must be a number, got {number!r}")
        text = text.replace(f"{{{word}}}", number)
    return Path(text).expanduser().absolute()


def _default_database(data_dir: Path) -> str:
    return f"sqlite:///{data_dir / 'tuner.db'}"


def _default_data_dir() -> str:
    # Imported late: environments of other engines import this module without platformdirs.
    import platformdirs

    return platformdirs.user_data_dir(_APP)


def _default_config() -> Path:
    import platformdirs

    return Path(platformdirs.user_config_dir(_APP)) / "config.toml"


def config_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the config file, which need not exist."""
    return Path(environ.get("TUNER_CONFIG", "") or _default_config())


def _read_config(environ: Mapping[str, str]) -> dict[str, Any]:
    path = config_file(environ)
    if not path.is_file():
        if environ.get("TUNER_CONFIG"):
            raise RequestError(f"TUNER_CONFIG names {path}, which is not a file")
        return {}
    import tomllib

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


def _optional_path(value: Any) -> Path | None:
    return Path(str(value)).expanduser().absolute() if value else None


def _fraction(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0.0 < number <= 1.0:
        raise RequestError(f"{name} must be above 0 and at most 1, got {value!r}")
    return number
