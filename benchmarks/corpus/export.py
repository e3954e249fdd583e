"""Process that writes the ONNX files of entries, so that torch and its packages stay apart.

    python -m benchmarks.corpus.export FOLDER PACKAGES NAME...

It prints a JSON line for each entry, with the reason if it failed.
"""

import contextlib
import importlib
import inspect
import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from benchmarks.corpus.catalogue import entry_named
from benchmarks.corpus.entries import Entry, Exported, Quantised
from benchmarks.corpus.files import is_made, mark_made, model_file

_SEED = 0
_N_CALIBRATION = 4


def export(source: Exported, file: Path) -> None:
    """Export an architecture with seeded weights and fixed shapes."""
    import torch

    torch.manual_seed(_SEED)
    # Its fused operators have no counterpart in ONNX.
    torch.backends.mha.set_fastpath_enabled(False)
    module, _, factory = source.factory.partition(":")
    model = getattr(importlib.import_module(module), factory)(**source.arguments).eval()
    inputs = {
        name: torch.randn(tensor.shape)
        if tensor.below is None
        else torch.randint(tensor.below, tensor.shape)
        for name, tensor in source.inputs.items()
    }
    by_name = inspect.getfullargspec(type(model).forward).varkw is not None
    with torch.no_grad():
        torch.onnx.export(
            model,
            () if by_name else tuple(inputs.values()),
            file,
            kwargs=inputs if by_name else {},
            input_names=list(inputs),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def quantise(source: Quantised, original: Path, file: Path) -> None:
    """Quantise a network, calibrated on random inputs."""
    import numpy as np
    import onnxruntime
    from onnxruntime import quantization

    if source.method == "dynamic":
        quantization.quantize_dynamic(original, file, weight_type=quantization.QuantType.QInt8)
        return
    session = onnxruntime.InferenceSession(original, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(_SEED)
    inputs = iter(
        [
            {
                given.name: rng.random(given.shape).astype(np.float32)
                for given in session.get_inputs()
            }
            for _ in range(_N_CALIBRATION)
        ]
    )

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]  # untyped package
        """The inputs of calibration."""

        def get_next(self) -> dict[str, Any] | None:
            """Return the next inputs, or None after the last ones."""
            return next(inputs, None)

    quantization.quantize_static(
        original,
        file,
        Reader(),
        quant_format=quantization.QuantFormat["QDQ" if source.method == "qdq" else "QOperator"],
        per_channel=source.method == "qdq",
    )


def make(folder: Path, entry: Entry) -> None:
    """Write the file of an entry and its stamp."""
    file = model_file(folder, entry)
    partial = file.with_suffix(f".{os.getpid()}.partial")
    try:
        if isinstance(entry.source, Exported):
            export(entry.source, partial)
        elif isinstance(entry.source, Quantised):
            quantise(entry.source, model_file(folder, entry_named(entry.source.entry)), partial)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    mark_made(folder, entry)


def main(folder: Path, packages: str, names: list[str]) -> None:
    """Write the files that are missing, and print a line for each."""
    # Last, so that the packages of the environment win.
    sys.path.append(packages)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    for name in names:
        entry = entry_named(name)
        error = None
        if not is_made(folder, entry):
            try:
                # What packages print would mix with the results.
                with contextlib.redirect_stdout(sys.stderr):
                    make(folder, entry)
            except Exception as caught:
                root = caught.__cause__ or caught
                error = f"{type(root).__name__}: {next(iter(str(root).strip().splitlines()), '')}"
        print(json.dumps({"name": name, "error": error}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
