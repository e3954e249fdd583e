"""Small architectures with unusual structure: scans, Fourier layers, pooled tokens, queries."""

from typing import Any

from benchmarks.corpus.entries import Entry, Exported, Kind, Tensor

_HUB = "benchmarks.corpus.architectures.hub"
_N_WORDS = 1000
_TOKENS = {"input_ids": Tensor((1, 64), _N_WORDS)}
_MASKED = {**_TOKENS, "attention_mask": Tensor((1, 64), 2)}
_SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
}
_SERIES = {
    "past_values": Tensor((1, 31)),
    "past_time_features": Tensor((1, 31, 2)),
    "past_observed_mask": Tensor((1, 31)),
    "future_values": Tensor((1, 8)),
    "future_time_features": Tensor((1, 8, 2)),
}


def _entry(
    name: str, kind: Kind, architecture: str, inputs: dict[str, Tensor], **arguments: Any
) -> Entry:
    """Return an entry; ``architecture`` is its class without the ending of the configuration."""
    model, _, config = architecture.partition("/")
    source = Exported(
        f"{_HUB}:transformer",
        inputs,
        {"model": model, "config": f"{config}Config", **arguments},
        "transformers",
    )
    return Entry(name, kind, source)


def _pixels(size: int) -> dict[str, Tensor]:
    return {"pixel_values": Tensor((1, 3, size, size))}


_TEXTS = (
    _entry(
        "mamba",
        "language model",
        "MambaForCausalLM/Mamba",
        {"input_ids": Tensor((1, 16), _N_WORDS)},
        vocab_size=_N_WORDS,
        hidden_size=64,
        num_hidden_layers=2,
        state_size=8,
    ),
    _entry(
        "funnel",
        "text encoder",
        "FunnelModel/Funnel",
        _MASKED,
        vocab_size=_N_WORDS,
        d_model=128,
        n_head=4,
        d_head=32,
        d_inner=256,
        block_sizes=[1, 1],
    ),
    _entry(
        "fnet",
        "text encoder",
        "FNetModel/FNet",
        _TOKENS,
        vocab_size=_N_WORDS,
        hidden_size=128,
        num_hidden_layers=2,
        intermediate_size=256,
    ),
    _entry(
        "canine",
        "text encoder",
        "CanineModel/Canine",
        _MASKED,
        **_SMALL,
        num_hash_buckets=500,
        local_transformer_stride=16,
        downsampling_rate=4,
    ),
    _entry(
        "gemma3",
        "language model",
        "Gemma3ForCausalLM/Gemma3Text",
        _TOKENS,
        **_SMALL,
        vocab_size=_N_WORDS,
        num_key_value_heads=2,
        head_dim=32,
        sliding_window=16,
    ),
)
_OTHERS = (
    _entry(
        "focalnet",
        "classification",
        "FocalNetModel/FocalNet",
        _pixels(64),
        image_size=64,
        embed_dim=24,
        depths=[1, 1, 1, 1],
    ),
    _entry(
        "rt-detr",
        "detection",
        "RTDetrForObjectDetection/RTDetr",
        _pixels(128),
        d_model=64,
        encoder_hidden_dim=64,
        encoder_in_channels=[64, 128, 256],
        feat_strides=[8, 16, 32],
        num_queries=20,
        decoder_layers=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        decoder_in_channels=[64, 64, 64],
        anchor_image_size=[128, 128],
        backbone_config={
            "model_type": "rt_detr_resnet",
            "hidden_sizes": [32, 64, 128, 256],
            "embedding_size": 32,
            "depths": [1, 1, 1, 1],
            "layer_type": "basic",
            "out_features": ["stage2", "stage3", "stage4"],
        },
    ),
    _entry(
        "mask2former",
        "segmentation",
        "Mask2FormerForUniversalSegmentation/Mask2Former",
        _pixels(128),
        backbone_config={
            "model_type": "swin",
            "image_size": 128,
            "embed_dim": 24,
            "depths": [1, 1, 1, 1],
            "num_heads": [1, 2, 4, 8],
            "window_size": 4,
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
        },
        feature_size=64,
        mask_feature_size=64,
        hidden_dim=64,
        encoder_feedforward_dim=128,
        dim_feedforward=128,
        encoder_layers=2,
        decoder_layers=3,
        num_attention_heads=4,
        num_queries=20,
    ),
    _entry(
        "univnet",
        "speech",
        "UnivNetModel/UnivNet",
        {"input_features": Tensor((1, 20, 100)), "noise_sequence": Tensor((1, 20, 64))},
    ),
    _entry(
        "time-series-transformer",
        "time series",
        "TimeSeriesTransformerModel/TimeSeriesTransformer",
        _SERIES,
        prediction_length=8,
        context_length=24,
        lags_sequence=[1, 3, 7],
        num_time_features=2,
        d_model=32,
    ),
    Entry(
        "timm-xcit_nano_12_p16_224",
        "classification",
        Exported(
            f"{_HUB}:timm_model",
            {"x": Tensor((1, 3, 224, 224))},
            {"name": "xcit_nano_12_p16_224"},
            "timm",
        ),
    ),
)

ENTRIES = (*_TEXTS, *_OTHERS)
