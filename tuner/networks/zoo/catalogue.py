"""The zoo networks by name."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass

import onnx

from tuner.errors import ModelError
from tuner.networks.weights import randomise_weights
from tuner.networks.zoo import inception, mlp, mobilenet, resnet, squeezenet
from tuner.networks.zoo.builder import GraphBuilder, Value
from tuner.networks.zoo.options import Options, parse_options

_DEFAULTS = Options()


@dataclass(frozen=True)
class Entry:
    """A network: its layers between input and logits, its defaults and its minimum size."""

    layers: Callable[[GraphBuilder, Value, Options], Value]
    defaults: Options = _DEFAULTS
    min_image: int = 32
    n_channels: int = 3
    n_frames: int = 0


ENTRIES = {
    "inception_v3": Entry(inception.inception_v3, Options(image=299), min_image=75),
    "mlp": Entry(mlp.mlp, Options(layout="NCHW", image=28, classes=10), min_image=1, n_channels=1),
    "mobilenet": Entry(mobilenet.mobilenet),
    "resnet-18": Entry(resnet.resnet18),
    "resnet-34": Entry(resnet.resnet34),
    "resnet-50": Entry(resnet.resnet50),
    "resnet3d-18": Entry(resnet.resnet18, Options(image=112), n_frames=16),
    "squeezenet_v1.1": Entry(squeezenet.squeezenet),
}


def build(query: str) -> onnx.ModelProto:
    """Build ``NAME?option=value&...``; the same query gives the same model in any process.

    The input is ``data``. Its shape is (N, H, W, C), or (N, C, H, W) with ``layout=NCHW``; for
    videos a D of 16 frames comes before H. Internally the model is NCHW, as usual in ONNX.

    Raises:
        ModelError: If the name or an option is unknown.
    """
    name, _, text = query.partition("?")
    entry = ENTRIES.get(name)
    if entry is None:
        close = difflib.get_close_matches(name, ENTRIES, n=1)
        hint = f"did you mean zoo:{close[0]}? " if close else ""
        raise ModelError(
            f"no zoo network {name!r}: {hint}available: {', '.join(ENTRIES)}", code="no-model"
        )
    options = parse_options(name, text, entry.defaults, entry.min_image)
    graph = GraphBuilder(options.dtype, n_spatial=3 if entry.n_frames else 2)
    spatial = (entry.n_frames,) * bool(entry.n_frames) + (options.image,) * 2
    # The order of pixels is irrelevant to an MLP, so it has only one layout.
    channels_last = options.layout == "NHWC" and entry.layers is not mlp.mlp
    if channels_last:
        shape = (options.batch, *spatial, entry.n_channels)
        data = graph.to_channels_first("data", entry.n_channels)
    else:
        shape = (options.batch, entry.n_channels, *spatial)
        data = Value("data", entry.n_channels)
    model = graph.model(shape, entry.layers(graph, data, options))
    return randomise_weights(model, options.seed)
