"""Outputs of a workload, computed from the sums of a contraction as they are stored."""

from collections.abc import Sequence
from typing import Any

from tvm.tirx import IndexMap

from tuner.engines.relax.triton.expressions.kernel_blocks import Block, key, substitute
from tuner.engines.relax.triton.expressions.printer import (
    Printer,
    PrintError,
    Text,
    Tile,
    element_type,
)
from tuner.engines.relax.triton.templates.contractions import Contraction, extent_of, split


def print_outputs(
    of: Contraction,
    printer: Printer,
    coordinates: tuple[Any, Any, Any],
    apart: Sequence[Block] = (),
) -> list[str]:
    """Return the lines that compute and store the outputs of a workload from the sums.

    Args:
        printer: Printer of the place where the sums are known.
        coordinates: Batch, row and column of the sums, by the variables of its tiles.
        apart: Outputs that do not follow from the sums.

    Raises:
        PrintError: If an output is not computed from the sums one by one.
    """
    resolved = of.resolved(of.elements(*coordinates))
    at = [substitute(each, resolved, of.variables) for each in of.block.indices]
    everywhere = frozenset(key(tile.variable) for tile in printer.tiles)
    sums = Text("acc", of.total, everywhere)
    printer.known = {key(of.block.buffer): (sums, at)}
    if of.beside is not None:
        resolved = of.beside.resolved(of.beside.elements(*coordinates))
        variables = of.beside.variables
        there = [substitute(each, resolved, variables) for each in of.beside.block.indices]
        printer.known[key(of.beside.block.buffer)] = (sums._replace(code="beside"), there)
    stores = []
    for output in (each for each in of.blocks.outputs if each not in apart):
        values = _origin(of, output, at)
        variables = [axis.variable for axis in output.axes]
        text, written = sums, at
        if output is not of.block:
            text = printer.value(output.value, values, variables, ())
            written = [substitute(each, values, variables) for each in output.indices]
        mask = printer.mask_of(everywhere)
        guard = f", mask={mask}" if mask else ""
        dtype = element_type(str(output.buffer.dtype))
        pointer = printer.arguments.name(output.buffer)
        value = text.code if text.tiles else f"tl.full((), {text.code}, {dtype})"
        where = printer.offset(output.buffer, written)
        # An axis of one element is not in the offset, but its tile may have more.
        beside = printer.mask_of(everywhere - where.tiles)
        at_tile = f"{where.code} + tl.where({beside}, 0, 0)" if beside else where.code
        stores.append(f"tl.store({pointer} + {at_tile}, ({value}).to({dtype}){guard})")
    return [*printer.lines, *stores]


def print_copy(output: Block, printer: Printer, tile: Tile) -> tuple[list[str], str]:
    """Return the lines that compute elements of an output, and the line that stores them.

    Args:
        output: Output that follows from arguments alone.
        tile: Numbers of the elements.

    Raises:
        PrintError: If it has no form in Triton.
    """
    values = split(output.axes, tile.variable)
    variables = [axis.variable for axis in output.axes]
    text = printer.value(output.value, values, variables, ())
    at = [substitute(each, values, variables) for each in output.indices]
    pointer = printer.arguments.name(output.buffer)
    where = printer.offset(output.buffer, at)
    dtype = element_type(str(output.buffer.dtype))
    if not text.tiles or not where.tiles:
        raise PrintError("an output is one number")
    guard = f", mask={tile.mask}" if tile.mask else ""
    return printer.lines, f"tl.store({pointer} + {where.code}, ({text.code}).to({dtype}){guard})"


def _origin(of: Contraction, output: Block, at: Sequence[Any]) -> dict[int, Any]:
    """Return the axes of an output where it reads some sums."""
    if output is of.block:
        return {}
    read = of.blocks.reads(of.block.buffer, output.value, {}, [])
    variables = [axis.variable for axis in output.axes]
    n_sums = extent_of((*of.batches, *of.rows, *of.columns))
    if read is None or extent_of(output.axes) != n_sums:
        raise PrintError("outputs are not computed from the sums one by one")
    values = Block(None, tuple(read), None, output.axes).at(at)
    if values is not None:
        return values
    try:
        inverse = IndexMap(variables, read, None).inverse([axis.extent for axis in output.axes])
        origin = inverse.map_indices(list(at))
    except Exception as error:  # TVM's errors have no common class
        raise PrintError("outputs are not computed from the sums one by one") from error
    return {key(each): value for each, value in zip(variables, origin, strict=True)}
