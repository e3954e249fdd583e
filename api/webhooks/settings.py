"""Settings of webhooks, and the secrets that sign them."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from api.webhooks.addresses import check_url
from tuner.errors import RequestError
from tuner.settings.values import read_flag

_PREFIX = "whsec_"
_MIN_KEY_BYTES = 24


@dataclass(frozen=True)
class WebhookSettings:
    """Settings of a service that sends webhooks.

    Attributes:
        key: Key from which the keys of owners are derived; it signs what goes to ``url`` itself.
        url: Address that hears of all jobs; None for none.
        allows_private: True to connect to addresses that the internet does not route.
    """

    key: bytes = field(repr=False)
    url: str | None = field(default=None, repr=False)
    allows_private: bool = False

    def key_of(self, owner: str | None) -> bytes:
        """Return the key that signs the webhooks of an owner's jobs."""
        return self.key if owner is None else hmac.digest(self.key, owner.encode(), hashlib.sha256)


def read_webhook_settings(environ: Mapping[str, str]) -> WebhookSettings | None:
    """Read ``TUNER_WEBHOOK_SECRET``, ``_URL`` and ``_PRIVATE``; None without a secret.

    Raises:
        RequestError: If one is malformed, or the others are set without the secret.
    """
    secret = environ.get("TUNER_WEBHOOK_SECRET", "").strip()
    url = environ.get("TUNER_WEBHOOK_URL", "").strip() or None
    allows_private = read_flag("webhook_private", environ.get("TUNER_WEBHOOK_PRIVATE", ""))
    if not secret:
        if url is not None:
            raise RequestError("TUNER_WEBHOOK_URL needs TUNER_WEBHOOK_SECRET")
        return None
    if url is not None:
        try:
            check_url(url, allows_private=allows_private)
        except RequestError as error:
            raise RequestError(f"TUNER_WEBHOOK_URL {error}") from error
    return WebhookSettings(_key(secret), url, allows_private)


def secret_text(key: bytes) -> str:
    """Return a key as receivers take it."""
    return _PREFIX + base64.b64encode(key).decode()


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not secret.startswith(_PREFIX) or len(key) < _MIN_KEY_BYTES:
        raise RequestError(
            f"TUNER_WEBHOOK_SECRET must be {_PREFIX} and at least {_MIN_KEY_BYTES} random bytes in "
            'base64, such as "whsec_$(openssl rand -base64 32)"'
        )
    return key
