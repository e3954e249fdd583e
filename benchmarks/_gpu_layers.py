"""Networks of the GPU report in plain torch."""

from collections.abc import Sequence
from typing import Any

from torch import nn

# Scale of residual branches; with untrained weights their sums would overflow float16.
_BRANCH_SCALE = 0.5
_HEAD = 64


def resnet(n_blocks: Sequence[int]) -> nn.Sequential:
    """ResNet with bottlenecks (He et al., CVPR'16), with the stride in the 3x3 convolutions.

    Args:
        n_blocks: Number of blocks of each stage; (3, 4, 6, 3) make fifty layers.
    """
    layers = [_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    n_channels = 64
    for stage, n_repeats in enumerate(n_blocks):
        for index in range(n_repeats):
            stride = 2 if stage > 0 and index == 0 else 1
            layers.append(Bottleneck(n_channels, 64 << stage, stride))
            n_channels = 256 << stage
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n_channels, 1000)
    )


class Bottleneck(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Three convolutions with a shortcut; the last one has four times the channels."""

    def __init__(self, n_in: int, n_middle: int, stride: int) -> None:
        super().__init__()
        n_out = 4 * n_middle
        self.reduce = _conv(n_in, n_middle, 1)
        self.spatial = _conv(n_middle, n_middle, 3, stride)
        self.expand = _conv(n_middle, n_out, 1)
        nn.init.constant_(self.expand[1].weight, _BRANCH_SCALE)
        is_same = n_in == n_out and stride == 1
        self.shortcut = nn.Identity() if is_same else _conv(n_in, n_out, 1, stride)

    def forward(self, x: Any) -> Any:
        """Compute the block."""
        y = self.spatial(self.reduce(x).relu()).relu()
        return (self.expand(y) + self.shortcut(x)).relu()


class EncoderLayer(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Encoder layer of BERT (Devlin et al., NAACL'19), without mask and dropout."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.output = nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def forward(self, x: Any) -> Any:
        """Compute the layer on an array of shape (batch, tokens, hidden)."""
        query, key, value = (_heads(f(x)) for f in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        x = self.norm1(x + self.output(mixed.transpose(1, 2).reshape(x.shape)))
        return self.norm2(x + self.down(nn.functional.gelu(self.up(x))))


def _heads(x: Any) -> Any:
    return x.view(x.shape[0], x.shape[1], -1, _HEAD).transpose(1, 2)


def _conv(n_in: int, n_out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(n_in, n_out, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(n_out))
