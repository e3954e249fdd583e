"""Workloads of small networks of many families, on which tests interpret the kernels of GPUs.

    PYTHONPATH=PACKAGES python -m benchmarks.gpu.models.small_networks FILE

PACKAGES is a folder with transformers and torchvision. No tile divides the sizes.
"""

import lzma
import sys
import tempfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from benchmarks.corpus.architectures.hub import transformer
from tuner.engines.relax import worker
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.triton import variants
from tuner.networks.worker import load_model

# Interpreting a larger one takes seconds.
_MAX_FLOP = 4e5
_Make = Callable[[], nn.Module]
_EAGER = {"attn_implementation": "eager"}
_BERT = {
    **_EAGER,
    **{"hidden_size": 36, "num_hidden_layers": 1, "num_attention_heads": 3},
    **{"intermediate_size": 52, "vocab_size": 61},
}
_LLAMA = {**_BERT, "hidden_size": 48, "num_attention_heads": 6, "intermediate_size": 76}
_VIT = {**_BERT, "image_size": 32, "patch_size": 8}


class _Residual(nn.Module):
    """The block of diffusion models."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(4, n_in), nn.GroupNorm(4, n_out)])
        sizes = [(n_in, n_out), (n_out, n_out)]
        self.convolutions = nn.ModuleList([nn.Conv2d(*each, 3, padding=1) for each in sizes])
        self.shortcut = nn.Conv2d(n_in, n_out, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the branch to the shortcut."""
        branch = x
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            branch = convolution(functional.silu(norm(branch)))
        return self.shortcut(x) + branch


class _UNet(nn.Module):
    """One level down, and up again."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 10, 3, padding=1), nn.BatchNorm2d(10))
        self.inner = nn.Conv2d(10, 18, 3, padding=1)
        self.up = nn.ConvTranspose2d(18, 10, 2, stride=2)
        self.last = nn.Conv2d(20, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Segment an image."""
        first = functional.leaky_relu(self.first(x), 0.1)
        inner = functional.relu(self.inner(functional.max_pool2d(first, 2)))
        return torch.sigmoid(self.last(torch.cat([first, self.up(inner)], 1)))


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(36, 3, 52, activation="gelu", batch_first=True)
    return nn.Sequential(layer)


def _decoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 20, 3, padding=1), _Residual(20, 12), nn.Upsample(scale_factor=2),
        nn.Conv2d(12, 3, 3, padding=1),
    )  # fmt: skip


def _hub(name: str, **arguments: object) -> _Make:
    return partial(transformer, f"{name}Model", f"{name}Config", **arguments)


def _tokens(n: int) -> torch.Tensor:
    return torch.arange(3, 3 + n)[None]


def _image(n: int = 32, n_channels: int = 3) -> torch.Tensor:
    return torch.randn(1, n_channels, n, n)


_HALF, _BRAIN, _WIDE = torch.float16, torch.bfloat16, torch.float32
_NETWORKS: dict[str, tuple[_Make, torch.Tensor, torch.dtype]] = {
    "bert": (_hub("Bert", **_BERT), _tokens(11), _HALF),
    "distilbert": (
        _hub("DistilBert", dim=36, hidden_dim=52, n_heads=3, n_layers=1, vocab_size=61, **_EAGER),
        *(_tokens(9), _HALF),
    ),
    "roberta": (_hub("Roberta", **_BERT), _tokens(13), _WIDE),
    "albert": (_hub("Albert", embedding_size=20, **_BERT), _tokens(11), _BRAIN),
    "electra": (_hub("Electra", embedding_size=20, **_BERT), _tokens(9), _HALF),
    "gpt2": (
        _hub("GPT2", n_embd=36, n_layer=1, n_head=3, vocab_size=61, **_EAGER),
        *(_tokens(11), _HALF),
    ),
    "llama": (_hub("Llama", num_key_value_heads=2, **_LLAMA), _tokens(10), _BRAIN),
    "mistral": (_hub("Mistral", num_key_value_heads=3, **_LLAMA), _tokens(10), _HALF),
    "qwen2": (_hub("Qwen2", num_key_value_heads=1, **_LLAMA), _tokens(7), _HALF),
    "opt": (_hub("OPT", ffn_dim=52, word_embed_proj_dim=36, **_BERT), _tokens(11), _WIDE),
    "vit": (_hub("ViT", **_VIT), _image(), _HALF),
    "deit": (_hub("DeiT", **_VIT), _image(), _BRAIN),
    "clip": (partial(transformer, "CLIPVisionModel", "CLIPVisionConfig", **_VIT), _image(), _WIDE),
    "swin": (
        _hub("Swin", image_size=32, embed_dim=12, depths=[2, 1], num_heads=[2, 3], window_size=4),
        *(_image(), _WIDE),
    ),
    "convnext": (
        _hub("ConvNext", hidden_sizes=[12, 20], depths=[1, 1], num_stages=2),
        *(_image(), _HALF),
    ),
    "resnet": (
        _hub("ResNet", embedding_size=12, hidden_sizes=[20, 36], depths=[1, 1]),
        *(_image(), _HALF),
    ),
    "regnet": (
        _hub("RegNet", embedding_size=12, hidden_sizes=[16, 32], depths=[1, 1], groups_width=8),
        *(_image(), _WIDE),
    ),
    "mobilenet": (_hub("MobileNetV2", image_size=32, depth_multiplier=0.35), _image(), _HALF),
    "segformer": (
        _hub(
            "Segformer", hidden_sizes=[12, 20], depths=[1, 1], num_encoder_blocks=2,
            num_attention_heads=[1, 2], sr_ratios=[4, 2], patch_sizes=[7, 3], strides=[4, 2],
        ),
        *(_image(), _HALF),
    ),
    "wav2vec2": (
        _hub(
            "Wav2Vec2", conv_dim=(16, 20), conv_stride=(5, 2), conv_kernel=(10, 3),
            num_feat_extract_layers=2, num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=4, **_BERT,
        ),
        *(torch.randn(1, 400), _HALF),
    ),
    "encoder": (_encoder, torch.randn(1, 11, 36), _HALF),
    "decoder": (_decoder, _image(6, 4), _HALF),
    "unet": (_UNet, _image(12), _HALF),
}  # fmt: skip


def extract(name: str) -> list[bytes]:
    """Return the IR of the workloads of a network that a template has kernels for."""
    make, data, dtype = _NETWORKS[name]
    torch.manual_seed(0)
    model = make().eval().to(dtype)
    given = data.to(dtype) if data.is_floating_point() else data
    # Networks of transformers take their input by name.
    kinds = {(2, False): "input_ids", (2, True): "input_values", (4, True): "pixel_values"}
    is_own = isinstance(model, (nn.Sequential, _UNet))
    args, named = (
        ((given,), {}) if is_own else ((), {kinds[data.dim(), data.is_floating_point()]: given})
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "m.pt2"
        with torch.no_grad():
            torch.export.save(torch.export.export(model, args, named, strict=False), file)
        cleaned = load_model(str(file), {}, None, folder).file
        tasks = worker.extract(cleaned, worker.describe_target("cuda:sm_90").spec).tasks
    return [
        task.ir
        for task in tasks
        if task.flop <= _MAX_FLOP and variants.fits(workloads.load(task.ir)["main"])
    ]


def main() -> None:
    """Write a line for each workload: the network that has it first, and its IR."""
    lines: dict[str, bytes] = {}
    for name in _NETWORKS:
        extracted = extract(name)
        new = {workloads.name_of(ir): ir for ir in extracted}
        added = [key for key in new if key not in lines]
        lines |= {key: b" ".join([name.encode(), zlib.decompress(new[key])]) for key in added}
        Path(sys.argv[1]).write_bytes(lzma.compress(b"\n".join(lines.values()), preset=9))
        print(f"{name}: {len(extracted)} workloads, {len(added)} new", flush=True)


if __name__ == "__main__":
    main()
