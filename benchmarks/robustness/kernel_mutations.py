"""Faults of schedules and code generators, put into the TVMScript of an unscheduled function.

Each mutation returns the text of a wrong function, or None where it does not apply.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_LOOP = re.compile(r"^(\s*)for (.+) in (?:T\.grid|range)\((.+)\):$")
_AXES = re.compile(r'(?:T\.axis\.remap\("(\w+)"|T\.axis\.(spatial|reduce)\()')
_STORE = re.compile(r"^(\s+)(\w+)\[(.+?)\] = (.+)$")
_BUFFER = re.compile(r'(\w+): T\.Buffer\(\((.*?)\), "(\w+)"')
_ALLOCATED = re.compile(r"(\w+) = T\.sblock_alloc_buffer\(\((.*?)\)(?:, \"(\w+)\")?\)")


@dataclass(frozen=True)
class _Block:
    """A block of a script: lines of its loop and its last store, kinds of its axes."""

    loop: int
    axes: str
    store: int


def drop_last_term(text: str) -> str | None:
    """Leave out the last iteration of the longest reduction loop."""
    lines = text.splitlines()
    reductions = [block for block in _blocks(lines) if "R" in block.axes]
    if not reductions:
        return None
    block = max(reductions, key=lambda each: (_is_sum(lines, each), max(_reduced(lines, each))))
    extents = _extents(lines[block.loop])
    dim = max((i for i, kind in enumerate(block.axes) if kind == "R"), key=lambda i: extents[i])
    return _with_extent(lines, block, dim, extents[dim] - 1)


def skip_tail(text: str) -> str | None:
    """Leave out the last iteration of the innermost spatial loop of the last block."""
    lines = text.splitlines()
    *_, block = _blocks(lines)
    extents = _extents(lines[block.loop])
    dims = [i for i, kind in enumerate(block.axes) if kind == "S" and extents[i] > 1]
    return _with_extent(lines, block, dims[-1], extents[dims[-1]] - 1) if dims else None


def shift_index(text: str) -> str | None:
    """Read the next element along the last axis of a buffer, except at its end."""
    buffers = [*_BUFFER.findall(text), *_ALLOCATED.findall(text)]
    shapes = {
        name: [int(dim) for dim in shape.split(",") if dim.strip()] for name, shape, _ in buffers
    }
    lines = text.splitlines()
    for block in sorted(_blocks(lines), key=lambda each: not _is_sum(lines, each)):
        stored = _STORE.match(lines[block.store])
        if stored is None:
            continue
        indent, buffer, indices, value = stored.groups()
        for load in re.finditer(r"\b(\w+)\[([^\[\]]+)\]", value):
            if load[1] == buffer or not shapes.get(load[1]):
                continue
            extent = shapes[load[1]][-1]
            *head, last = _split(load[2])
            if extent < 2 or not re.search(r"\bv_", last):
                continue
            shifted = f"{load[1]}[{', '.join([*head, f'T.min({last} + 1, {extent - 1})'])}]"
            new = value[: load.start()] + shifted + value[load.end() :]
            lines[block.store] = f"{indent}{buffer}[{indices}] = {new}"
            return "\n".join(lines)
    return None


def race(text: str) -> str | None:
    """Lose the sum of all terms before one, or let two iterations write one element."""
    lines = text.splitlines()
    for block in reversed(list(_blocks(lines))):
        stored = _STORE.match(lines[block.store])
        if stored is None:
            continue
        indent, buffer, indices, value = stored.groups()
        target = f"{buffer}[{indices}]"
        if "R" in block.axes and value.startswith(f"{target} + "):
            dim = max(
                (i for i, kind in enumerate(block.axes) if kind == "R"),
                key=lambda i: _extents(lines[block.loop])[i],
            )
            variable = [
                name.strip() for name in lines[block.loop + 2].split("=", maxsplit=1)[0].split(",")
            ][dim]
            term = value.removeprefix(f"{target} + ")
            middle = _extents(lines[block.loop])[dim] // 2
            lines[block.store] = (
                f"{indent}{target} = T.if_then_else({variable} == {middle}, {term}, {value})"
            )
            return "\n".join(lines)
        *head, last = _split(indices)
        if "R" not in block.axes and re.fullmatch(r"v_\w+", last):
            collided = ", ".join([*head, f"{last} // 2 * 2"])
            lines[block.store] = f"{indent}{buffer}[{collided}] = {value}"
            return "\n".join(lines)
    return None


def saturate(text: str) -> str | None:
    """Limit the terms of an integer sum, as ``pmaddubsw`` does; or values to 7 bits."""
    lines = text.splitlines()
    for block in reversed(list(_blocks(lines))):
        stored = _STORE.match(lines[block.store])
        if stored is None:
            continue
        indent, buffer, indices, value = stored.groups()
        buffers = [*_BUFFER.findall(text), *_ALLOCATED.findall(text)]
        dtype = {name: dtype or "float32" for name, _, dtype in buffers}.get(buffer, "float32")
        if dtype == "int32" and "R" in block.axes and " + " in value:
            target, _, term = value.partition(" + ")
            limited = f"T.min(T.max({term}, T.int32(-8192)), T.int32(8192))"
            lines[block.store] = f"{indent}{buffer}[{indices}] = {target} + {limited}"
            return "\n".join(lines)
        if dtype in ("int8", "uint8"):
            lines[block.store] = f"{indent}{buffer}[{indices}] = T.min({value}, T.{dtype}(127))"
            return "\n".join(lines)
    return None


def swap_outputs(text: str) -> str | None:
    """Exchange the first two outputs of equal shape."""
    signature = next(line for line in text.splitlines() if line.startswith("def "))
    parameters = [match[0] for match in re.finditer(r"\w+: T\.Buffer\([^)]*\)[^)]*\)", signature)]
    written = {match[2] for line in text.splitlines() if (match := _STORE.match(line))}
    outputs = [each for each in parameters if each.partition(":")[0] in written]
    if len(outputs) < 2:
        return None
    first, second = outputs[:2]
    swapped = signature.replace(first, "\0").replace(second, first).replace("\0", second)
    return text.replace(signature, swapped)


MUTATIONS: dict[str, Callable[[str], str | None]] = {
    "swap outputs": swap_outputs,
    "drop last term": drop_last_term,
    "saturate": saturate,
    "shift index": shift_index,
    "skip tail": skip_tail,
    "race": race,
}


def _blocks(lines: list[str]) -> Iterator[_Block]:
    for number, line in enumerate(lines):
        if not _LOOP.match(line) or "T.sblock" not in lines[number + 1]:
            continue
        axes = _AXES.search(lines[number + 2])
        if axes is None:
            continue
        kinds = axes[1] or ("S" if axes[2] == "spatial" else "R")
        indent = len(line) - len(line.lstrip())
        last = number
        for below in range(number + 1, len(lines)):
            if lines[below].strip() and len(lines[below]) - len(lines[below].lstrip()) <= indent:
                break
            if _STORE.match(lines[below]):
                last = below
        if last > number:
            yield _Block(number, kinds, last)


def _is_sum(lines: list[str], block: _Block) -> bool:
    """Return True for a sum; the maximum in a softmax may be any number."""
    return "R" in block.axes and "] + " in lines[block.store]


def _extents(loop: str) -> list[int]:
    match = _LOOP.match(loop)
    assert match is not None
    return [int(extent) for extent in match[3].split(",")]


def _reduced(lines: list[str], block: _Block) -> list[int]:
    extents = _extents(lines[block.loop])
    return [extents[i] for i, kind in enumerate(block.axes) if kind == "R"]


def _with_extent(lines: list[str], block: _Block, dim: int, extent: int) -> str | None:
    match = _LOOP.match(lines[block.loop])
    assert match is not None
    extents = _extents(lines[block.loop])
    if extent < 1:
        return None
    extents[dim] = extent
    grid = "range" if len(extents) == 1 else "T.grid"
    lines[block.loop] = f"{match[1]}for {match[2]} in {grid}({', '.join(map(str, extents))}):"
    if len(extents) == 1:
        lines[block.loop + 2] = re.sub(
            r"(T\.axis\.\w+\()\d+", rf"\g<1>{extent}", lines[block.loop + 2]
        )
    return "\n".join(lines)


def _split(indices: str) -> list[str]:
    """Split at commas outside of parentheses."""
    parts, depth = [""], 0
    for char in indices:
        depth += (char in "([") - (char in ")]")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]
