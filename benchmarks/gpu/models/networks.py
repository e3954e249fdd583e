"""Networks of the flight in float16, the same in every process and of any version of torch.

Weights have eight levels of a normal distribution, and equal shapes are one draw, rolled by an even
number of rows: so libraries of hundreds of megabytes compress to a few.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.gpu.models import held_out
from benchmarks.gpu.models.held_out import RmsNorm, convolution
from benchmarks.gpu.models.sizes import FULL, HEAD, Sizes

Array = np.ndarray[Any, Any]
# Means of eight equally likely parts of a normal distribution.
LEVELS = np.array([-1.647, -0.9, -0.42, -0.13, 0.16, 0.45, 0.87, 1.617], np.float32)
_PATCH = 16
# Scale of residual branches; without it the sums of a ResNet would overflow float16.
_BRANCH_SCALE = 0.4
_NORMS = (nn.LayerNorm, RmsNorm)
# Scale of everything but weights of layers.
_SMALL = 0.1


class EncoderLayer(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Encoder layer without mask and dropout: of BERT (Devlin et al., NAACL'19), or of ViT."""

    def __init__(self, hidden: int, is_norm_first: bool = False) -> None:
        super().__init__()
        self.is_norm_first = is_norm_first
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.output = nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def forward(self, x: Any) -> Any:
        """Compute the layer on an array of shape (batch, tokens, hidden)."""
        if self.is_norm_first:
            x = x + self._attend(self.norm1(x))
            return x + self._feed(self.norm2(x))
        x = self.norm1(x + self._attend(x))
        return self.norm2(x + self._feed(x))

    def _attend(self, x: Any) -> Any:
        query, key, value = (_heads(f(x)) for f in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.output(mixed.transpose(1, 2).reshape(x.shape))

    def _feed(self, x: Any) -> Any:
        return self.down(functional.gelu(self.up(x)))


class VisionTransformer(nn.Module):  # type: ignore[misc]  # torch is not followed
    """ViT (Dosovitskiy et al., ICLR'21) with patches of 16 by 16."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden, n_patches = sizes.hidden, (sizes.image // _PATCH) ** 2
        self.patch = nn.Conv2d(3, hidden, _PATCH, _PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.position = nn.Parameter(torch.zeros(1, n_patches + 1, hidden))
        layers = (EncoderLayer(hidden, is_norm_first=True) for _ in range(sizes.n_layers))
        self.layers = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, 1000)

    def forward(self, x: Any) -> Any:
        """Compute the classes of images of shape (batch, 3, height, width)."""
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token, x], 1) + self.position
        return self.head(self.norm(self.layers(x))[:, 0])


class Bottleneck(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Block of ResNet-50 (He et al., CVPR'16), with the stride in the 3x3 convolution."""

    def __init__(self, n_in: int, n_middle: int, stride: int) -> None:
        super().__init__()
        n_out = 4 * n_middle
        self.reduce = _conv(n_in, n_middle, 1)
        self.spatial = _conv(n_middle, n_middle, 3, stride)
        self.expand = _conv(n_middle, n_out, 1)
        self.expand.scale *= _BRANCH_SCALE
        is_same = n_in == n_out and stride == 1
        self.shortcut = nn.Identity() if is_same else _conv(n_in, n_out, 1, stride)

    def forward(self, x: Any) -> Any:
        """Compute the block."""
        y = self.spatial(self.reduce(x).relu()).relu()
        return (self.expand(y) + self.shortcut(x)).relu()


class DecoderLayer(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Layer of GPT-2 on one token, with a cache of keys and values."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def forward(self, x: Any, keys: Any, values: Any) -> tuple[Any, Any, Any]:
        """Return the token of the next layer, and its own key and value."""
        query, key, value = (_heads(part) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(
            query, torch.cat([keys, key], 2), torch.cat([values, value], 2)
        )
        x = x + self.output(mixed.transpose(1, 2).reshape(x.shape))
        up = functional.gelu(self.up(self.norm2(x)), approximate="tanh")
        return x + self.down(up), key, value


class Decoder(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Step of GPT-2 (Radford et al., 2019) from one hidden state to the next."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(sizes.hidden) for _ in range(sizes.n_layers))
        self.norm = nn.LayerNorm(sizes.hidden)

    def forward(self, x: Any, *caches: Any) -> tuple[Any, ...]:
        """Return the hidden state, and the new key and value of every layer."""
        new = []
        for number, layer in enumerate(self.layers):
            x, key, value = layer(x, *caches[2 * number : 2 * number + 2])
            new += [key, value]
        return (self.norm(x), *new)


def _heads(x: Any) -> Any:
    return x.view(x.shape[0], x.shape[1], -1, HEAD).transpose(1, 2)


def _conv(n_in: int, n_out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return convolution(n_in, n_out, kernel, stride, scale=math.sqrt(2))


def _resnet(sizes: Sizes) -> nn.Sequential:
    layers = [_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    n_channels = 64
    for stage, n_repeats in enumerate(sizes.n_blocks):
        for number in range(n_repeats):
            stride = 2 if stage > 0 and number == 0 else 1
            layers.append(Bottleneck(n_channels, 64 << stage, stride))
            n_channels = 256 << stage
    head = nn.Linear(n_channels, 1000)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


_MAKERS: dict[str, Callable[[Sizes], nn.Module]] = {
    "bert-layer": lambda sizes: EncoderLayer(sizes.hidden),
    "bert-base": lambda sizes: nn.Sequential(
        *(EncoderLayer(sizes.hidden) for _ in range(sizes.n_layers))
    ),
    "resnet-50": _resnet,
    "vit-b16": VisionTransformer,
    "gpt2-step": Decoder,
    "convnext-t": held_out.convnext_t,
    "mobilenet-v2": held_out.mobilenet_v2,
    "unet": held_out.UNet,
    "llama": lambda sizes: held_out.Llama(sizes, is_step=False),
    "llama-step": lambda sizes: held_out.Llama(sizes, is_step=True),
    "efficientnet-b0": held_out.efficientnet_b0,
}


def _image(size: int) -> dict[str, tuple[int, ...]]:
    return {"x": (1, 3, size, size)}


def _tokens(width: int, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    return {"x": (1, sizes.n_tokens, width)}


def _step(width: int, n_groups: int, n_layers: int, n_cached: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a token, and of the keys and values of every layer."""
    caches = [f"{kind}{layer}" for layer in range(n_layers) for kind in "kv"]
    return {"x": (1, 1, width), **dict.fromkeys(caches, (1, n_groups, n_cached, HEAD))}


@dataclass(frozen=True)
class Network:
    """Network of batch 1; its name is a key of the makers above."""

    name: str
    sizes: Sizes = FULL

    @property
    def is_image(self) -> bool:
        """True if its input is an image: batch, channels, height, width."""
        return len(self.input_shapes["x"]) == 4

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape by input name."""
        sizes, width = self.sizes, self.sizes.llama_width
        match self.name:
            case "bert-layer" | "bert-base":
                return _tokens(sizes.hidden, sizes)
            case "llama":
                return _tokens(width, sizes)
            case "gpt2-step":
                n_heads = sizes.hidden // HEAD
                return _step(sizes.hidden, n_heads, sizes.n_layers, sizes.n_cached)
            case "llama-step":
                n_groups = max(1, width // HEAD // 4)
                return _step(width, n_groups, sizes.n_llama_layers, sizes.n_cached)
            case "unet":
                return _image(sizes.unet_image)
        return _image(sizes.image)

    def inputs(self) -> dict[str, Array]:
        """Draw inputs from a standard normal distribution, with a fixed seed."""
        rng = np.random.default_rng(0)
        return {
            name: rng.standard_normal(shape, np.float32).astype(np.float16)
            for name, shape in self.input_shapes.items()
        }

    def module(self) -> Any:
        """Create it on the CPU, ready for inference."""
        made = _MAKERS[self.name](self.sizes).eval()
        counts: Counter[tuple[int, ...]] = Counter()
        with torch.no_grad():
            for owner in made.modules():
                for kind, parameter in owner.named_parameters(recurse=False):
                    shape = tuple(parameter.shape)
                    value = _draw(shape, _scale(owner, kind), counts[shape])
                    counts[shape] += 1
                    if isinstance(owner, _NORMS) and kind == "weight":
                        value += 1
                    parameter.copy_(torch.from_numpy(value))
        return made.half()

    def export(self, path: str) -> None:
        """Write it as an ONNX file.

        TVM's importer of exported programs computes convolutions and products in float32 whatever
        the program says, and then refuses a float16 one.
        """
        inputs = self.input_shapes
        examples = tuple(torch.zeros(shape, dtype=torch.float16) for shape in inputs.values())
        outputs = ["y", *(f"new_{name}" for name in list(inputs)[1:])]
        with warnings.catch_warnings():
            # The tracing exporter needs only the package onnx; torch calls it outdated.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                self.module(), examples, path, input_names=list(inputs), output_names=outputs,
                opset_version=17, dynamo=False,
            )  # fmt: skip


def _scale(owner: nn.Module, kind: str) -> float:
    """Return the standard deviation of a parameter, which keeps the variance of activations."""
    if kind != "weight" or isinstance(owner, _NORMS):
        return _SMALL
    return float(getattr(owner, "scale", 1.0) / math.sqrt(math.prod(owner.weight.shape[1:])))


def _draw(shape: tuple[int, ...], scale: float, number: int) -> Array:
    values = _levels(math.prod(shape)).reshape(shape) * np.float32(scale)
    return np.roll(values, 4 * number, axis=0).astype(np.float16).astype(np.float32)


@cache
def _levels(size: int) -> Array:
    rng = np.random.default_rng(size)
    return np.asarray(LEVELS[rng.integers(0, len(LEVELS), size)])
