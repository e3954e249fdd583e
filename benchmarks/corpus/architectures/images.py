"""Image architectures: super-resolution, detection heads, generators, text lines, faces."""

import itertools

from torch import Tensor, nn


def _block(n_in: int, n_out: int, stride: int = 1, kernel: int = 3) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(n_out),
        nn.ReLU(),
    )


def espcn() -> nn.Module:
    """Return ESPCN (Shi et al. 2016), which enlarges three times."""
    return nn.Sequential(
        nn.Conv2d(1, 64, 5, padding=2),
        nn.Tanh(),
        nn.Conv2d(64, 32, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(32, 9, 3, padding=1),
        nn.PixelShuffle(3),
    )


def fsrcnn() -> nn.Module:
    """Return FSRCNN (Dong et al. 2016), which enlarges three times by a transposed convolution."""
    middle = [layer for _ in range(4) for layer in (nn.Conv2d(12, 12, 3, padding=1), nn.PReLU(12))]
    return nn.Sequential(
        nn.Conv2d(1, 56, 5, padding=2),
        nn.PReLU(56),
        nn.Conv2d(56, 12, 1),
        nn.PReLU(12),
        *middle,
        nn.Conv2d(12, 56, 1),
        nn.PReLU(56),
        nn.ConvTranspose2d(56, 1, 9, stride=3, padding=4, output_padding=2),
    )


class _Residual(nn.Module):
    def __init__(self, body: nn.Module, scale: float = 1.0) -> None:
        super().__init__()
        self.body = body
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.body(x)


def edsr() -> nn.Module:
    """Return a small EDSR (Lim et al. 2017), which enlarges four times."""

    def block() -> nn.Module:
        body = nn.Sequential(
            nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)
        )
        return _Residual(body, 0.1)

    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        _Residual(nn.Sequential(*(block() for _ in range(4)), nn.Conv2d(64, 64, 3, padding=1))),
        nn.Conv2d(64, 256, 3, padding=1),
        nn.PixelShuffle(2),
        nn.Conv2d(64, 256, 3, padding=1),
        nn.PixelShuffle(2),
        nn.Conv2d(64, 3, 3, padding=1),
    )


def style_transfer() -> nn.Module:
    """Return a network of fast style transfer (Johnson et al. 2016): instance norms, resizes."""

    def layer(n_in: int, n_out: int, kernel: int, stride: int = 1) -> list[nn.Module]:
        return [
            nn.ReflectionPad2d(kernel // 2),
            nn.Conv2d(n_in, n_out, kernel, stride),
            nn.InstanceNorm2d(n_out, affine=True),
        ]

    def residual() -> nn.Module:
        return _Residual(nn.Sequential(*layer(64, 64, 3), nn.ReLU(), *layer(64, 64, 3)))

    return nn.Sequential(
        *layer(3, 16, 9),
        nn.ReLU(),
        *layer(16, 32, 3, 2),
        nn.ReLU(),
        *layer(32, 64, 3, 2),
        nn.ReLU(),
        residual(),
        residual(),
        nn.Upsample(scale_factor=2, mode="nearest"),
        *layer(64, 32, 3),
        nn.ReLU(),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        *layer(32, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 3, 9, padding=4),
        nn.Tanh(),
    )


class CenterNet(nn.Module):
    """A small CenterNet (Zhou et al. 2019): heads, and the selection of the highest peaks."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            _block(3, 32, 2), _block(32, 64, 2), _block(64, 128, 2), _block(128, 128)
        )
        self.up = nn.Sequential(nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.ReLU())
        self.heat = nn.Sequential(_block(64, 64), nn.Conv2d(64, 20, 1))
        self.size = nn.Sequential(_block(64, 64), nn.Conv2d(64, 2, 1))
        self.pool = nn.MaxPool2d(3, 1, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.up(self.trunk(x))
        heat = self.heat(features).sigmoid()
        peaks = heat * (self.pool(heat) == heat).float()
        scores, places = peaks.flatten(1).topk(50)
        places = places % (heat.shape[2] * heat.shape[3])
        sizes = self.size(features).flatten(2)
        chosen = sizes.gather(2, places.unsqueeze(1).expand(-1, 2, -1))
        return scores, chosen


def pose() -> nn.Module:
    """Return a small pose network of transposed convolutions (Xiao et al. 2018)."""

    def up(n_in: int, n_out: int) -> list[nn.Module]:
        transposed = nn.ConvTranspose2d(n_in, n_out, 4, 2, 1, bias=False)
        return [transposed, nn.BatchNorm2d(n_out), nn.ReLU()]

    down = [_block(3, 32, 2), _block(32, 64, 2), _block(64, 128, 2), _block(128, 256, 2)]
    return nn.Sequential(*down, *up(256, 128), *up(128, 64), nn.Conv2d(64, 17, 1))


def dcgan() -> nn.Module:
    """Return the generator of DCGAN (Radford et al. 2016), for 64 pixels."""
    layers: list[nn.Module] = []
    channels = (100, 256, 128, 64, 32)
    for index, (n_in, n_out) in enumerate(itertools.pairwise(channels)):
        stride, padding = (1, 0) if index == 0 else (2, 1)
        layers += [
            nn.ConvTranspose2d(n_in, n_out, 4, stride, padding, bias=False),
            nn.BatchNorm2d(n_out),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh())


class Crnn(nn.Module):
    """A small CRNN (Shi et al. 2015) that reads a line of text."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _block(1, 32),
            nn.MaxPool2d(2),
            _block(32, 64),
            nn.MaxPool2d(2),
            _block(64, 128),
            nn.MaxPool2d((2, 1)),
            _block(128, 128),
            nn.MaxPool2d((4, 1)),
        )
        self.sequence = nn.LSTM(128, 96, num_layers=2, bidirectional=True)
        self.classes = nn.Linear(192, 100)

    def forward(self, x: Tensor) -> Tensor:
        columns = self.features(x).squeeze(2).permute(2, 0, 1)
        classes: Tensor = self.classes(self.sequence(columns)[0]).log_softmax(-1)
        return classes


def mobile_face() -> nn.Module:
    """Return a small face embedding network with PReLU, as MobileFaceNet (Chen et al. 2018)."""

    def depthwise(n_in: int, n_out: int, stride: int) -> list[nn.Module]:
        return [
            nn.Conv2d(n_in, n_in, 3, stride, 1, groups=n_in, bias=False),
            nn.BatchNorm2d(n_in),
            nn.PReLU(n_in),
            nn.Conv2d(n_in, n_out, 1, bias=False),
            nn.BatchNorm2d(n_out),
            nn.PReLU(n_out),
        ]

    return nn.Sequential(
        _block(3, 64, 2),
        *depthwise(64, 64, 1),
        *depthwise(64, 128, 2),
        *depthwise(128, 128, 1),
        *depthwise(128, 256, 2),
        *depthwise(256, 512, 2),
        nn.Conv2d(512, 512, 7, groups=512, bias=False),
        nn.Flatten(),
        nn.Linear(512, 128),
    )
