"""Networks over graphs, which gather from the ends of edges and add up where they lead."""

import torch
from torch import Tensor, nn


class Convolution(nn.Module):
    """Two graph convolutions that classify nodes (Kipf and Welling 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 32)])
        self.classes = nn.Linear(32, 4)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        start, end = edges[0], edges[1]
        counts = torch.zeros(nodes.shape[0]).scatter_add(0, end, torch.ones(end.shape[0]))
        scale = counts.clamp(min=1).rsqrt()
        scale = (scale[start] * scale[end]).unsqueeze(1)
        for layer in self.layers:
            hidden = layer(nodes)
            nodes = torch.zeros_like(hidden).index_add(0, end, hidden[start] * scale).relu()
        classes: Tensor = self.classes(nodes)
        return classes


class Attention(nn.Module):
    """One layer of graph attention that classifies nodes (Velickovic et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.n_heads = 4
        self.values = nn.Linear(16, 128, bias=False)
        self.scores = nn.ParameterList(torch.randn(4, 32) * 0.1 for _ in range(2))
        self.classes = nn.Linear(128, 4)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        start, end = edges[0], edges[1]
        shape = (nodes.shape[0], self.n_heads)
        values = self.values(nodes).unflatten(1, (self.n_heads, 32))
        from_start, from_end = ((values * each).sum(-1) for each in self.scores)
        scores = nn.functional.leaky_relu(from_start[start] + from_end[end], 0.2)
        places = end.unsqueeze(1).expand(-1, self.n_heads)
        largest = torch.full(shape, -1e9).scatter_reduce(0, places, scores, "amax")
        weights = torch.exp(scores - largest[end])
        total = torch.zeros(shape).scatter_add(0, places, weights)
        weights = weights / (total[end] + 1e-9)
        messages = (values[start] * weights.unsqueeze(2)).flatten(1)
        hidden = torch.zeros(shape[0], messages.shape[1]).index_add(0, end, messages)
        classes: Tensor = self.classes(nn.functional.elu(hidden))
        return classes
