"""``python -m api``: one API process."""

import argparse
import contextlib
import resource
import sys
from pathlib import Path

import uvicorn

from api.app import create_app
from api.settings import ApiSettings, read_api_settings
from records.errors import RecordsError
from tuner.errors import TunerError

_GRACE_SECS = 10


def main() -> int:
    """Serve until SIGTERM or Ctrl-C."""
    try:
        settings = read_api_settings(vars(_parser().parse_args()))
    except TunerError as error:
        print(f"tuner: {error}", file=sys.stderr)
        return error.exit_code
    _raise_file_limit()
    try:
        server = make_server(settings)
        server.run()
    except (TunerError, RecordsError) as error:
        print(f"tuner: {error}", file=sys.stderr)
        return 1
    return 0 if server.started else 1


def make_server(settings: ApiSettings) -> uvicorn.Server:
    """Return a server of the application, which does not run yet."""
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        ws="none",
        access_log=False,
        server_header=False,
        log_level="warning",
        timeout_graceful_shutdown=_GRACE_SECS,
    )
    return uvicorn.Server(config)


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
