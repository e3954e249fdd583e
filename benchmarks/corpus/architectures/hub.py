"""Architectures of torchvision, timm, segmentation-models-pytorch and transformers by name."""

import importlib
from typing import Any

import torch

#: Operators that torchvision describes when it is imported and that its library would define. Its
#: wheel is compiled for another build of torch, so the library is not loaded.
_OPERATORS = (
    "nms",
    "qnms",
    "roi_align",
    "_roi_align_backward",
    "roi_pool",
    "_roi_pool_backward",
    "ps_roi_align",
    "_ps_roi_align_backward",
    "ps_roi_pool",
    "_ps_roi_pool_backward",
    "deform_conv2d",
    "_deform_conv2d_backward",
)
_library = torch.library.Library("torchvision", "DEF")
for _name in _OPERATORS:
    _library.define(f"{_name}(Tensor x) -> Tensor")


class _Heads(torch.nn.Module):
    """A detector without its post-processing, whose outputs have no fixed shapes."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone = detector.backbone
        self.head = detector.head

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        features = list(self.backbone(image).values())
        return tuple(self.head(features).values())


class _Mask(torch.nn.Module):
    """A segmentation network that returns its main output alone."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: torch.Tensor) -> Any:
        return self.network(image)["out"]


class _OpticalFlow(torch.nn.Module):
    """RAFT with a fixed number of updates, which returns the last flow."""

    def __init__(self, network: Any, n_updates: int) -> None:
        super().__init__()
        self.network = network
        self.n_updates = n_updates

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> Any:
        return self.network(first, second, num_flow_updates=self.n_updates)[-1]


class _FirstOutput(torch.nn.Module):
    """A transformer that takes tensors by name and returns its main output alone."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> Any:
        outputs = self.model(**inputs)
        return outputs if isinstance(outputs, torch.Tensor) else outputs.to_tuple()[0]


def torchvision_model(name: str, **arguments: Any) -> torch.nn.Module:
    """Return a model of torchvision; of a detector, its backbone and its heads."""
    models = importlib.import_module("torchvision.models")
    detects = hasattr(models.detection, name)
    segments = hasattr(models.segmentation, name)
    if detects or segments:
        arguments["weights_backbone"] = None
    model: torch.nn.Module = models.get_model(name, weights=None, **arguments)
    if detects:
        return _Heads(model)
    return _Mask(model) if segments else model


def optical_flow(n_updates: int) -> torch.nn.Module:
    """Return the small RAFT of torchvision."""
    models = importlib.import_module("torchvision.models")
    return _OpticalFlow(models.get_model("raft_small", weights=None), n_updates)


def timm_model(name: str, **arguments: Any) -> torch.nn.Module:
    """Return a model of timm, in the form that it is deployed in."""
    timm = importlib.import_module("timm")
    model: torch.nn.Module = timm.create_model(name, pretrained=False, **arguments)
    layers = importlib.import_module("timm.utils.model")
    return model if layers is None else layers.reparameterize_model(model)


def segmentation_model(architecture: str, encoder: str) -> torch.nn.Module:
    """Return a model of segmentation-models-pytorch."""
    package = importlib.import_module("segmentation_models_pytorch")
    model: torch.nn.Module = getattr(package, architecture)(encoder, encoder_weights=None)
    return model


def transformer(model: str, config: str, **arguments: Any) -> torch.nn.Module:
    """Return a model of transformers, built from a configuration.

    Args:
        model: Class of the model.
        config: Class of the configuration.
        **arguments: Fields of the configuration.
    """
    transformers = importlib.import_module("transformers")
    configuration = getattr(transformers, config)(**arguments)
    if hasattr(configuration, "use_cache"):
        configuration.use_cache = False
    return _FirstOutput(getattr(transformers, model)(configuration))
