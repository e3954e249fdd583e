"""Why the object of a subgraph had to be compiled, in words."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.build_cache.keys import KeyDifference, PartDifference

_LONGEST = 60


def explain_miss(why: "KeyDifference | None") -> list[str]:
    """Say how the nearest entry of the cache differs from what was looked for.

    Returns:
        A line per part that differs; one line if no entry is of the same subgraph.
    """
    if why is None:
        return ["the cache holds no compiled subgraph yet"]
    if any(part.part in ("workload", "engine") for part in why.parts):
        line = f"this subgraph was never compiled before; the nearest is {why.title}"
        return [f"{line}, entry {why.digest[:12]}"]
    return [_line(part, why.digest) for part in why.parts]


def as_json(why: "KeyDifference | None") -> dict[str, Any] | None:
    """Return what ``--json`` prints of it."""
    if why is None:
        return None
    return {
        "nearest": why.digest,
        "title": why.title,
        "differs": [vars(part) for part in why.parts],
    }


def _line(part: "PartDifference", digest: str) -> str:
    if part.part == "trace":
        before = "a fallback" if part.theirs is None else f"trace {str(part.theirs)[:12]}"
        now = "a fallback" if part.ours is None else f"trace {str(part.ours)[:12]}"
        return f"another record is best: {now}, entry {digest[:12]} has {before}"
    return f"{part.part}: {_short(part.ours)}, entry {digest[:12]} has {_short(part.theirs)}"


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
