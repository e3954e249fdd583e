"""Convert exported torch programs to ONNX models, which services take; runs in a worker."""

import onnx

from tuner.engines.relax.frontend.torch_agreement import check_agreement
from tuner.networks.torch.programs import load_program
from tuner.networks.torch.torch_onnx import as_onnx, exporter


def convert(program: str, out: str) -> None:
    """Write the program of a ``.pt2`` file to an ``.onnx`` file.

    Raises:
        ModelError: If torch cannot convert it, or to another function; the message names the
            reason.
    """
    with exporter():
        exported = load_program(program)
        model = as_onnx(exported)
        check_agreement(exported, model)
        onnx.save(model, out)
