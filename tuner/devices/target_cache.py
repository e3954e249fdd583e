"""What a target means on this machine: asked of a worker once, then known."""

from collections.abc import Callable
from dataclasses import asdict

from tuner.build_cache.cache import Cache
from tuner.build_cache.key_inputs import binaries_of, code_of, processor, tool, versions_of
from tuner.build_cache.keys import Key
from tuner.engines.base import TargetInfo
from tuner.engines.environments import Interpreter, contents_of

# Resolves a target specification on the devices that will measure for it.
DescribeTarget = Callable[[str], TargetInfo]

KIND = "target"
_PACKAGES = ("apache-tvm", "apache-tvm-ffi")
_MODULES = ("tvm", "tvm_ffi")


def describe(
    cache: Cache,
    engine: str,
    spec: str,
    ask: Callable[[], TargetInfo],
    interpreter: Interpreter | None = None,
) -> TargetInfo:
    """Return what ``ask`` says of a target, unless it said so before on this very machine.

    Only processors are remembered: a graphics card may be another one tomorrow.

    Args:
        cache: Where answers are kept.
        engine: Who is asked.
        spec: The target as a user writes it.
        ask: Asks.
        interpreter: The Python that the engine runs in; None: ours.
    """
    parts = {
        "engine": engine,
        "code": code_of(engine),
        "packages": versions_of(*_PACKAGES),
        "environment": contents_of(interpreter),
        "binaries": binaries_of(*_MODULES),
        "spec": spec.strip(),
        "processor": processor(),
        "linker": tool("ld"),
    }
    key = Key(KIND, parts, spec)
    entry = cache.find(key)
    if entry is not None:
        with entry:
            return TargetInfo(**entry.info)
    info = ask()
    if info.kind == "llvm":
        cache.remember(key, asdict(info))
    return info
