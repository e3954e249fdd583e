"""Text that every database can store: names and messages of models and compilers are arbitrary."""


def storable(text: str) -> str:
    """Replace NUL and lone surrogates, which PostgreSQL cannot store."""
    return text.replace("\x00", "\ufffd").encode(errors="replace").decode()
