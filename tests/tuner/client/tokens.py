"""Tokens for the tests."""

from records import database
from records.service.owners import tokens


def make_token(url: str, *scopes: str) -> str:
    """Store a token in a database and return its secret."""
    engine = database.open_database(url)
    with database.sessions(engine).begin() as session:
        _, secret = tokens.create_token(session, f"for {' '.join(scopes)}", scopes)
    engine.dispose()
    return secret
