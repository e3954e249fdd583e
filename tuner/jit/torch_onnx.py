"""Convert exported torch programs to ONNX models, which services take; runs in a worker."""

import onnx

from tuner.networks.torch_onnx import as_onnx, exporter


def convert(program: str, out: str) -> None:
    """Write the program of a ``.pt2`` file to an ``.onnx`` file.

    Raises:
        ModelError: If torch cannot convert it; the message names the reason.
    """
    with exporter() as torch:
        model = as_onnx(torch.export.load(program))
        onnx.save(model, out)
