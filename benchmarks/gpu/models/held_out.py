"""Networks that no constant of the tuner was fitted to: of images, and a Llama."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.gpu.models.sizes import HEAD, Sizes

# Scale of what is added to a shortcut.
_BRANCH_SCALE = 0.4
_ROTARY_BASE = 10_000.0
# Expansion, channels, blocks, stride and kernel of each stage.
_MOBILENET = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3),
    (6, 160, 3, 2, 3), (6, 320, 1, 1, 3),
)  # fmt: skip
_EFFICIENTNET = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip
_CONVNEXT, _UNET = (96, 192, 384, 768), (32, 64, 128, 256, 512)


def convolution(
    n_in: int, n_out: int, kernel: int, stride: int = 1, groups: int = 1, scale: float = 1.0
) -> nn.Conv2d:
    """Make a convolution that a batch norm was folded into; sqrt(2) is for a ReLU behind it."""
    conv = nn.Conv2d(n_in, n_out, kernel, stride, kernel // 2, groups=groups)
    conv.scale = scale
    return conv


class _Gate(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Squeeze and excitation (Hu et al., CVPR'18)."""

    def __init__(self, n_channels: int, n_middle: int) -> None:
        super().__init__()
        self.reduce = convolution(n_channels, n_middle, 1)
        self.expand = convolution(n_middle, n_channels, 1)

    def forward(self, x: Any) -> Any:
        pooled = functional.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.expand(functional.silu(self.reduce(pooled))))


class _Inverted(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Inverted residual of MobileNetV2 (Sandler et al., CVPR'18), or of EfficientNet."""

    def __init__(
        self, n_in: int, n_out: int, expansion: int, stride: int, kernel: int, *, is_gated: bool
    ) -> None:
        super().__init__()
        n_middle, root = n_in * expansion, math.sqrt(2)
        act = nn.SiLU if is_gated else nn.ReLU6
        parts = [] if expansion == 1 else [convolution(n_in, n_middle, 1, scale=root), act()]
        parts += [convolution(n_middle, n_middle, kernel, stride, n_middle, root), act()]
        parts += [_Gate(n_middle, n_in // 4)] if is_gated else []
        self.is_residual = stride == 1 and n_in == n_out
        scale = _BRANCH_SCALE if self.is_residual else 1.0
        self.body = nn.Sequential(*parts, convolution(n_middle, n_out, 1, scale=scale))

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        return x + y if self.is_residual else y


def _inverted(stages: Any, sizes: Sizes, *, is_gated: bool) -> nn.Sequential:
    root, act = math.sqrt(2), nn.SiLU if is_gated else nn.ReLU6
    layers, n_in = [convolution(3, 32, 3, 2, scale=root), act()], 32
    for expansion, n_out, n_blocks, stride, kernel in stages[: sizes.n_stages]:
        for number in range(n_blocks):
            step = stride if number == 0 else 1
            layers.append(_Inverted(n_in, n_out, expansion, step, kernel, is_gated=is_gated))
            n_in = n_out
    layers += [convolution(n_in, 1280, 1, scale=root), act(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1280, 1000))


def mobilenet_v2(sizes: Sizes) -> nn.Sequential:
    """Make MobileNetV2 (Sandler et al., CVPR'18)."""
    return _inverted(_MOBILENET, sizes, is_gated=False)


def efficientnet_b0(sizes: Sizes) -> nn.Sequential:
    """Make EfficientNet-B0 (Tan and Le, ICML'19)."""
    return _inverted(_EFFICIENTNET, sizes, is_gated=True)


class _ChannelNorm(nn.LayerNorm):  # type: ignore[misc]  # torch is not followed
    """LayerNorm over the channels of an image."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _ConvNextBlock(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Block of ConvNeXt, with its scale of each channel."""

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.spatial = convolution(n_channels, n_channels, 7, groups=n_channels)
        self.norm = nn.LayerNorm(n_channels, eps=1e-6)
        self.up, self.down = (
            nn.Linear(n_channels, 4 * n_channels), nn.Linear(4 * n_channels, n_channels)
        )  # fmt: skip
        self.scales = nn.Parameter(torch.zeros(n_channels, 1, 1))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.spatial(x).permute(0, 2, 3, 1))
        y = self.down(functional.gelu(self.up(y)))
        return x + self.scales * y.permute(0, 3, 1, 2)


def convnext_t(sizes: Sizes) -> nn.Sequential:
    """Make ConvNeXt-T (Liu et al., CVPR'22)."""
    layers = [nn.Conv2d(3, _CONVNEXT[0], 4, 4), _ChannelNorm(_CONVNEXT[0], eps=1e-6)]
    for number, n_blocks in enumerate(sizes.n_convnext_blocks):
        n_channels = _CONVNEXT[number]
        if number > 0:
            n_before = _CONVNEXT[number - 1]
            layers += [_ChannelNorm(n_before, eps=1e-6), nn.Conv2d(n_before, n_channels, 2, 2)]
        layers += [_ConvNextBlock(n_channels) for _ in range(n_blocks)]
    head = (nn.LayerNorm(n_channels, eps=1e-6), nn.Linear(n_channels, 1000))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head)


class UNet(nn.Module):  # type: ignore[misc]  # torch is not followed
    """U-Net (Ronneberger et al., MICCAI'15) of half its width, with padding, for four classes."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        widths = _UNET[: sizes.n_unet_levels]
        self.down = nn.ModuleList(
            _twice(n_in, n_out) for n_in, n_out in zip((3, *widths), widths, strict=False)
        )
        self.up, self.merge = nn.ModuleList(), nn.ModuleList()
        for n_in, n_out in zip(widths[:0:-1], widths[-2::-1], strict=True):
            up = nn.ConvTranspose2d(n_in, n_out, 2, 2)
            # Every output is a sum over the channels alone.
            up.scale = math.sqrt(4 * n_out / n_in)
            self.up.append(up)
            self.merge.append(_twice(2 * n_out, n_out))
        self.head = nn.Conv2d(widths[0], 4, 1)

    def forward(self, x: Any) -> Any:
        """Compute the scores of each position."""
        kept = []
        for number, level in enumerate(self.down):
            x = level(x if number == 0 else functional.max_pool2d(x, 2))
            kept.append(x)
        for up, merge, skip in zip(self.up, self.merge, kept[-2::-1], strict=True):
            x = merge(torch.cat([skip, up(x)], 1))
        return self.head(x)


def _twice(n_in: int, n_out: int) -> nn.Sequential:
    root = math.sqrt(2)
    first, second = (convolution(n, n_out, 3, scale=root) for n in (n_in, n_out))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())


class RmsNorm(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Norm by the root of the mean square, in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Any) -> Any:
        """Normalise the last axis; torch's own kernel has no form in ONNX."""
        if not torch.onnx.is_in_onnx_export():
            return functional.rms_norm(x, self.weight.shape, self.weight, 1e-5)
        precise = x.float()
        square = precise.pow(2).mean(-1, keepdim=True)
        return (precise * torch.rsqrt(square + 1e-5)).to(x.dtype) * self.weight


class _LlamaLayer(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Layer of a Llama with grouped keys, rotary positions and a gated perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.n_groups = max(1, width // HEAD // 4)
        inner, of_keys = width * 11 // 4, self.n_groups * HEAD
        self.query, self.output = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, of_keys, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)

    def forward(self, x: Any, rotation: Any, cache: Any) -> tuple[Any, Any, Any]:
        """Return the hidden states, and the keys and values of these tokens."""
        normed = self.norm1(x)
        query, key, value = (_heads(f(normed)) for f in (self.query, self.key, self.value))
        query, key = _rotate(query, *rotation), _rotate(key, *rotation)
        keys, values = key, value
        if cache is not None:
            keys, values = torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2)
        mixed = self._mix(query, keys, values, is_causal=cache is None)
        x = x + self.output(mixed.transpose(1, 2).reshape(x.shape))
        normed = self.norm2(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed)), key, value

    def _mix(self, query: Any, keys: Any, values: Any, *, is_causal: bool) -> Any:
        attend = functional.scaled_dot_product_attention
        if not torch.onnx.is_in_onnx_export():
            return attend(query, keys, values, is_causal=is_causal, enable_gqa=True)
        n_shared = query.shape[1] // self.n_groups
        keys, values = (each.repeat_interleave(n_shared, 1) for each in (keys, values))
        return attend(query, keys, values, is_causal=is_causal)


class Llama(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Layers of a Llama (Touvron et al., 2023) on hidden states.

    Args:
        sizes: Sizes of all networks.
        is_step: True for one token behind a cache, False for tokens from the first on.
    """

    def __init__(self, sizes: Sizes, *, is_step: bool) -> None:
        super().__init__()
        self.is_step = is_step
        width = sizes.llama_width
        self.layers = nn.ModuleList(_LlamaLayer(width) for _ in range(sizes.n_llama_layers))
        self.norm = RmsNorm(width)
        positions = range(sizes.n_cached, sizes.n_cached + 1) if is_step else range(sizes.n_tokens)
        frequencies = _ROTARY_BASE ** (-torch.arange(0, HEAD, 2) / HEAD)
        angles = torch.outer(torch.tensor(positions).float(), frequencies).repeat(1, 2)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())

    def forward(self, x: Any, *caches: Any) -> Any:
        """Return the hidden states, and in a step the new key and value of every layer."""
        new = []
        for number, layer in enumerate(self.layers):
            cache = caches[2 * number : 2 * number + 2] if self.is_step else None
            x, key, value = layer(x, (self.cosines, self.sines), cache)
            new += [key, value]
        x = self.norm(x)
        return (x, *new) if self.is_step else x


def _heads(x: Any) -> Any:
    return x.view(x.shape[0], x.shape[1], -1, HEAD).transpose(1, 2)


def _rotate(x: Any, cosines: Any, sines: Any) -> Any:
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat([-second, first], -1) * sines
