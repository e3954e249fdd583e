"""``python -m api``: one API process."""

import argparse
import logging
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from api.app import create_app
from api.load.capacity import max_connections
from api.load.connections import Connections
from api.load.protocol import BoundedProtocol
from api.load.turns import Turns
from api.settings import ApiSettings, read_api_settings
from records.errors import RecordsError
from records.service.owners import tokens
from tuner.context import Context, open_context
from tuner.errors import TunerError
from tuner.service import logs
from tuner.service.arenas import limit_arenas

if TYPE_CHECKING:
    from api.app_state import State

# Time for running requests to end; shorter than the supervisor's time-out before it kills.
_SHUTDOWN_TIMEOUT_SECS = 5
_LOG = logging.getLogger("api")


def main() -> int:
    """Serve until SIGTERM or Ctrl-C."""
    try:
        settings = read_api_settings(vars(_parser().parse_args()))
        # Opened here so that an error is one line; uvicorn would print a traceback.
        with open_context(settings.tuner.database, settings.tuner.data_dir) as context:
            locked_out = settings.needs_tokens and not _has_tokens(context)
    except TunerError as error:
        print(f"tuner: {error}", file=sys.stderr)
        return error.exit_code
    except RecordsError as error:
        print(f"tuner: {error}", file=sys.stderr)
        return 1
    logs.set_up(settings.tuner.log_level, settings.tuner.log_format)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # It warns of every malformed form, although the client gets an error.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    limit_arenas()
    if locked_out:
        _LOG.warning("there are no tokens yet: tuner token create NAME --scope admin creates one")
    server = make_server(settings)
    server.run()
    return 0 if server.started else 1


class Server(uvicorn.Server):
    """A server that ends event streams on shutdown, which would keep it running."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the event streams, then shut down."""
        service: State = self._app.state.service
        await service.hub.close()
        await super().shutdown(sockets)


def make_server(settings: ApiSettings) -> uvicorn.Server:
    """Return a server of the application, not yet running."""
    app = create_app(settings)
    limit = max_connections(settings.max_connections)
    app.state.connections = Connections(limit, is_behind_proxy=bool(settings.trusted_proxies))
    app.state.turns = Turns()
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=BoundedProtocol,
        ws="none",
        access_log=False,  # api.middleware writes one with the subject
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        server_header=False,
        log_config=None,
        log_level="warning",
        timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_SECS,
    )
    return Server(config, app)


def _has_tokens(context: Context) -> bool:
    with context.readers() as session:
        return tokens.has_tokens(session)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m api", description=__doc__)
    parser.add_argument("--host", help="address to listen on [127.0.0.1]")
    parser.add_argument("--port", type=int, help="port to listen on [8080]")
    parser.add_argument("--database", help="URL of the database")
    parser.add_argument("--data-dir", type=Path, help="folder of models and libraries")
    parser.add_argument("--max-upload-mb", type=float, help="maximum size of a model, MiB [512]")
    parser.add_argument(
        "--rate", type=float, help="maximum of requests a second for each client; 0 for no limit"
    )
    parser.add_argument(
        "--require-tokens",
        action="store_true",
        default=None,
        help="require tokens on loopback as well",
    )
    parser.add_argument("--quotas", help="quotas of each token, such as jobs=20,trials=100000")
    parser.add_argument("--max-priority", type=int, help="highest priority without admin [3]")
    parser.add_argument("--trusted-proxies", help="addresses of proxies, such as 10.0.0.7")
    parser.add_argument("--max-connections", type=int, help="maximum of connections [4096]")
    parser.add_argument("--log-level", help="debug, info, warning or error [info]")
    parser.add_argument("--log-format", help="json or text [json]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
