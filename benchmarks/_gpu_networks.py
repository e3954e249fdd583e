"""Networks that a GPU is compared on; every process creates the same ones.

Torch is imported when a network is created, because the report is written without it.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

RESNET, BERT = "resnet-50", "bert-layer"
INPUT = "x"
_SEED = 0


@dataclass(frozen=True)
class Sizes:
    """Sizes of the networks; tiny ones rehearse the steps.

    Attributes:
        image: Height and width of an image.
        n_blocks: Number of blocks of each stage of the ResNet.
        hidden: Width of the encoder layer, a multiple of 64.
        n_tokens: Number of tokens of the encoder layer.
    """

    image: int = 224
    n_blocks: tuple[int, ...] = (3, 4, 6, 3)
    hidden: int = 768
    n_tokens: int = 128


FULL = Sizes()
TINY = Sizes(image=32, n_blocks=(1, 1), hidden=64, n_tokens=16)


@dataclass(frozen=True)
class Network:
    """Network of batch 1 with random weights; ``name`` is one of the two above."""

    name: str
    dtype: str = "float16"
    sizes: Sizes = FULL

    @property
    def is_image(self) -> bool:
        """True if its input is an image: batch, channels, height, width."""
        return self.name == RESNET

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of its only input."""
        if self.is_image:
            return (1, 3, self.sizes.image, self.sizes.image)
        return (1, self.sizes.n_tokens, self.sizes.hidden)

    def inputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """Draw its input from a standard normal distribution, with a fixed seed."""
        rng = np.random.default_rng(_SEED)
        return {INPUT: rng.standard_normal(self.input_shape).astype(self.dtype)}

    def module(self) -> Any:
        """Create it on the CPU, ready for inference."""
        import torch

        from benchmarks import _gpu_layers as layers

        torch.manual_seed(_SEED)
        sizes = self.sizes
        made = layers.resnet(sizes.n_blocks) if self.is_image else layers.EncoderLayer(sizes.hidden)
        return made.eval().to(getattr(torch, self.dtype))


def export(network: Network, path: str) -> None:
    """Write a network as an ONNX file; call this in a worker.

    TVM's importer of exported programs computes convolutions and products in float32 whatever the
    program says, and then refuses a float16 one.
    """
    import torch

    example = torch.zeros(network.input_shape, dtype=getattr(torch, network.dtype))
    with warnings.catch_warnings():
        # The tracing exporter needs only the package onnx; torch calls it outdated.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network.module(),
            (example,),
            path,
            input_names=[INPUT],
            output_names=["y"],
            opset_version=17,
            dynamo=False,
        )
