"""Types of what the functions of an engine return, by which answers of workers are checked."""

from functools import lru_cache
from typing import Any, get_type_hints

from tuner.engines.base import Engine
from tuner.engines.log_base import LogEngine


@lru_cache(1000)
def result_type(function: str) -> Any:
    """Return the type of a function of an engine's contract; Any, which is plain data, for others.

    Plain data are None, booleans, numbers, texts, bytes, lists and dictionaries.
    """
    for contract in (Engine, LogEngine):
        method = contract.__dict__.get(function)
        if method is not None:
            return get_type_hints(method)["return"]
    return Any
