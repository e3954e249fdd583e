"""JSON of TVM's objects, for every version of TVM."""

import json
from typing import Any


def canonical_target(target: Any) -> str:
    """Return the canonical JSON of a TVM target; a tag is written out."""
    exported = plain(target.export())
    exported.pop("tag", None)
    return json.dumps(exported, sort_keys=True, separators=(",", ":"))


def plain(value: Any) -> Any:
    """Convert TVM's containers and numbers to Python's."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    if hasattr(value, "items"):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "value"):
        return value.value
    return [plain(item) for item in value]
