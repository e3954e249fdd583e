"""Convert exported torch programs to ONNX models, which services take; runs in a worker."""

from tuner.errors import ModelError, install_command, summary


def convert(program: str, out: str) -> None:
    """Write the program of a ``.pt2`` file to an ``.onnx`` file.

    Raises:
        ModelError: If torch cannot convert it; the message names the reason.
    """
    try:
        import torch
    except ImportError as error:
        raise ModelError(
            f"writing ONNX needs the extra torch: {install_command('torch')}", code="torch-missing"
        ) from error
    import onnx

    from tuner.networks.torch_onnx import as_onnx

    try:
        onnx.save(as_onnx(torch.export.load(program)), out)
    except ModelError:
        raise
    except Exception as error:  # of a damaged archive, of a model above 2 GB
        raise ModelError(
            f"torch cannot convert it to ONNX: {summary(error)}", code="torch-export"
        ) from error
