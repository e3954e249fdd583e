"""Sequence architectures: recurrent ones, convolutions, transformers, a step of beam search."""

import torch
from torch import Tensor, nn


class _Recurrent(nn.Module):
    """Embedding, recurrent layers and a linear layer on every step, or on the last one."""

    def __init__(self, layers: nn.Module, n_words: int, n_out: int, *, on_last: bool) -> None:
        super().__init__()
        n_in = int(getattr(layers, "input_size"))  # noqa: B009  nn.Module has no such field
        width = int(getattr(layers, "hidden_size"))  # noqa: B009
        self.words = nn.Embedding(n_words, n_in)
        self.layers = layers
        self.out = nn.Linear(width * (2 if getattr(layers, "bidirectional") else 1), n_out)  # noqa: B009
        self.on_last = on_last

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layers(self.words(x))[0]
        out: Tensor = self.out(hidden[:, -1] if self.on_last else hidden)
        return out


def lstm_tagger() -> nn.Module:
    """Return a bidirectional LSTM that tags words."""
    layers = nn.LSTM(64, 64, bidirectional=True, batch_first=True)
    return _Recurrent(layers, 2000, 17, on_last=False)


def lstm_language_model() -> nn.Module:
    """Return a language model of two LSTM layers."""
    layers = nn.LSTM(256, 256, num_layers=2, batch_first=True)
    return _Recurrent(layers, 8192, 8192, on_last=False)


def gru_classifier() -> nn.Module:
    """Return a classifier of text with a bidirectional GRU."""
    layers = nn.GRU(128, 128, bidirectional=True, batch_first=True)
    return _Recurrent(layers, 8192, 5, on_last=True)


def rnn_classifier() -> nn.Module:
    """Return a classifier of text with an Elman network."""
    return _Recurrent(nn.RNN(128, 128, batch_first=True), 8192, 5, on_last=True)


class TextCnn(nn.Module):
    """A convolutional classifier of text (Kim 2014)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(8192, 128)
        self.filters = nn.ModuleList(nn.Conv1d(128, 100, width) for width in (3, 4, 5))
        self.out = nn.Linear(300, 6)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.words(x).transpose(1, 2)
        maxima = [layer(hidden).relu().amax(2) for layer in self.filters]
        out: Tensor = self.out(torch.cat(maxima, 1))
        return out


class _Causal(nn.Module):
    def __init__(self, n_in: int, n_out: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.first = nn.Conv1d(n_in, n_out, 3, dilation=dilation)
        self.second = nn.Conv1d(n_out, n_out, 3, dilation=dilation)
        self.skip = nn.Conv1d(n_in, n_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(nn.functional.pad(x, (self.pad, 0))).relu()
        hidden = self.second(nn.functional.pad(hidden, (self.pad, 0))).relu()
        out: Tensor = (hidden + self.skip(x)).relu()
        return out


def tcn() -> nn.Module:
    """Return a temporal convolutional network (Bai et al. 2018)."""
    return nn.Sequential(
        _Causal(8, 64, 1), _Causal(64, 64, 2), _Causal(64, 64, 4), nn.Conv1d(64, 8, 1)
    )


class NBeats(nn.Module):
    """A small N-BEATS (Oreshkin et al. 2020): blocks explain the input, forecasts add up."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(120, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 144)
            )
            for _ in range(6)
        )

    def forward(self, x: Tensor) -> Tensor:
        forecast = torch.zeros_like(x[:, :24])
        for block in self.blocks:
            past, future = block(x).split([120, 24], 1)
            x = x - past
            forecast = forecast + future
        return forecast


def transformer_encoder() -> nn.Module:
    """Return torch's own transformer encoder with GELU."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, activation="gelu", batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(8192, 256), encoder)


class BeamSearchStep(nn.Module):
    """A step of beam search over 2,048 words: logits of all beams, and the next beams."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Linear(256, 2048)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = self.logits(x).log_softmax(-1)
        best, places = scores.flatten().topk(4)
        return best, places // 2048, places % 2048


class Transducer(nn.Module):
    """A joint network over every pair of a frame and a token (Graves 2012)."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.GRU(48, 48, batch_first=True, bidirectional=True)
        self.embedding = nn.Embedding(64, 48)
        self.tokens = nn.LSTM(48, 96, num_layers=2, batch_first=True)
        self.classes = nn.Linear(96, 64)

    def forward(self, frames: Tensor, tokens: Tensor) -> Tensor:
        left = self.frames(frames)[0].unsqueeze(2)
        right = self.tokens(self.embedding(tokens))[0].unsqueeze(1)
        classes: Tensor = self.classes(torch.tanh(left + right)).log_softmax(-1)
        return classes
