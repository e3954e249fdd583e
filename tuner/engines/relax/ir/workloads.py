"""Workloads: a fused kernel as a separate module, with hash, bytes and name.

TVM writes IR as a graph of nodes. Its order depends on which objects are shared, and it has
the names that variables had in the network. Here nodes are written in the order of a walk from the
root, equal values once, and variables are numbered. Names of blocks stay: traces refer to them.
"""

import hashlib
import json
import math
import re
import zlib
from functools import lru_cache
from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir.analysis import estimate_tir_flops
from tvm.tirx import PrimFunc
from tvm_ffi import core
from tvm_ffi.serialization import from_json_graph_str

from tuner.engines.relax.ir import ir_checks
from tuner.errors import WorkError

#: Attribute of the step of a loop, which is part of its workload: 1 if it may not start threads.
STEP = "tuner.serial_step"

_LIBRARY_CALLS = {"tirx.tvm_call_packed", "tirx.call_extern", "tirx.call_pure_extern"}

_VARIABLE, _MAP, _TEXT = "ir.Var", "ffi.Map", "ffi.String"
_SPAN = "span"
# json.dumps would make one for each node.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def write(module: tvm.IRModule) -> str:
    """Return the canonical JSON of a module.

    Raises:
        WorkError: If it would be another module.
    """
    text = _Writer(json.loads(tvm.ir.save_json(module))).write()
    if not tvm_ffi.structural_equal(read(text), module):
        raise WorkError("the IR of a subgraph has no canonical text")
    return text


def read(text: str) -> tvm.Object:
    """Return the module of a canonical text.

    ``tvm.ir.load_json`` would first rewrite the whole text for schemas of earlier versions, which
    takes several times as long.
    """
    return from_json_graph_str(text)


class _Writer:
    """Writes the nodes of a graph in canonical order."""

    def __init__(self, graph: dict[str, Any]) -> None:
        self._nodes = graph["nodes"]
        self._root = graph["root_index"]
        self._written: list[str] = []
        self._numbers: dict[str, int] = {}
        self._of_node: dict[int, int] = {}
        self._names: dict[int, str] = {}

    def write(self) -> str:
        """Return the text."""
        stack = [(self._root, False)]
        while stack:
            index, is_ready = stack.pop()
            if index in self._of_node:
                continue
            children = self._children(index)
            if is_ready:
                self._add(index)
                continue
            if self._nodes[index]["type"] == _VARIABLE:
                self._names.setdefault(index, f"v{len(self._names)}")
            stack.append((index, True))
            stack += [(child, False) for child in reversed(children)]
        return f'{{"root_index":{self._of_node[self._root]},"nodes":[{",".join(self._written)}]}}'

    def _children(self, index: int) -> list[int]:
        node = self._nodes[index]
        data = node.get("data")
        if isinstance(data, dict):
            return [data[name] for name in self._references(index)]
        return self._items(index) if isinstance(data, list) else []

    def _references(self, index: int) -> list[str]:
        """Return the fields of a node whose values are numbers of nodes that are written."""
        node = self._nodes[index]
        left_out = _plain_fields(node["type"]) | {_SPAN}
        if node["type"] == _VARIABLE:
            left_out |= {"name"}
        return [name for name in node["data"] if name not in left_out]

    def _items(self, index: int) -> list[int]:
        """Return the items of a list, or the keys and values of a map in the order of its keys."""
        node = self._nodes[index]
        items: list[int] = node["data"]
        if node["type"] != _MAP:
            return items
        pairs = list(zip(items[::2], items[1::2], strict=True))
        if all(self._nodes[key]["type"] == _TEXT for key, _ in pairs):
            pairs.sort(key=lambda pair: self._nodes[pair[0]]["data"])
        return [number for pair in pairs for number in pair]

    def _add(self, index: int) -> None:
        """Write a node whose children are written; a value equal to another is that one."""
        node = self._nodes[index]
        data = node.get("data")
        if isinstance(data, dict):
            data = dict(data)
            if node["type"] == _VARIABLE:
                data["name"] = self._number_of({"type": _TEXT, "data": self._names[index]})
            if _SPAN in data:
                data[_SPAN] = self._number_of({"type": "None"})
            for name in self._references(index):
                data[name] = self._of_node[data[name]]
        elif isinstance(data, list):
            data = [self._of_node[item] for item in self._items(index)]
        self._of_node[index] = self._number_of(node if data is None else {**node, "data": data})

    def _number_of(self, node: dict[str, Any]) -> int:
        text = _ENCODER.encode(node)
        if text not in self._numbers:
            self._numbers[text] = len(self._written)
            self._written.append(text)
        return self._numbers[text]


@lru_cache(1000)
def _plain_fields(type_key: str) -> frozenset[str]:
    """Return the fields of a type whose values are written in place."""
    names: set[str] = set()
    info: Any = core._lookup_or_register_type_info_from_type_key(type_key)
    while info is not None:
        names |= {field.name for field in info.fields if field.field_static_type_index in range(64)}
        info = info.parent_type_info
    return frozenset(names)


def as_workload(function: PrimFunc) -> tvm.IRModule:
    """Wrap a kernel so that equal subgraphs of different networks become equal modules."""
    bare = function.without_attr("global_symbol").with_attr("global_symbol", "main")
    return tvm.IRModule({"main": bare.with_attr("tirx.noalias", True)})


def is_opaque(function: PrimFunc) -> bool:
    """Return whether a kernel calls a library, or has its schedule: it is not to be searched."""
    if "tirx.is_scheduled" in (function.attrs or {}):
        return True
    names: set[str] = set()
    collect = (tvm.ir.Call, lambda call: names.add(str(getattr(call.op, "name", ""))))
    tvm_ffi.structural_walk(function.body, (collect,))
    return bool(names & _LIBRARY_CALLS)


def name_of(ir: bytes) -> str:
    """Return the name of a workload: the SHA-256 of its canonical IR."""
    return hashlib.sha256(zlib.decompress(ir)).hexdigest()


def hash_of(module: tvm.IRModule) -> str:
    """Return the structural hash, 16 hexadecimal digits; names of variables do not count."""
    return f"{tvm_ffi.structural_hash(module) & 0xFFFFFFFFFFFFFFFF:016x}"


def dump(module: tvm.IRModule) -> bytes:
    """Serialise a module: TVM's JSON graph in canonical form, zlib."""
    return zlib.compress(write(module).encode(), 9)


@lru_cache(maxsize=16)
def load(ir: bytes) -> tvm.IRModule:
    """Deserialise the output of :func:`dump`; the module is shared and must not be changed.

    Parsing takes a tenth of a build, and a process builds many candidates of one workload.

    Raises:
        WorkError: If it calls what a subgraph may not call, because it may come from a log.
    """
    module = read(zlib.decompress(ir).decode())
    ir_checks.check(module)
    return module


def define(irs: list[bytes]) -> list[str]:
    """Return the definitions of workloads as TVMScript; see :class:`Engine`."""
    return [load(ir).script() for ir in irs]


def flop_of(module: tvm.IRModule) -> float:
    """Return the floating-point operations of one run, as TVM counts them."""
    return float(estimate_tir_flops(module))


def n_bytes_of(module: tvm.IRModule) -> int:
    """Return the bytes of all inputs and outputs."""
    return sum(
        math.prod(int(size) for size in param.shape) * tvm.DataType(param.dtype).bits // 8
        for param in module["main"].params
    )


def title(function_name: str) -> str:
    """Strip counters and the fusion prefix from a kernel name."""
    words = function_name.removeprefix("fused_").split("_")
    return "_".join(re.sub(r"(?<=[a-z])(\dd)?\d*$", r"\1", word) for word in words if word)
