"""Programs are sent to services as ONNX models with the same results."""

from pathlib import Path

import pytest
import torch

from tuner.errors import ModelError
from tuner.jit.torch.torch_onnx import convert

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore")]


class Angles(torch.nn.Module):  # type: ignore[misc]
    """Angles, of which torch's formula in ONNX has some in the wrong quadrant."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the angles of a tensor and its reverse."""
        return torch.atan2(x, x.flip(0))


def test_another_function_is_not_sent(tmp_path: Path) -> None:
    """The result of the first call may not tell, whose inputs need not be those of later calls."""
    program, out = tmp_path / "function.pt2", tmp_path / "function.onnx"
    torch.export.save(torch.export.export(Angles(), (torch.ones(8),)), program)

    with pytest.raises(ModelError, match="computes another 'atan2'"):
        convert(str(program), str(out))

    assert not out.exists()
