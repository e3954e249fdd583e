"""``python -m api``: one API process."""

import argparse
import contextlib
import logging
import resource
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from api.app import create_app
from api.protocol import BoundedProtocol
from api.settings import ApiSettings, read_api_settings
from records import tokens
from records.errors import RecordsError
from tuner.context import Context, open_context
from tuner.errors import TunerError
from tuner.service import logs

if TYPE_CHECKING:
    from api.app_state import State

# What is under way has so long to end: less than a supervisor waits before it kills.
_GRACE_SECS = 5
_LOG = logging.getLogger("api")


def main() -> int:
    """Serve until SIGTERM or Ctrl-C."""
    try:
        settings = read_api_settings(vars(_parser().parse_args()))
        # Now, and in one line: later it would be a traceback of the server's.
        with open_context(settings.tuner.database, settings.tuner.data_dir) as context:
            locked_out = settings.needs_tokens and not _has_tokens(context)
    except TunerError as error:
        print(f"tuner: {error}", file=sys.stderr)
        return error.exit_code
    except RecordsError as error:
        print(f"tuner: {error}", file=sys.stderr)
        return 1
    logs.set_up()
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # It warns of every form that is damaged; the client is told.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    _raise_file_limit()
    if locked_out:
        _LOG.warning("nobody has a token yet: tuner token create NAME --scope admin makes one")
    server = make_server(settings)
    server.run()
    return 0 if server.started else 1


class Server(uvicorn.Server):
    """A server that ends event streams when it stops; they would last for ever."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop to listen, end the streams, and wait for what is under way."""
        service: State = self._app.state.service
        await service.hub.close()
        await super().shutdown(sockets)


def make_server(settings: ApiSettings) -> uvicorn.Server:
    """Return a server of the application, which does not run yet."""
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=BoundedProtocol,
        ws="none",
        access_log=False,
        server_header=False,
        log_config=None,
        log_level="warning",
        timeout_graceful_shutdown=_GRACE_SECS,
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
    parser.add_argument("--data-dir", type=Path, help="where models and libraries are kept")
    parser.add_argument("--max-upload-mb", type=float, help="largest model, MiB [512]")
    parser.add_argument("--rate", type=float, help="requests a second of one client; 0: no limit")
    parser.add_argument(
        "--require-tokens", action="store_true", default=None, help="ask for tokens on loopback too"
    )
    return parser


def _raise_file_limit() -> None:
    """Allow as many connections as the system lets us have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    sys.exit(main())
