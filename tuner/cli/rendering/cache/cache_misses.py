"""Cache misses explained in words and as JSON."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.build_cache.keys import KeyDifference, PartDifference

_MAX_CHARS = 60


def explain_miss(nearest: "KeyDifference | None") -> list[str]:
    """Explain how the nearest entry of the cache differs from the requested one.

    Returns:
        A line per part of the key that differs; one line if no entry has the same subgraph.
    """
    if nearest is None:
        return ["the cache has no compiled subgraph yet"]
    entry = f"entry {nearest.digest[:12]}"
    if any(part.part in ("workload", "engine") for part in nearest.parts):
        line = "this subgraph was never compiled before"
        return [f"{line}; the nearest is {nearest.title}, {entry}"]
    return [_line(part, entry) for part in nearest.parts]


def as_json(nearest: "KeyDifference | None") -> dict[str, Any] | None:
    """Return what ``--json`` prints of a miss."""
    if nearest is None:
        return None
    return {
        "nearest": nearest.digest,
        "title": nearest.title,
        "differs": [vars(part) for part in nearest.parts],
    }


def _line(part: "PartDifference", entry: str) -> str:
    if part.part == "trace":
        before, now = _trace(part.theirs), _trace(part.ours)
        return f"another record is best: {now}, {entry} has {before}"
    return f"{part.part}: {_short(part.ours)}, {entry} has {_short(part.theirs)}"


def _trace(trace_hash: Any) -> str:
    return "a fallback" if trace_hash is None else f"trace {str(trace_hash)[:12]}"


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}…"
