"""Settings of an API process: those of every command, and those of a server."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from records import quotas
from records.quotas import Quotas
from tuner.errors import RequestError
from tuner.jobs.spec import MAX_PRIORITY
from tuner.settings import Settings, read_settings

MIB = 2**20
_DEFAULT_UPLOAD_MIB = 512
_DEFAULT_RATE = 100.0
_TRUE = ("1", "true", "yes", "on")
# Quotas of each token beyond loopback; they bound what one client can take from the others.
_NO_QUOTAS = Quotas()
_DEFAULT_QUOTAS = Quotas(jobs=100, upload_mb=20_480, disk_mb=51_200)
_DEFAULT_MAX_PRIORITY = 3


@dataclass(frozen=True)
class ApiSettings:
    """Settings of an API process.

    Attributes:
        tuner: Settings of every command.
        host: Address to listen on.
        port: Port to listen on.
        max_upload_bytes: Maximum size of a model or a log of records.
        rate: Maximum of requests a second for each client, sustained; 0 for no limit.
        require_tokens: Require a token even on a loopback address.
        quotas: Quotas of each token that has none of its own.
        max_priority: The highest priority of a job of a token without the scope admin.
    """

    tuner: Settings
    host: str = "127.0.0.1"
    port: int = 8080
    max_upload_bytes: int = _DEFAULT_UPLOAD_MIB * MIB
    rate: float = 0.0
    require_tokens: bool = False
    quotas: Quotas = _NO_QUOTAS
    max_priority: int = _DEFAULT_MAX_PRIORITY

    @property
    def data_dir(self) -> Path:
        """Folder of uploads, archives and temporary files."""
        return self.tuner.data_dir

    @property
    def needs_tokens(self) -> bool:
        """True if requests need a token, which is always so beyond loopback."""
        return self.require_tokens or not is_loopback(self.host)


def read_api_settings(
    flags: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> ApiSettings:
    """Merge flags, ``TUNER_*`` variables and, for settings of every command, the config file.

    The first of them that has a setting takes precedence.

    Args:
        flags: ``database``, ``data_dir``, ``host``, ``port``, ``max_upload_mb``, ``rate``,
            ``require_tokens``, ``quotas`` and ``max_priority``; None or missing stands for not
            given.
        environ: Defaults to the environment of the process.

    Raises:
        RequestError: If a setting is malformed.
    """
    environ = os.environ if environ is None else environ
    shared = {name: flags.get(name) for name in ("database", "data_dir")}

    def given(name: str, default: Any) -> Any:
        value = flags.get(name)
        return environ.get(f"TUNER_{name.upper()}", default) if value is None else value

    host = str(given("host", "127.0.0.1"))
    require = str(given("require_tokens", "")).lower() in _TRUE
    # Only users of this machine can connect to loopback, and they need no limit.
    rate = 0.0 if is_loopback(host) and not require else _DEFAULT_RATE
    megabytes = _number("max_upload_mb", given("max_upload_mb", _DEFAULT_UPLOAD_MIB), 2**20)
    return ApiSettings(
        tuner=read_settings(shared, environ),
        host=host,
        port=int(_number("port", given("port", 8080), 65535)),
        max_upload_bytes=int(megabytes * MIB),
        rate=_number("rate", given("rate", rate), 1e9),
        require_tokens=require,
        quotas=_quotas(
            given("quotas", ""),
            _NO_QUOTAS if is_loopback(host) and not require else _DEFAULT_QUOTAS,
        ),
        max_priority=int(
            _number("max_priority", given("max_priority", _DEFAULT_MAX_PRIORITY), MAX_PRIORITY)
        ),
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host name or address."""
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _quotas(text: str, defaults: Quotas) -> Quotas:
    try:
        return defaults.with_changes(quotas.parse(text))
    except ValueError as error:
        raise RequestError(str(error)) from error


def _number(name: str, value: Any, maximum: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number <= maximum:
        raise RequestError(f"{name} must be a number from 0 to {maximum:.0f}, got {value!r}")
    return number
