"""JSON of targets, for every version of TVM."""

import json
from typing import Any


def canonical(target: Any) -> str:
    """Return the canonical JSON of a TVM target; a tag is written out."""
    exported = plain(target.export())
    exported.pop("tag", None)
    return json.dumps(exported, sort_keys=True, separators=(",", ":"))


def plain(value: Any) -> Any:
    """Convert TVM's containers and numbers to Python's."""
    if hasattr(value, "items"):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (bool, int, float)):
        return value
    if hasattr(value, "value"):
        return int(value.value)
    return [plain(item) for item in value]
