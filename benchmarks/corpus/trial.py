"""Process that takes one network through all stages: load and split, build, compare and time.

    python -m benchmarks.corpus.trial NAME MODEL FOLDER RESULT [untimed]

The result is rewritten after every stage, so that a process that is killed leaves what it reached.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

import tuner
from benchmarks.corpus.catalogue import entry_named
from benchmarks.corpus.entries import Entry, Light
from benchmarks.corpus.results import Result, without_times, write
from benchmarks.workers import open_worker
from tuner.compile.bench.agreement import OutputCheck
from tuner.compile.bench.bench_model import draw_inputs
from tuner.compile.bench.comparison import Comparison
from tuner.compile.build_library import build_library
from tuner.context import open_context
from tuner.errors import RequestError, TunerError, summary
from tuner.jobs.preparation import prepare
from tuner.jobs.requests import ModelRequest
from tuner.library import manifest

_N_TURNS = 5
_SEED = 0


def run(entry: Entry, model: str, folder: Path, file: Path, *, is_timed: bool = True) -> None:
    """Run all stages; an error of the tuner ends them and is part of the result.

    Args:
        entry: The network.
        model: Its file, or its name in the zoo.
        folder: Empty folder for records and the library.
        is_timed: False to compare outputs only.
    """
    result = Result(entry.name)

    def store() -> None:
        write(file, result if is_timed else without_times(result))

    def reach(stage: str) -> None:
        result.stage = stage
        store()

    try:
        reach("extract")
        _build(result, entry, model, folder, lambda: reach("build"))
        reach("compare")
        _compare(result, entry, model, folder, is_timed=is_timed)
        reach("done")
    except TunerError as error:
        result.error = summary(error, max_chars=400)
        store()


def _build(
    result: Result, entry: Entry, model: str, folder: Path, on_extracted: Callable[[], None]
) -> None:
    """Split a network into tasks, and build a library without records."""
    data = folder / "data"
    data.mkdir()
    seed = _SEED if isinstance(entry.source, Light) else None
    request = ModelRequest(model, inputs=entry.shapes, random_weights=seed)
    start = time.perf_counter()
    with (
        open_context(f"sqlite:///{data}/records.db", data) as context,
        open_worker(context.settings) as worker,
    ):
        prepared = prepare(request, context, worker, must_run=False)
        extracted = time.perf_counter()
        result.extract_secs = extracted - start
        result.n_tasks = len(prepared.tasks)
        result.n_calls = prepared.n_kernel_calls
        on_extracted()
        built = build_library(context, [prepared], worker, folder / "library")
        result.build_secs = time.perf_counter() - extracted
        result.n_fallbacks = built.n_fallbacks


def _compare(result: Result, entry: Entry, model: str, folder: Path, *, is_timed: bool) -> None:
    """Compare outputs and latency with those of the peers."""
    library = folder / "library"
    # Two networks that are timed at once would disturb each other.
    with FileLock(folder.parent / "timing.lock"):
        comparison = tuner.evaluate(
            library,
            model=None if model.startswith("zoo:") else model,
            against="all" if is_timed else "onnxruntime",
            arrays=fixed_inputs(entry, library),
            n_turns=_N_TURNS if is_timed else 1,
            seed=_SEED,
            data_dir=folder / "data",
        )
    _keep(result, comparison)


def fixed_inputs(entry: Entry, library: Path) -> dict[str, Any] | None:
    """Return inputs with the values of the entry; None if all can be drawn."""
    if not entry.values:
        return None
    arrays = draw_inputs(manifest.read(library).programs[0].inputs, _SEED)
    for name, value in entry.values.items():
        if name in arrays:
            arrays[name] = np.full_like(arrays[name], value)
    return arrays


def _keep(result: Result, comparison: Comparison) -> None:
    """Copy what the page shows.

    Raises:
        RequestError: If ONNX Runtime could not be compared with.
    """
    peers = {peer.name: peer for peer in comparison.peers}
    if "onnxruntime" not in peers:
        reasons = {peer.name: peer.reason for peer in comparison.skipped}
        raise RequestError(f"ONNX Runtime: {reasons.get('onnxruntime', 'not compared')}")
    reference = peers["onnxruntime"]
    result.agrees = reference.agrees
    result.is_exact = reference.agrees and reference.n_near_ties > 0
    result.worst_error = reference.worst
    result.is_degenerate = comparison.degenerate
    result.is_disturbed = comparison.is_disturbed
    result.library_secs = comparison.library_secs
    result.peer_secs = {name: peer.median_secs for name, peer in peers.items()}
    wrong = [output for output in reference.outputs if not output.agrees]
    if wrong:
        result.error = (
            f"{len(wrong)} of {len(reference.outputs)} outputs differ from those of ONNX "
            f"Runtime: {wrong[0].name}, {_difference(wrong[0])}"
        )


def _difference(output: OutputCheck) -> str:
    if output.problem:
        return output.problem
    if output.n_not_finite:
        return f"{output.n_not_finite} elements are NaN or infinite on one side"
    return (
        f"{output.n_differing} of {output.n_elements} elements, the worst by "
        f"{output.worst:.3g} times its tolerance"
    )


def main(arguments: list[str]) -> None:
    """Run the network of the command line."""
    name, model, folder, file, *others = arguments
    run(entry_named(name), model, Path(folder), Path(file), is_timed=not others)


if __name__ == "__main__":
    main(sys.argv[1:])
