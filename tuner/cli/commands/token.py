"""``tuner token``: make tokens for the service, list them, end one."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import options
from tuner.cli.console import print_error, print_json

if TYPE_CHECKING:
    from records.service_models import ApiToken

app = typer.Typer(
    help="Tokens of the service: who may read, submit or administer.", no_args_is_help=True
)

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Who it is for.", show_default=False)
]


@app.command("create")
def create(
    name: NameArgument,
    scopes: Annotated[
        list[str],
        typer.Option("--scope", help="read, submit or admin; each allows what those before it do."),
    ] = ["read"],  # noqa: B006  typer reads it, nobody writes it
    days: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="It is good for so many days [default: for ever].", show_default=False
        ),
    ] = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Make a token and print it, this once: only its hash is kept.

    Example:
        tuner token create ci --scope submit --days 90
    """
    from records import tokens
    from tuner.context import open_context
    from tuner.errors import RequestError

    lifetime = _lifetime(days)
    with open_context(database, data_dir) as context, context.sessions.begin() as session:
        try:
            token, secret = tokens.create_token(session, name, scopes, lifetime)
        except ValueError as error:
            raise RequestError(str(error)) from error
        row = _described(token)
    if json_output:
        print_json({**row, "token": secret})
        return
    # On stdout alone, so that a shell can take it.
    print(secret)
    print_error(f"keep it: nobody can read it again. It allows {', '.join(scopes)}.")


@app.command("ls")
def ls(
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List all tokens, those that are over among them; never their secrets.

    Example:
        tuner token ls
    """
    from records import tokens
    from tuner.context import open_context

    with open_context(database, data_dir) as context, context.readers() as session:
        rows = [_described(token) for token in tokens.list_tokens(session)]
    if json_output:
        print_json({"tokens": rows})
        return
    _show(rows)


@app.command("revoke")
def revoke(
    name: NameArgument,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """End a token; the service stops to take it within five seconds.

    Example:
        tuner token revoke ci
    """
    from records import tokens
    from records.errors import NoSuchRow
    from tuner.context import open_context
    from tuner.errors import RequestError

    with open_context(database, data_dir) as context, context.sessions.begin() as session:
        try:
            row = _described(tokens.revoke_token(session, name))
        except NoSuchRow as error:
            raise RequestError(f"{error}; tuner token ls lists them") from error
    if json_output:
        print_json(row)
        return
    _show([row])


def _lifetime(days: float | None) -> timedelta | None:
    from tuner.errors import RequestError

    if days is None:
        return None
    if not 0 < days <= 36_500:
        raise RequestError(f"--days must lie above 0 and up to 36500, got {days}")
    return timedelta(days=days)


def _described(token: "ApiToken") -> dict[str, Any]:
    times = ("created", "expires", "revoked", "last_used")
    said = {name: getattr(token, name) for name in times}
    return {
        "name": token.name,
        "scopes": token.scopes,
        **{name: None if at is None else at.isoformat() for name, at in said.items()},
    }


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from tuner.cli.console import stdout_console

    table = Table()
    for name in ("Name", "Scopes", "Created", "Expires", "Revoked", "Last used"):
        table.add_column(name, no_wrap=name != "Name")
    for row in rows:
        times = [row[name] for name in ("created", "expires", "revoked", "last_used")]
        table.add_row(Text(row["name"]), ", ".join(row["scopes"]), *map(_local_time, times))
    stdout_console().print(table)


def _local_time(at: str | None) -> str:
    return "-" if at is None else f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M}"
