"""Audio architectures: separation, classification, recognition, suppression of noise."""

import itertools

import torch
from torch import Tensor, nn


class ConvTasNet(nn.Module):
    """A small Conv-TasNet (Luo and Mesgarani 2019): dilated convolutions mask a waveform."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv1d(1, 128, 16, 8, bias=False)
        self.norm = nn.GroupNorm(1, 128)
        self.blocks = nn.ModuleList(self._block(2**power) for power in range(6))
        self.masks = nn.Sequential(nn.PReLU(), nn.Conv1d(128, 256, 1), nn.Sigmoid())
        self.decoder = nn.ConvTranspose1d(128, 1, 16, 8, bias=False)

    @staticmethod
    def _block(dilation: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv1d(128, 256, 1),
            nn.PReLU(),
            nn.GroupNorm(1, 256),
            nn.Conv1d(256, 256, 3, padding=dilation, dilation=dilation, groups=256),
            nn.PReLU(),
            nn.GroupNorm(1, 256),
            nn.Conv1d(256, 128, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        features = self.encoder(x).relu()
        hidden = self.norm(features)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        masked = self.masks(hidden).unflatten(1, (2, 128)) * features.unsqueeze(1)
        waves: Tensor = self.decoder(masked.flatten(0, 1))
        return waves


def m5() -> nn.Module:
    """Return M5 (Dai et al. 2017), which classifies a waveform."""

    def layer(n_in: int, n_out: int, kernel: int, stride: int) -> list[nn.Module]:
        return [
            nn.Conv1d(n_in, n_out, kernel, stride),
            nn.BatchNorm1d(n_out),
            nn.ReLU(),
            nn.MaxPool1d(4),
        ]

    return nn.Sequential(
        *layer(1, 64, 80, 4),
        *layer(64, 64, 3, 1),
        *layer(64, 128, 3, 1),
        *layer(128, 256, 3, 1),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(256, 35),
        nn.LogSoftmax(-1),
    )


class DeepSpeech(nn.Module):
    """A small Deep Speech 2 (Amodei et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
        )
        self.sequence = nn.GRU(32 * 41, 128, num_layers=2, bidirectional=True, batch_first=True)
        self.classes = nn.Linear(256, 29)

    def forward(self, x: Tensor) -> Tensor:
        frames = self.features(x).flatten(1, 2).transpose(1, 2)
        letters: Tensor = self.classes(self.sequence(frames)[0]).log_softmax(-1)
        return letters


def keyword_spotting() -> nn.Module:
    """Return DS-CNN (Zhang et al. 2017), depthwise convolutions for keywords."""

    def layer() -> list[nn.Module]:
        return [
            nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, 64, 1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
        ]

    return nn.Sequential(
        nn.Conv2d(1, 64, (10, 4), 2, (5, 1), bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        *(part for _ in range(4) for part in layer()),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 12),
    )


class WaveNet(nn.Module):
    """Gated dilated convolutions with skips (van den Oord et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Conv1d(64, 128, 2, dilation=2**power) for power in range(8))
        self.residuals = nn.ModuleList(nn.Conv1d(64, 64, 1) for _ in range(8))
        self.outputs = nn.Sequential(nn.ReLU(), nn.Conv1d(64, 256, 1))

    def forward(self, x: Tensor) -> Tensor:
        skips = torch.zeros_like(x)
        for gate, residual in zip(self.gates, self.residuals, strict=True):
            dilation = gate.dilation[0]
            value, share = gate(nn.functional.pad(x, (int(dilation), 0))).chunk(2, 1)
            hidden = residual(value.tanh() * share.sigmoid())
            x = x + hidden
            skips = skips + hidden
        samples: Tensor = self.outputs(skips)
        return samples


class NoiseSuppression(nn.Module):
    """Three GRUs that see each other's outputs, as in RNNoise (Valin 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(42, 24)
        self.activity = nn.GRU(24, 24, batch_first=True)
        self.noise = nn.GRU(90, 48, batch_first=True)
        self.denoise = nn.GRU(114, 96, batch_first=True)
        self.gains = nn.Linear(96, 22)

    def forward(self, x: Tensor) -> Tensor:
        dense = self.dense(x).tanh()
        activity = self.activity(dense)[0]
        noise = self.noise(torch.cat([dense, activity, x], -1))[0].relu()
        denoised = self.denoise(torch.cat([activity, noise, x], -1))[0]
        gains: Tensor = self.gains(denoised).sigmoid()
        return gains


class Demucs(nn.Module):
    """A small Demucs (Défossez et al. 2019), which works on waveforms."""

    def __init__(self) -> None:
        super().__init__()
        widths = (2, 32, 64, 128)
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(n_in, n_out, 8, 4, 2),
                nn.ReLU(),
                nn.Conv1d(n_out, 2 * n_out, 1),
                nn.GLU(1),
            )
            for n_in, n_out in pairs
        )
        self.up = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(n_out, 2 * n_out, 3, padding=1),
                nn.GLU(1),
                nn.ConvTranspose1d(n_out, n_in, 8, 4, 2),
            )
            for n_in, n_out in reversed(pairs)
        )
        self.sequence = nn.LSTM(128, 64, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
        x = self.sequence(x.transpose(1, 2))[0].transpose(1, 2)
        for layer, skip in zip(self.up, reversed(skips), strict=True):
            x = layer(x + skip)
        return x
