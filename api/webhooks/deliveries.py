"""Deliveries of webhooks by an API process, which alone has a route out.

Requests follow the specification *Standard Webhooks*: a signature over id, time and body, which
the libraries of that specification verify. Redirects are not followed, and nothing but the status
is read of an answer.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any
from urllib.parse import SplitResult, urlunsplit

from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from api.load.fair_semaphore import SENDER, Sender
from api.load.transactions import Transactions
from api.webhooks.addresses import check_url, port_of, resolve
from api.webhooks.settings import WebhookSettings
from records.models import now
from records.service import webhooks
from records.service.webhooks import Delivery
from tuner.errors import RequestError

_POLL_INTERVAL_SECS = 1.0
_TIMEOUT_SECS = 10.0
_MAX_AT_ONCE = 32
_MAX_LINE_BYTES = 1000
_LOG = logging.getLogger("api.webhooks")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Deliveries:
    """Delivers what is due; several processes share the work.

    Attributes:
        reads: Transactions that look for deliveries.
        writes: Transactions that claim them and store their outcome.
    """

    settings: WebhookSettings
    reads: Transactions
    writes: Transactions

    async def run(self) -> None:
        """Deliver until cancelled; what is under way then is repeated by another process."""
        SENDER.set(Sender("webhooks"))
        while True:
            try:
                if await self.reads.run(webhooks.is_any_due):
                    claimed = await self.writes.run(webhooks.claim, _MAX_AT_ONCE)
                    await asyncio.gather(*map(self._deliver, claimed))
            except (SQLAlchemyError, HTTPException) as error:
                _LOG.warning("cannot read or store deliveries: %s", type(error).__name__)
            await asyncio.sleep(_POLL_INTERVAL_SECS)

    async def _deliver(self, delivery: Delivery) -> None:
        delivered = False
        try:
            async with asyncio.timeout(_TIMEOUT_SECS):
                code = await self._post(delivery)
            delivered, status = 200 <= code < 300, f"HTTP {code}"
        except TimeoutError:
            status = "no answer in time"
        except RequestError as error:
            status = f"refused: {error}"
        except ssl.SSLCertVerificationError as error:
            status = f"certificate refused: {error.verify_message}"
        except (OSError, ValueError) as error:
            status = f"no connection, or no answer of HTTP: {type(error).__name__}"
        await self.writes.run(webhooks.finish, delivery, status, delivered=delivered)
        _LOG.info("webhook: %s", status, extra={"job": delivery.job_id, "delivery": delivery.id})

    async def _post(self, delivery: Delivery) -> int:
        """Send a request, and return the status of its answer.

        Raises:
            RequestError: If the service does not connect to the address.
            OSError, ValueError: If there is no answer of HTTP.
        """
        allows_private = self.settings.allows_private
        parts = check_url(delivery.url, allows_private=allows_private)
        addresses = await resolve(parts, allows_private=allows_private)
        reader, writer = await _connect(addresses, parts)
        try:
            path = urlunsplit(("", "", parts.path or "/", parts.query, ""))
            writer.write(self._request(delivery, path, parts.netloc))
            await writer.drain()
            return _status_of(await reader.readline())
        finally:
            writer.transport.abort()

    def _request(self, delivery: Delivery, path: str, host: str) -> bytes:
        at = now()
        body = json.dumps(
            {
                "type": f"job.{delivery.state}",
                "timestamp": at.isoformat(),
                "data": {
                    "id": delivery.job_id,
                    "name": delivery.name,
                    "state": delivery.state,
                    "message": delivery.message,
                    "path": f"/api/v1/jobs/{delivery.job_id}",
                },
            }
        ).encode()
        # The receiver of the service's own address has one key for the jobs of all owners.
        key = self.settings.key_of(None if delivery.of_service else delivery.owner)
        headers = {
            "host": host,
            "user-agent": f"subgraph-tuner/{version('subgraph-tuner')}",
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            "webhook-id": delivery.id,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": sign(key, delivery.id, int(at.timestamp()), body),
        }
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + body


def sign(key: bytes, delivery: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a delivery: HMAC-SHA256 over its id, its time and its body."""
    signed = hmac.digest(key, f"{delivery}.{timestamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(signed).decode()}"


async def _connect(addresses: Sequence[str], parts: SplitResult) -> Streams:
    """Connect to the first address that answers.

    Raises:
        OSError: If none does, or its certificate is not that of the host.
    """
    secure: dict[str, Any] = {}
    if parts.scheme == "https":
        secure = {"ssl": _certificates(), "server_hostname": parts.hostname}
    for last, address in enumerate(addresses, start=1 - len(addresses)):
        try:
            return await asyncio.open_connection(
                address, port_of(parts), limit=_MAX_LINE_BYTES, **secure
            )
        except OSError:
            if last == 0:
                raise
    raise OSError("the host has no address")


@cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()


def _status_of(line: bytes) -> int:
    """Read the status line of an answer.

    Raises:
        ValueError: If it is not one.
    """
    protocol, _, rest = line.partition(b" ")
    if not protocol.startswith(b"HTTP/1."):
        raise ValueError("not a status line of HTTP")
    return int(rest[:3])
