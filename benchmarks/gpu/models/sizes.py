"""Sizes of the networks of the flight."""

from dataclasses import dataclass

# Width of a head of attention.
HEAD = 64


@dataclass(frozen=True)
class Sizes:
    """Sizes of the networks; tiny ones rehearse the flight.

    Attributes:
        hidden: Width of transformers, a multiple of 64.
        n_layers: Number of layers of transformers.
        n_tokens: Number of tokens of BERT and of the Llama.
        n_cached: Number of tokens in the cache of a step.
        image: Height and width of an image.
        n_blocks: Number of blocks of each stage of the ResNet.
        llama_width: Width of the Llama, a multiple of 64.
        n_convnext_blocks: Number of blocks of each stage of ConvNeXt.
        n_stages: Number of stages of networks of inverted residuals.
        unet_image: Height and width of an image of the U-Net.
        n_unet_levels: Number of its resolutions.
    """

    hidden: int = 768
    n_layers: int = 12
    n_tokens: int = 128
    n_cached: int = 512
    image: int = 224
    n_blocks: tuple[int, ...] = (3, 4, 6, 3)
    llama_width: int = 1024
    n_llama_layers: int = 4
    n_convnext_blocks: tuple[int, ...] = (3, 3, 9, 3)
    n_stages: int = 7
    unet_image: int = 256
    n_unet_levels: int = 5


FULL = Sizes()
TINY = Sizes(
    hidden=64, n_layers=1, n_tokens=16, n_cached=16, image=32, n_blocks=(1, 1), llama_width=128,
    n_llama_layers=1, n_convnext_blocks=(1, 1), n_stages=2, unet_image=32, n_unet_levels=2,
)  # fmt: skip
