"""Settings of an API process: those of every command, and those of a server."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.webhooks.settings import WebhookSettings, read_webhook_settings
from records.service.owners import quotas
from records.service.owners.quotas import Quotas
from tuner.errors import RequestError
from tuner.jobs.spec import MAX_PRIORITY
from tuner.settings import Settings, read_settings
from tuner.settings.values import read_count, read_flag, read_networks, read_number

MIB = 2**20
_SHARED = ("database", "data_dir", "log_level", "log_format")
_DEFAULT_UPLOAD_MIB = 512
_DEFAULT_RATE = 100.0
_DEFAULT_MAX_CONNECTIONS = 4096
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
        trusted_proxies: Addresses and networks of the proxies that say where a request comes
            from; behind one, tokens are required.
        max_connections: Maximum of open connections.
        webhooks: Settings of webhooks; None to refuse them.
    """

    tuner: Settings
    host: str = "127.0.0.1"
    port: int = 8080
    max_upload_bytes: int = _DEFAULT_UPLOAD_MIB * MIB
    rate: float = 0.0
    require_tokens: bool = False
    quotas: Quotas = _NO_QUOTAS
    max_priority: int = _DEFAULT_MAX_PRIORITY
    trusted_proxies: tuple[str, ...] = ()
    max_connections: int = _DEFAULT_MAX_CONNECTIONS
    webhooks: WebhookSettings | None = None

    @property
    def data_dir(self) -> Path:
        """Folder of uploads, archives and temporary files."""
        return self.tuner.data_dir

    @property
    def needs_tokens(self) -> bool:
        """True if requests need a token, as always beyond loopback and behind a proxy."""
        return self.require_tokens or bool(self.trusted_proxies) or not is_loopback(self.host)


def read_api_settings(
    flags: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> ApiSettings:
    """Merge flags, ``TUNER_*`` variables and, for settings of every command, the config file.

    The first of them that has a setting takes precedence.

    Args:
        flags: ``database``, ``data_dir``, ``log_level``, ``log_format`` and the settings of
            :class:`ApiSettings`, with ``max_upload_mb``; None or missing stands for not given.
        environ: Defaults to the environment of the process.

    Raises:
        RequestError: If a setting is malformed.
    """
    environ = os.environ if environ is None else environ
    shared = {name: flags.get(name) for name in _SHARED}

    def given(name: str, default: Any) -> Any:
        value = flags.get(name)
        return environ.get(f"TUNER_{name.upper()}") or default if value is None else value

    host = str(given("host", "127.0.0.1"))
    require = read_flag("require_tokens", given("require_tokens", ""))
    proxies = read_networks("trusted_proxies", given("trusted_proxies", ""))
    # Only users of this machine can connect to loopback, and they need no limit.
    is_private = is_loopback(host) and not require and not proxies
    megabytes = read_number("max_upload_mb", given("max_upload_mb", _DEFAULT_UPLOAD_MIB), 0, 2**20)
    return ApiSettings(
        tuner=read_settings(shared, environ),
        host=host,
        port=read_count("port", given("port", 8080), 0, 65535),
        max_upload_bytes=int(megabytes * MIB),
        rate=read_number("rate", given("rate", 0.0 if is_private else _DEFAULT_RATE), 0, 1e9),
        require_tokens=require,
        quotas=_quotas(given("quotas", ""), _NO_QUOTAS if is_private else _DEFAULT_QUOTAS),
        max_priority=read_count(
            "max_priority", given("max_priority", _DEFAULT_MAX_PRIORITY), 0, MAX_PRIORITY
        ),
        trusted_proxies=proxies,
        max_connections=read_count(
            "max_connections", given("max_connections", _DEFAULT_MAX_CONNECTIONS), 1
        ),
        webhooks=read_webhook_settings(environ),
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
