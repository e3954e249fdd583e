"""Text as every database can store it: what models and compilers say may hold anything."""


def storable(text: str) -> str:
    """Replace what PostgreSQL stores in no text: NUL and lone surrogates."""
    return text.replace("\x00", "\ufffd").encode(errors="replace").decode()
