"""Cache of how workers of this machine describe a target."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tuner.build_cache.cache import Cache
from tuner.build_cache.keys import Key, binaries_of, code_of, processor, tool, versions_of
from tuner.engines.base import TargetInfo
from tuner.engines.environments import Interpreter, contents_of
from tuner.engines.runtime import onednn

# Resolves a target specification on the devices that will measure for it; None for a target of this
# machine.
DescribeTarget = Callable[[str], TargetInfo | None]

KIND = "target"
_PACKAGES = ("apache-tvm", "apache-tvm-ffi")
_MODULES = ("tvm", "tvm_ffi")


def describe(
    cache: Cache,
    engine: str,
    spec: str,
    describe_in_worker: Callable[[], TargetInfo],
    interpreter: Interpreter | None = None,
) -> TargetInfo:
    """Return the description of a target, from the cache if this machine has described it before.

    Only CPU targets are cached, because a GPU may be replaced.

    Args:
        cache: Build cache that holds descriptions.
        engine: Module of the engine that describes it.
        spec: Target as a user writes it.
        interpreter: Python that the engine runs in; None for that of this process.
    """
    parts: dict[str, Any] = {
        "engine": engine,
        "code": code_of(engine),
        "packages": versions_of(*_PACKAGES),
        "environment": contents_of(interpreter),
        "binaries": binaries_of(*_MODULES),
        "spec": spec.strip(),
        "processor": processor(),
        "linker": tool("ld"),
    }
    if onednn.NAME in spec:
        # An installation may come between two commands.
        parts[onednn.NAME] = onednn.file_facts()
    key = Key(KIND, parts, spec)
    entry = cache.find(key)
    if entry is not None:
        with entry:
            return TargetInfo(**{**entry.info, "features": tuple(entry.info["features"])})
    info = describe_in_worker()
    if info.kind == "llvm":
        cache.remember(key, asdict(info))
    return info
