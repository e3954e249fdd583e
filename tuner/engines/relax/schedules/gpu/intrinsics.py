"""Tensor intrinsics of CUDA, each parsed when a schedule first names it.

Importing TVM's module of them parses all 90, and each of its 180 functions reads the source of
every caller on the stack twice: 9 s in a small process, 28 s in a worker. Here the import only
keeps the functions; requested ones are parsed without the stack, which only textual annotations
need, and the functions have none.
"""

import importlib
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.script import tirx

from tuner.engines.relax import fast_import

_MODULE = f"{fast_import.PACKAGE}.cuda"
_NAMED = re.compile(r"\bwmma_\w+")

_Pair = tuple[Callable[..., None], Callable[..., None]]
_registered: set[str] = set()


def named_in(trace: str) -> set[str]:
    """Return the intrinsics of CUDA that a trace names."""
    return set(_NAMED.findall(trace))


def load(names: Iterable[str]) -> None:
    """Register intrinsics by name; TVM reports unknown ones."""
    for name in sorted(set(names) - _registered):
        pair = _unparsed().get(name)
        if pair is not None:
            TensorIntrin.register(name, *map(_parse, pair), override=True)
        _registered.add(name)


@lru_cache(maxsize=1)
def _unparsed() -> dict[str, _Pair]:
    """Return description and implementation by name: TVM's own, and generated ones for bfloat16."""
    pairs: dict[str, _Pair] = {}

    def remember(name: str, description: Any, implementation: Any, _override: bool = False) -> None:
        pairs[name] = (description, implementation)

    with (
        fast_import.attribute(tirx, "prim_func", lambda **_: lambda function: function),
        fast_import.attribute(TensorIntrin, "register", remember),
    ):
        module = importlib.import_module(_MODULE)
        # TVM generates code for bfloat16 fragments, but lists no intrinsics for them.
        for is_b, is_transposed in ((False, False), (True, False), (True, True)):
            name = f"wmma_load_16x16x16_bf16_{'b' if is_b else 'a'}{_trans(is_transposed)}"
            shape = (16, 16, 16, "bfloat16", "shared.dyn")
            pair = module.get_wmma_load_intrin(*shape, is_b, is_transposed)
            pairs[f"{name}_shared_dyn"] = pair
        for is_transposed in (False, True):
            shape = (16, 16, 16, "bfloat16", "float32")
            pair = module.get_wmma_sync_intrin(*shape, is_transposed)
            pairs[f"wmma_sync_16x16x16_bf16bf16f32{_trans(is_transposed)}"] = pair
    return pairs


def _trans(is_transposed: bool) -> str:
    return "_trans" if is_transposed else ""


def _parse(function: Callable[..., None]) -> Any:
    with fast_import.without_stack():
        return tirx.prim_func(s_tir=True)(function)
