"""Image and video architectures of torchvision, timm, segmentation-models-pytorch, transformers."""

from collections.abc import Mapping
from typing import Any

from benchmarks.corpus.entries import Entry, Exported, Kind, Shape, Tensor

_HUB = "benchmarks.corpus.architectures.hub"


def _torchvision(
    name: str, kind: Kind = "classification", size: int = 224, **arguments: Any
) -> Entry:
    source = Exported(
        f"{_HUB}:torchvision_model",
        {"image": Tensor((1, 3, size, size))},
        {"name": name, **arguments},
        "torchvision",
    )
    return Entry(f"torchvision-{name}", kind, source)


def _timm(name: str, kind: Kind = "classification", size: int = 224, **arguments: Any) -> Entry:
    source = Exported(
        f"{_HUB}:timm_model",
        {"x": Tensor((1, 3, size, size))},
        {"name": name, **arguments},
        "timm",
    )
    return Entry(f"timm-{name}", kind, source)


def _segmentation(architecture: str, encoder: str) -> Entry:
    source = Exported(
        f"{_HUB}:segmentation_model",
        {"x": Tensor((1, 3, 256, 256))},
        {"architecture": architecture, "encoder": encoder},
        "segmentation-models-pytorch",
    )
    return Entry(f"smp-{architecture.lower()}-{encoder}", "segmentation", source)


def _video(name: str, shape: Shape) -> Entry:
    source = Exported(
        f"{_HUB}:torchvision_model", {"image": Tensor(shape)}, {"name": name}, "torchvision"
    )
    return Entry(f"torchvision-{name}", "video", source)


def _transformer(
    name: str,
    kind: Kind,
    model: str,
    config: str,
    inputs: Mapping[str, Tensor],
    **arguments: Any,
) -> Entry:
    source = Exported(
        f"{_HUB}:transformer",
        inputs,
        {"model": model, "config": config, **arguments},
        "transformers",
    )
    return Entry(name, kind, source)


def _pixels(size: int, n_channels: int = 3) -> dict[str, Tensor]:
    return {"pixel_values": Tensor((1, n_channels, size, size))}


_SMALL = {
    "hidden_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 768,
}

_TORCHVISION = (
    _torchvision("efficientnet_b0"),
    _torchvision("mobilenet_v2"),
    _torchvision("mobilenet_v3_small"),
    _torchvision("mnasnet0_5"),
    _torchvision("regnet_y_400mf"),
    _torchvision("shufflenet_v2_x1_0"),
    _torchvision("squeezenet1_1"),
    _torchvision("googlenet", init_weights=False),
    _torchvision("resnext50_32x4d"),
    _torchvision("convnext_tiny"),
    _torchvision("vit_b_32"),
    _torchvision("vit_b_16"),
    _torchvision("swin_t"),
    _torchvision("swin_v2_t"),
    _torchvision("maxvit_t"),
    _torchvision("deeplabv3_mobilenet_v3_large", "segmentation", 256),
    _torchvision("lraspp_mobilenet_v3_large", "segmentation", 256),
    _torchvision("ssdlite320_mobilenet_v3_large", "detection", 320),
    _torchvision("retinanet_resnet50_fpn", "detection", 320),
    _video("r2plus1d_18", (1, 3, 8, 112, 112)),
    Entry(
        "torchvision-raft_small",
        "dense prediction",
        Exported(
            f"{_HUB}:optical_flow",
            {"first": Tensor((1, 3, 128, 128)), "second": Tensor((1, 3, 128, 128))},
            {"n_updates": 3},
            "torchvision",
        ),
    ),
)
_TIMM = (
    _timm("ghostnet_100"),
    _timm("mixer_s32_224"),
    _timm("mobilevit_xs", size=256),
    _timm("edgenext_xx_small", size=256),
    _timm("efficientformer_l1"),
    _timm("fastvit_t8", size=256),
    _timm("repvgg_a0"),
    _timm("levit_128s"),
    _timm("poolformer_s12"),
    _timm("hrnet_w18_small"),
    _timm("lcnet_050"),
    _timm("mobileone_s0"),
    _timm("efficientvit_b0"),
    _timm("gcvit_xxtiny"),
    _timm("visformer_tiny"),
    _timm("tnt_s_patch16_224"),
    _timm("halonet26t", size=256),
    _timm("lambda_resnet26rpt_256", size=256),
)
_SEGMENTATION = (
    _segmentation("Unet", "resnet18"),
    _segmentation("FPN", "mobilenet_v2"),
    _segmentation("PSPNet", "resnet18"),
    _segmentation("DeepLabV3Plus", "mobilenet_v2"),
    _segmentation("Segformer", "resnet18"),
)
_TRANSFORMERS = (
    _transformer("dinov2", "classification", "Dinov2Model", "Dinov2Config", _pixels(224), **_SMALL),
    _transformer(
        "segformer",
        "segmentation",
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        _pixels(256),
    ),
    _transformer(
        "yolos",
        "detection",
        "YolosForObjectDetection",
        "YolosConfig",
        _pixels(224),
        image_size=[224, 224],
        num_detection_tokens=50,
        **_SMALL,
    ),
    _transformer(
        "detr",
        "detection",
        "DetrForObjectDetection",
        "DetrConfig",
        _pixels(256),
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config={
            "model_type": "resnet",
            "out_features": ["stage4"],
            "layer_type": "basic",
            "depths": [2, 2, 2, 2],
            "hidden_sizes": [64, 128, 256, 512],
            "embedding_size": 64,
        },
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        num_queries=50,
    ),
    _transformer(
        "depth-anything",
        "dense prediction",
        "DepthAnythingForDepthEstimation",
        "DepthAnythingConfig",
        _pixels(224),
        backbone_config={
            "model_type": "dinov2",
            "image_size": 224,
            "patch_size": 14,
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
            "reshape_hidden_states": False,
            "apply_layernorm": True,
            **_SMALL,
        },
        reassemble_hidden_size=192,
        neck_hidden_sizes=[24, 48, 96, 192],
        fusion_hidden_size=32,
    ),
    _transformer(
        "swin2sr",
        "super-resolution",
        "Swin2SRForImageSuperResolution",
        "Swin2SRConfig",
        _pixels(64),
        image_size=64,
        embed_dim=60,
        depths=[2, 2],
        num_heads=[6, 6],
        upsampler="pixelshuffledirect",
    ),
    _transformer(
        "sam-encoder",
        "segmentation",
        "SamVisionModel",
        "SamVisionConfig",
        _pixels(256),
        image_size=256,
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=3,
        mlp_dim=768,
        window_size=7,
        global_attn_indexes=[1, 3],
        output_channels=64,
    ),
    _transformer(
        "clip",
        "multimodal",
        "CLIPModel",
        "CLIPConfig",
        {**_pixels(224), "input_ids": Tensor((1, 77), 49408)},
        text_config={
            "num_hidden_layers": 4,
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_attention_heads": 4,
        },
        vision_config={
            "num_hidden_layers": 4,
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_attention_heads": 4,
        },
    ),
)

ENTRIES = (*_TORCHVISION, *_TIMM, *_SEGMENTATION, *_TRANSFORMERS)
