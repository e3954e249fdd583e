"""Conditional requests."""


def matches(if_none_match: str | None, etag: str) -> bool:
    """Return whether If-None-Match contains a tag, by weak comparison (RFC 9110, 13.1.2)."""
    if if_none_match is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match[:4000].split(",")]
    return "*" in tags or etag.removeprefix("W/") in tags
