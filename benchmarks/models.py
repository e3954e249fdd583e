"""Models that benchmarks run on."""

from pathlib import Path

import onnx

LIGHT = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)


def light_model(name: str) -> str:
    """Return the path of one of the nine models that the onnx package ships."""
    return str(
        Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"
    )
