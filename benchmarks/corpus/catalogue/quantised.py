"""Entries that ONNX Runtime quantises."""

from benchmarks.corpus.entries import Entry, Method, Quantised

_METHODS: tuple[tuple[str, Method], ...] = (
    ("torchvision-mobilenet_v2", "qdq"),
    ("zoo-resnet-18", "qdq"),
    ("smp-unet-resnet18", "qdq"),
    ("torchvision-squeezenet1_1", "qoperator"),
    ("bert", "dynamic"),
    ("gpt2", "dynamic"),
    ("whisper", "dynamic"),
    ("lstm-tagger", "dynamic"),
)
ENTRIES = tuple(
    Entry(f"{entry}-{method}", "quantised", Quantised(entry, method)) for entry, method in _METHODS
)
