"""Networks whose curves are recorded: four of convolutions, two depthwise, two with attention.

Two are built here from their published shapes, with random weights, because no package that the
benchmarks need ships them.
"""

from pathlib import Path

import torch
from torch import nn

from benchmarks.models import LIGHT, light_model
from tuner.jobs.requests import ModelRequest

NETWORKS = (
    *("squeezenet", "bvlc_alexnet", "zfnet512", "zoo:resnet-18"),
    *("shufflenet", "zoo:mobilenet", "mbconv", "encoder"),
)


def request_of(name: str, folder: Path) -> ModelRequest:
    """Return the request of a network by its name; other names are model files or ``zoo:NAME``."""
    if name in LIGHT:
        return ModelRequest(light_model(name), random_weights=0)
    made = {"mbconv": _mbconv, "encoder": _encoder}
    if name not in made:
        return ModelRequest(name)
    path = folder / f"{name}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        module, example = made[name]()
        torch.onnx.export(module.eval(), (example,), path, dynamo=True, external_data=False)
    return ModelRequest(str(path))


class _InvertedResidual(nn.Module):  # type: ignore[misc]  # torch is not checked
    """Expansion, depthwise convolution, squeeze-and-excite, projection (EfficientNet, ICML'19)."""

    def __init__(self, n_in: int, n_out: int, size: int, stride: int, growth: int) -> None:
        super().__init__()
        n_inner = n_in * growth
        self.is_residual = stride == 1 and n_in == n_out
        self.expand = nn.Sequential(
            nn.Conv2d(n_in, n_inner, 1, bias=False), nn.BatchNorm2d(n_inner), nn.SiLU()
        )
        self.filter = nn.Sequential(
            nn.Conv2d(n_inner, n_inner, size, stride, size // 2, groups=n_inner, bias=False),
            nn.BatchNorm2d(n_inner),
            nn.SiLU(),
        )
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(n_inner, n_in // 4, 1),
            nn.SiLU(),
            nn.Conv2d(n_in // 4, n_inner, 1),
            nn.Sigmoid(),
        )
        self.project = nn.Sequential(
            nn.Conv2d(n_inner, n_out, 1, bias=False), nn.BatchNorm2d(n_out)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        filtered = self.filter(self.expand(x))
        projected: torch.Tensor = self.project(filtered * self.weigh(filtered))
        return x + projected if self.is_residual else projected


def _mbconv() -> tuple[nn.Module, torch.Tensor]:
    """Return EfficientNet-B0 without repetitions: one block of each of its stages."""
    stages = (
        *((32, 16, 3, 1, 1), (16, 24, 3, 2, 6), (24, 40, 5, 2, 6), (40, 80, 3, 2, 6)),
        *((80, 112, 5, 1, 6), (112, 192, 5, 2, 6), (192, 320, 3, 1, 6)),
    )
    stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU())
    head = nn.Sequential(
        nn.Conv2d(320, 1280, 1),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1280, 1000),
    )
    blocks = [_InvertedResidual(*stage) for stage in stages]
    return nn.Sequential(stem, *blocks, head), torch.randn(1, 3, 224, 224)


def _encoder() -> tuple[nn.Module, torch.Tensor]:
    """Return a layer of BERT-base (NAACL'19) at a length of 128."""
    layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True)
    return layer, torch.randn(1, 128, 768)
