"""Small architectures of the corpus's own, for kinds that no package covers."""

from typing import Any

from benchmarks.corpus.entries import Entry, Exported, Kind, Shape, Tensor

_QUICK = ("espcn",)


def _entry(
    name: str,
    kind: Kind,
    factory: str,
    shape: Shape,
    below: int | None = None,
    **arguments: Any,
) -> Entry:
    source = Exported(
        f"benchmarks.corpus.architectures.{factory}", {"x": Tensor(shape, below)}, arguments
    )
    return Entry(name, kind, source, is_quick=name in _QUICK)


_IMAGES = (
    _entry("espcn", "super-resolution", "images:espcn", (1, 1, 128, 128)),
    _entry("fsrcnn", "super-resolution", "images:fsrcnn", (1, 1, 128, 128)),
    _entry("edsr", "super-resolution", "images:edsr", (1, 3, 64, 64)),
    _entry("style-transfer", "dense prediction", "images:style_transfer", (1, 3, 128, 128)),
    _entry("centernet", "detection", "images:centernet", (1, 3, 256, 256)),
    _entry("pose", "detection", "images:pose", (1, 3, 256, 192)),
    _entry("dcgan", "dense prediction", "images:dcgan", (1, 100, 1, 1)),
    _entry("crnn", "ocr", "images:crnn", (1, 1, 32, 160)),
    _entry("mobile-face", "classification", "images:mobile_face", (1, 3, 112, 112)),
)
_SOUNDS = (
    _entry("conv-tasnet", "audio", "sounds:conv_tasnet", (1, 1, 16000)),
    _entry("m5", "audio", "sounds:m5", (1, 1, 16000)),
    _entry("deep-speech", "speech", "sounds:deep_speech", (1, 1, 161, 200)),
    _entry("keyword-spotting", "speech", "sounds:keyword_spotting", (1, 1, 49, 40)),
    _entry("wavenet", "audio", "sounds:wavenet", (1, 64, 2000)),
    _entry("noise-suppression", "audio", "sounds:noise_suppression", (1, 100, 42)),
    _entry("demucs", "audio", "sounds:demucs", (1, 2, 16384)),
)
_SEQUENCES = (
    _entry("lstm-tagger", "recurrent", "sequences:lstm_tagger", (1, 32), 2000),
    _entry("lstm-language-model", "recurrent", "sequences:lstm_language_model", (1, 64), 8192),
    _entry("gru-classifier", "recurrent", "sequences:gru_classifier", (1, 64), 8192),
    _entry("rnn-classifier", "recurrent", "sequences:rnn_classifier", (1, 64), 8192),
    _entry("text-cnn", "classification", "sequences:text_cnn", (1, 128), 8192),
    _entry("tcn", "time series", "sequences:tcn", (1, 8, 256)),
    _entry("n-beats", "time series", "sequences:n_beats", (1, 120)),
    _entry("torch-transformer", "text encoder", "sequences:transformer_encoder", (1, 128), 8192),
    _entry("beam-search-step", "text decoder", "sequences:beam_search_step", (4, 256)),
)
_TABLES = (
    _entry("dlrm", "recommendation", "tables:dlrm", (64, 26), 1000),
    _entry("deep-fm", "recommendation", "tables:deep_fm", (64, 39), 1000),
    _entry("wide-and-deep", "recommendation", "tables:wide_and_deep", (64, 39), 1000),
    _entry("two-tower", "recommendation", "tables:two_tower", (64, 20), 1000),
    _entry("sasrec", "recommendation", "tables:sasrec", (1, 50), 1000),
    _entry("deep-cross", "recommendation", "tables:deep_cross", (64, 64)),
    _entry("ft-transformer", "tabular", "tables:ft_transformer", (32, 24)),
    _entry("tabular-resnet", "tabular", "tables:tabular_resnet", (32, 64)),
    _entry("tabnet", "tabular", "tables:tabnet", (32, 64)),
    _entry("autoencoder", "tabular", "tables:autoencoder", (32, 640)),
)

_ARCHITECTURES = "benchmarks.corpus.architectures"
_GRAPH = {"nodes": Tensor((200, 16)), "edges": Tensor((2, 800), 200)}
_PAIRS = {"frames": Tensor((1, 20, 48)), "tokens": Tensor((1, 4), 64)}
_SEVERAL_INPUTS = (
    Entry("transducer", "speech", Exported(f"{_ARCHITECTURES}.sequences:transducer", _PAIRS)),
    *(
        Entry(name, "graph", Exported(f"{_ARCHITECTURES}.graphs:{name.replace('-', '_')}", _GRAPH))
        for name in ("graph-convolution", "graph-attention")
    ),
)

ENTRIES = (*_IMAGES, *_SOUNDS, *_SEQUENCES, *_TABLES, *_SEVERAL_INPUTS)
