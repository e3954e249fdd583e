"""Recommendation and tabular architectures."""

import itertools

import torch
from torch import Tensor, nn


def _mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Dlrm(nn.Module):
    """Pairwise products of embeddings, below a perceptron (Naumov et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(26 * 1000, 16)
        self.register_buffer("offsets", torch.arange(26) * 1000)
        self.pairs = torch.triu_indices(26, 26, 1)
        self.top = _mlp(325, 128, 64, 1)

    def forward(self, x: Tensor) -> Tensor:
        vectors = self.embedding(x + self.offsets)
        products = vectors @ vectors.transpose(1, 2)
        chosen = products[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(chosen))


class DeepFm(nn.Module):
    """DeepFM (Guo et al. 2017); without factors, Wide and Deep (Cheng et al. 2016)."""

    def __init__(self, *, has_factors: bool) -> None:
        super().__init__()
        self.linear = nn.Embedding(39 * 1000, 1)
        self.embedding = nn.Embedding(39 * 1000, 10)
        self.register_buffer("offsets", torch.arange(39) * 1000)
        self.deep = _mlp(390, 200, 200, 1)
        self.has_factors = has_factors

    def forward(self, x: Tensor) -> Tensor:
        rows = x + self.offsets
        vectors = self.embedding(rows)
        score = self.linear(rows).sum(1) + self.deep(vectors.flatten(1))
        if self.has_factors:
            squares = vectors.sum(1).square() - vectors.square().sum(1)
            score = score + 0.5 * squares.sum(1, keepdim=True)
        return torch.sigmoid(score)


class TwoTower(nn.Module):
    """A retrieval network of two towers (Yi et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(1000, 32)
        self.user = _mlp(32, 64, 32)
        self.item = _mlp(32, 64, 32)

    def forward(self, x: Tensor) -> Tensor:
        history, candidate = self.items(x[:, 1:]).mean(1), self.items(x[:, 0])
        user = nn.functional.normalize(self.user(history), dim=-1)
        item = nn.functional.normalize(self.item(candidate), dim=-1)
        return (user * item).sum(-1)


class SasRec(nn.Module):
    """Causal self-attention over the items of a history (Kang and McAuley 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(1000, 64)
        self.places = nn.Parameter(torch.randn(50, 64))
        layer = nn.TransformerEncoderLayer(64, 2, 64, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(50))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layers(self.items(x) + self.places, mask=self.mask, is_causal=True)
        scores: Tensor = hidden[:, -1] @ self.items.weight.T
        return scores


class DeepCross(nn.Module):
    """DCN-V2 (Wang et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.crosses = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.deep = _mlp(64, 128, 64)
        self.out = nn.Linear(128, 1)

    def forward(self, x: Tensor) -> Tensor:
        crossed = x
        for layer in self.crosses:
            crossed = x * layer(crossed) + crossed
        out: Tensor = self.out(torch.cat([crossed, self.deep(x)], -1)).sigmoid()
        return out


class FtTransformer(nn.Module):
    """A token for each column, and attention between columns (Gorishniy et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(24, 64))
        self.biases = nn.Parameter(torch.randn(24, 64))
        self.token = nn.Parameter(torch.randn(1, 1, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.out = nn.Sequential(nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x: Tensor) -> Tensor:
        columns = x.unsqueeze(-1) * self.weights + self.biases
        tokens = torch.cat([self.token.expand(len(x), -1, -1), columns], 1)
        out: Tensor = self.out(self.layers(tokens)[:, 0])
        return out


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.BatchNorm1d(128), *_mlp(128, 256, 128))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.body(x)
        return out


def tabular_resnet() -> nn.Module:
    """Return the residual perceptron of Gorishniy et al. (2021)."""
    return nn.Sequential(
        nn.Linear(64, 128), *(_Block() for _ in range(4)), nn.ReLU(), nn.Linear(128, 2)
    )


class TabNet(nn.Module):
    """Steps that select columns by sparsemax, which sorts and cumulates (Arik and Pfister 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.select = nn.ModuleList(nn.Linear(32, 64) for _ in range(3))
        self.transform = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.GLU()) for _ in range(4)
        )
        self.out = nn.Linear(32, 2)

    @staticmethod
    def _sparsemax(x: Tensor) -> Tensor:
        """Project on the simplex (Martins and Astudillo 2016)."""
        ranked = x.sort(-1, descending=True).values
        sums = ranked.cumsum(-1)
        ranks = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
        n_kept = (1 + ranks * ranked > sums).to(x.dtype).sum(-1, keepdim=True)
        limit = (sums.gather(-1, (n_kept - 1).long()) - 1) / n_kept
        return (x - limit).relu()

    def forward(self, x: Tensor) -> Tensor:
        prior = torch.ones_like(x)
        hidden = self.transform[0](x)
        total = torch.zeros_like(hidden[:, 32:])
        for select, transform in zip(self.select, list(self.transform)[1:], strict=True):
            mask = self._sparsemax(select(hidden[:, 32:]) * prior)
            prior = prior * (1.3 - mask)
            hidden = transform(x * mask)
            total = total + hidden[:, :32].relu()
        out: Tensor = self.out(total)
        return out


def autoencoder() -> nn.Module:
    """Return the autoencoder of MLPerf Tiny, which detects anomalies."""
    return _mlp(640, 128, 128, 128, 8, 128, 128, 128, 640)
