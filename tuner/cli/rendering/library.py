"""A library as text and as JSON: what its manifest says."""

import ctypes
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from rich.text import Text

from tuner.cli.console import print_line, stdout_console
from tuner.cli.rendering.grid import Column, Grid
from tuner.devices.target_matching import kind_named
from tuner.formatting import built_from, milliseconds, short_name, size, told_apart, tuned_summary
from tuner.library.buckets import Buckets
from tuner.library.manifest import Inputs, Manifest
from tuner.library.processors import refusal


def contents_as_json(manifest: Manifest) -> dict[str, Any]:
    """Return the programs, subgraphs and files of a library as plain data."""
    return {
        "estimated_secs": manifest.estimated_secs,
        "tuned": len(manifest.subgraphs) - manifest.n_fallbacks,
        "fallbacks": manifest.n_fallbacks,
        "programs": [
            {
                "inputs": program.inputs,
                "outputs": manifest.outputs_of(program),
                "estimated_secs": manifest.estimate(program),
            }
            for program in manifest.programs
        ],
        "buckets": asdict(manifest.buckets) if manifest.buckets else None,
        "subgraphs": [vars(subgraph) for subgraph in manifest.subgraphs],
        "tail": asdict(manifest.tail) if manifest.tail else None,
        "files": dict(manifest.files),
    }


def library_as_json(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Return what ``--json`` prints of a library."""
    return {
        "library": str(folder),
        "version": manifest.version,
        "model": manifest.model_name,
        "source": vars(manifest.source),
        "target": manifest.target,
        "device": dict(manifest.device),
        "compiler": dict(manifest.compiler),
        "engine": manifest.engine,
        "machine": manifest.machine,
        "features": manifest.features,
        "refusal": _refusal(manifest),
        "outputs": manifest.outputs,
        **contents_as_json(manifest),
        "n_bytes": _sizes(folder, manifest),
    }


def _refusal(manifest: Manifest) -> str:
    """Return why this machine cannot run a library; empty if it can as far as is known here."""
    reason = refusal(manifest.machine, manifest.features)
    if reason or kind_named(manifest.target) != "cuda":
        return reason
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return f"it is for {manifest.device.get('name', 'CUDA')}, and there is no NVIDIA driver"
    return ""


def show_library(folder: Path, manifest: Manifest) -> None:
    """Print a library: what it computes, where it runs, and what it was built from."""
    source, sha256, seed = astuple(manifest.source)
    if sha256 and source.startswith(sha256):  # the name that a service keeps the file under
        source = f"uploaded {Path(source).suffix} file, sha256 {sha256[:12]}"
    versions = {**manifest.device, **manifest.compiler}
    built_by = [manifest.engine, *(f"{n} {versions[n]}" for n in _VERSIONS if n in versions)]
    reason = _refusal(manifest)
    sizes = [f"{name} {size(n_bytes)}" for name, n_bytes in _sizes(folder, manifest).items()]
    for name, value in (
        ("model", f"{source}, seed {seed} of random weights" if seed is not None else source),
        ("inputs", _shown(manifest.inputs, manifest.buckets)),
        ("outputs", _shown(manifest.outputs_of(manifest.programs[0]), manifest.buckets)),
        ("target", manifest.target),
        ("device", str(manifest.device.get("name", ""))),
        ("code", ", ".join([manifest.machine, *manifest.features])),
        ("runs here", f"no: {reason}" if reason else "yes"),
        ("built by", ", ".join(built_by)),
        ("files", ", ".join(sizes)),
    ):
        if value:
            print_line(f"{name:10} {value}")
    stdout_console().print(coverage(manifest))
    print_line(summary(manifest))
    show_programs(manifest)


# Versions that a manifest names, among the facts of the device and of the compiler.
_VERSIONS = ("tvm", "tvm_ffi", "llvm", "linker")


def _sizes(folder: Path, manifest: Manifest) -> dict[str, int | None]:
    """Return the bytes of each file; None for a missing one."""
    paths = {name: folder / name for name in manifest.files}
    return {name: path.stat().st_size if path.is_file() else None for name, path in paths.items()}


def _shown(tensors: Inputs, buckets: Buckets | None = None) -> str:
    """Return tensors as text; the sizes of dynamic dimensions are the names of these."""
    names = buckets.names() if buckets else {}
    texts = []
    for tensor, (shape, dtype) in tensors.items():
        sizes = ["?" if size < 0 else str(size) for size in shape]
        sizes = [names.get((tensor, axis), size) for axis, size in enumerate(sizes)]
        texts.append(f"{tensor} {dtype} {'x'.join(sizes) or 'scalar'}")
    return ", ".join(texts)


def summary(manifest: Manifest) -> str:
    """Return how many subgraphs are tuned as text, and the estimated latency if it is known."""
    return tuned_summary(len(manifest.subgraphs), manifest.n_fallbacks, manifest.estimated_secs)


def coverage(manifest: Manifest) -> Grid:
    """Render the subgraphs of a library and the records that they were built from."""
    table = Grid(
        Column("Workload", rank=1),
        Column("Name", "name"),
        Column("Calls", "number"),
        Column("Built from"),
        Column("Latency (ms)", "number"),
        title="Coverage",
    )
    subgraphs = manifest.subgraphs
    names = told_apart([each.name for each in subgraphs], [each.workload for each in subgraphs])
    for subgraph, name in zip(subgraphs, names, strict=True):
        source = built_from(subgraph.record, subgraph.variant)
        table.add(
            short_name(subgraph.workload),
            name,
            str(subgraph.n_calls),
            Text(source, style="yellow" if subgraph.record is None else ""),
            milliseconds(subgraph.latency),
        )
    return table


def show_programs(manifest: Manifest) -> None:
    """Print the programs of a library if there are several, its buckets and its tail."""
    for program in manifest.programs if len(manifest.programs) > 1 else ():
        estimate = manifest.estimate(program)
        latency = f", estimated {milliseconds(estimate)} ms" if estimate is not None else ""
        tensors = f"{_shown(program.inputs)} -> {_shown(manifest.outputs_of(program))}"
        print_line(f"  program {program.entry}: {tensors}{latency}")
    for note in manifest.buckets.notes() if manifest.buckets else ():
        print_line(f"  {note}")
    if manifest.tail is not None:
        print_line(f"note: {manifest.tail.note}")
