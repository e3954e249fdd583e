"""``tuner token``: create, list, renew and revoke API tokens of the service."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import options
from tuner.cli.console import print_json, print_note
from tuner.cli.options import argument, option

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from records.service.service_models import ApiToken

app = typer.Typer(help="Create, list, renew and revoke API tokens.", no_args_is_help=True)

NameArgument = Annotated[str, argument("NAME", "Name of the token.")]


DaysOption = Annotated[
    float | None, option("DAYS", "Expire after this many days [default: never].")
]


@app.command("create")
def create(
    name: NameArgument,
    scopes: Annotated[
        list[str],
        option(
            "SCOPE",
            "Scope of the token: read, submit or admin, of which each includes the earlier "
            "ones; or measure and build, for machines that do so.",
            "--scope",
        ),
    ] = ["read"],
    days: DaysOption = None,
    project: Annotated[
        str | None, option("PROJECT", "Group of the token; its tokens see each other's jobs.")
    ] = None,
    quotas: Annotated[
        str,
        option(
            "NAME=N,...",
            "Quotas instead of those of the service: jobs, trials, seconds, upload_mb, "
            "disk_mb; N may be none.",
        ),
    ] = "",
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Create a token and print it once; only its hash is stored.

    Jobs belong to the token that submits them.

    Examples:
        tuner token create ci --scope submit --days 90
        tuner token create ada --scope submit --project vision --quotas jobs=10,trials=100000
    """
    from records.service.owners import tokens
    from records.service.owners.quotas import parse
    from tuner.context import open_context
    from tuner.errors import RequestError

    lifetime = _lifetime(days)
    with open_context(database, data_dir) as context, context.sessions.begin() as session:
        try:
            token, secret = tokens.create_token(
                session, name, scopes, lifetime, project=project, quotas=parse(quotas)
            )
        except ValueError as error:
            raise RequestError(str(error)) from error
        row = _as_json(token)
        _log(session, "token-create", row)
    _print_secret(row, secret, json_output=json_output)


@app.command("ls")
def ls(
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List all tokens, including expired and revoked ones, without their secrets.

    Example:
        tuner token ls
    """
    from records.service.owners import tokens
    from tuner.context import open_context

    with open_context(database, data_dir) as context, context.readers() as session:
        rows = [_as_json(token) for token in tokens.list_tokens(session)]
    if json_output:
        print_json({"tokens": rows})
        return
    _show(rows)


@app.command("renew")
def renew(
    name: NameArgument,
    days: DaysOption = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Give a token a new secret and print it once; its jobs stay its own.

    The service rejects the old secret within five seconds.

    Example:
        tuner token renew ci --days 90
    """
    from records.errors import NoSuchRow
    from records.service.owners import tokens
    from tuner.context import open_context
    from tuner.errors import RequestError

    lifetime = _lifetime(days)
    with open_context(database, data_dir) as context, context.sessions.begin() as session:
        try:
            token, secret = tokens.renew_token(session, name, lifetime)
        except NoSuchRow as error:
            raise RequestError(f"{error}; list the tokens with `tuner token ls`") from error
        row = _as_json(token)
        _log(session, "token-renew", row)
    _print_secret(row, secret, json_output=json_output)


@app.command("revoke")
def revoke(
    name: NameArgument,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Revoke a token; the service rejects it within five seconds.

    Example:
        tuner token revoke ci
    """
    from records.errors import NoSuchRow
    from records.service.owners import tokens
    from tuner.context import open_context
    from tuner.errors import RequestError

    with open_context(database, data_dir) as context, context.sessions.begin() as session:
        try:
            row = _as_json(tokens.revoke_token(session, name))
        except NoSuchRow as error:
            raise RequestError(f"{error}; list the tokens with `tuner token ls`") from error
        _log(session, "token-revoke", row)
    if json_output:
        print_json(row)
        return
    _show([row])


def _log(session: "Session", action: str, row: dict[str, Any]) -> None:
    """Store a change of a token in the audit log, with the user of this machine."""
    import getpass
    import os
    import socket

    from records.service.owners import audit

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # containers have users without a name
        user = str(os.getuid())
    detail = {name: row[name] for name in ("name", "scopes", "project", "quotas", "expires")}
    audit.log_action(session, f"local user {user}", socket.gethostname(), action, detail=detail)


def _print_secret(row: dict[str, Any], secret: str, *, json_output: bool) -> None:
    if json_output:
        print_json({**row, "token": secret})
        return
    # Alone on stdout, so that a shell can capture it.
    print(secret)
    scopes = ", ".join(row["scopes"])
    print_note(f"store this token now, it is not shown again; its scopes: {scopes}")


def _lifetime(days: float | None) -> timedelta | None:
    from records.service.owners import tokens
    from tuner.errors import RequestError

    try:
        return None if days is None else tokens.lifetime_of(days)
    except ValueError as error:
        raise RequestError(f"--{error}") from error


def _as_json(token: "ApiToken") -> dict[str, Any]:
    from records.service.owners import tokens

    times = {name: getattr(token, name) for name in ("created", "revoked", "last_used")}
    return {
        **tokens.described(token),
        **{name: None if at is None else at.isoformat() for name, at in times.items()},
    }


def _show(rows: list[dict[str, Any]]) -> None:
    from tuner.cli.console import stdout_console
    from tuner.cli.rendering.grid import Column, Grid

    table = Grid(
        Column("Name", "name"),
        Column("Scopes", "name"),
        Column("Project", rank=2),
        Column("Created", rank=4),
        Column("Expires"),
        Column("Revoked", rank=1),
        Column("Last used", rank=3),
    )
    for row in rows:
        times = [row[name] for name in ("created", "expires", "revoked", "last_used")]
        named = row["name"], ", ".join(row["scopes"]), row["project"] or "-"
        table.add(*named, *map(_local_time, times))
    stdout_console().print(table)


def _local_time(at: str | None) -> str:
    return "-" if at is None else f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M}"
