"""Import of cleaned models as Relax modules whose parameters are constants."""

import warnings
from pathlib import Path

import tvm

from tuner.engines.base import ModelFile


def import_model(model: ModelFile) -> tvm.IRModule:
    """Import a cleaned model.

    Raises:
        ModelError: If the importer does not support it; the message names the operator.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if model.format == "onnx":
            import onnx

            from tuner.engines.relax.frontend.onnx_graph import import_graph

            return import_graph(onnx.load_from_string(Path(model.path).read_bytes()))
        from tuner.engines.relax.frontend.torch_program import import_program

        return import_program(model)
