"""Networks over graphs, with dense matrices and with lists of edges."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.harness import Made, Wrap, program, some

NODES, EDGES, WIDTH, CLASSES = 8, 20, 6, 3
EVERY = ("step", "backend", "compile", "freeze")


def _graph() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(NODES, WIDTH), torch.randint(0, NODES, (2, EDGES)), torch.randint(0, CLASSES, (NODES,))


def _train(model: nn.Module, wrap: Wrap) -> Made:
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=5e-4)
    known = torch.arange(NODES) % 2 == 0
    net = wrap(model)

    def step(x: Tensor, edges: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        model.train()
        optimizer.zero_grad()
        logs = F.log_softmax(net(x, edges), dim=1)
        each = F.nll_loss(logs, y, reduction="none")
        loss = (each * known).sum() / known.sum()
        loss.backward()
        optimizer.step()
        return loss.detach(), (logs.argmax(1) == y).sum()

    batches = some(_graph)
    return Made(step, batches, {"model": model, "optimizer": optimizer}, (model, [(x, e) for x, e, _ in batches]))


class Averages(nn.Module):
    """Neighbours summed and scaled by the degrees of both ends, with a loop at each node."""

    def __init__(self, enters: int, leaves: int) -> None:
        super().__init__()
        self.linear, self.bias = nn.Linear(enters, leaves, bias=False), nn.Parameter(torch.zeros(leaves))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        loops = torch.arange(x.size(0)).expand(2, -1)
        source, target = torch.cat([edges, loops], dim=1)
        degree = torch.zeros(x.size(0)).scatter_add_(0, target, torch.ones(target.numel()))
        scale = degree.pow(-0.5)
        messages = (scale[source] * scale[target]).unsqueeze(1) * self.linear(x)[source]
        return torch.zeros(x.size(0), messages.size(1)).index_add_(0, target, messages) + self.bias


class Two(nn.Module):
    """Two layers of a kind."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.first(x, edges)), p=0.5, training=self.training)
        return self.second(x, edges)


@program(*EVERY)
def averages_over_neighbours(wrap: Wrap) -> Made:
    return _train(Two(Averages(WIDTH, 8), Averages(8, CLASSES)), wrap)


class Attention(nn.Module):
    """Weights for edges by a softmax over those that reach a node."""

    def __init__(self, enters: int, leaves: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, leaves // heads
        self.linear = nn.Linear(enters, leaves, bias=False)
        self.by_source = nn.Parameter(torch.randn(1, heads, self.size) / 3)
        self.by_target = nn.Parameter(torch.randn(1, heads, self.size) / 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        h = self.linear(x).view(-1, self.heads, self.size)
        score = (h * self.by_source).sum(-1)[source] + (h * self.by_target).sum(-1)[target]
        score = F.leaky_relu(score, 0.2)
        index = target[:, None].expand_as(score)
        top = torch.full((x.size(0), self.heads), -1e9).scatter_reduce(0, index, score.detach(), "amax")
        score = (score - top[target]).exp()
        total = torch.zeros(x.size(0), self.heads).scatter_add(0, index, score)
        weight = F.dropout(score / (total[target] + 1e-16), 0.3, self.training)
        return torch.zeros_like(h).index_add(0, target, h[source] * weight.unsqueeze(-1)).flatten(1)


@program(*EVERY)
def attention_over_edges(wrap: Wrap) -> Made:
    return _train(Two(Attention(WIDTH, 8, 2), Attention(8, CLASSES, 1)), wrap)


class DenseAttention(nn.Module):
    """The same over a matrix of neighbours."""

    def __init__(self, enters: int, leaves: int) -> None:
        super().__init__()
        self.w, self.a = nn.Parameter(torch.empty(enters, leaves)), nn.Parameter(torch.empty(2 * leaves, 1))
        nn.init.xavier_uniform_(self.w, gain=1.414)
        nn.init.xavier_uniform_(self.a, gain=1.414)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        near = torch.eye(x.size(0))
        near[edges[0], edges[1]] = 1.0
        h = x @ self.w
        half = self.w.shape[1]
        e = F.leaky_relu(h @ self.a[:half] + (h @ self.a[half:]).T, 0.2)
        weight = F.softmax(torch.where(near > 0, e, -9e15 * torch.ones_like(e)), dim=1)
        return F.elu(F.dropout(weight, 0.2, self.training) @ h)


@program(*EVERY)
def attention_over_a_matrix(wrap: Wrap) -> Made:
    return _train(Two(DenseAttention(WIDTH, 8), DenseAttention(8, CLASSES)), wrap)


class Largest(nn.Module):
    """A perceptron of both ends of an edge; each node keeps the largest values."""

    def __init__(self, enters: int, leaves: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(2 * enters, leaves), nn.ReLU(), nn.Linear(leaves, leaves))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        messages = self.mlp(torch.cat([x[target], x[source] - x[target]], dim=-1))
        index = target.unsqueeze(-1).expand_as(messages)
        out = torch.zeros(x.size(0), messages.size(-1))
        return out.scatter_reduce_(0, index, messages, reduce="amax", include_self=False)


@program(*EVERY)
def largest_over_edges(wrap: Wrap) -> Made:
    return _train(Two(Largest(WIDTH, 8), Largest(8, CLASSES)), wrap)


class Relations(nn.Module):
    """A matrix for each kind of edge, and the mean over neighbours."""

    def __init__(self, enters: int, leaves: int, kinds: int = 2) -> None:
        super().__init__()
        self.weight, self.root = nn.Parameter(torch.randn(kinds, enters, leaves) / 3), nn.Linear(enters, leaves)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges.unbind(0)
        kind = (source > target).long()
        messages = torch.bmm(x[source].unsqueeze(1), self.weight[kind]).squeeze(1)
        out = torch.zeros(x.size(0), messages.size(1))
        mean = out.scatter_reduce(0, target[:, None].expand_as(messages), messages, "mean", include_self=False)
        return self.root(x) + mean


@program(*EVERY)
def kinds_of_edges(wrap: Wrap) -> Made:
    return _train(Two(Relations(WIDTH, 8), Relations(8, CLASSES)), wrap)


class Molecules(nn.Module):
    """Sums over neighbours, then one vector for each graph of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(2))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
            for _ in range(2)
        )
        self.head = nn.Linear(2 * WIDTH, 1)

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        for number, mlp in enumerate(self.mlps):
            x = mlp((1 + self.eps[number]) * x + torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]]))
        index, count = batch[:, None].expand_as(x), 3
        total = torch.zeros(count, WIDTH).scatter_add_(0, index, x)
        largest = torch.full((count, WIDTH), -1e9).scatter_reduce(0, index, x, "amax")
        return self.head(torch.cat([total, largest], 1)).squeeze(1)


@program(*EVERY)
def one_answer_for_each_graph(wrap: Wrap) -> Made:
    model = Molecules()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    net = wrap(model)

    def step(x: Tensor, edges: Tensor, batch: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.l1_loss(net(x, edges, batch), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch() -> tuple[Tensor, ...]:
        return *_graph()[:2], torch.tensor([0, 0, 0, 1, 1, 2, 2, 2]), torch.randn(3)

    batches = some(batch)
    state = {"model": model, "optimizer": optimizer}
    return Made(step, batches, state, (model, [args[:3] for args in batches]))


@program("step", "backend", "compile")
def embeddings_by_negative_edges(wrap: Wrap) -> Made:
    embed = nn.Embedding(NODES, WIDTH)
    optimizer = torch.optim.Adagrad(embed.parameters(), 0.1)
    look = wrap(embed)

    def step(x: Tensor, edges: Tensor, y: Tensor) -> Tensor:
        del x, y
        wrong = torch.randint(0, NODES, (2, EDGES))
        ends = look(torch.cat([edges, wrong], dim=1))
        score = (ends[0] * ends[1]).sum(-1)
        loss = -F.logsigmoid(score[:EDGES]).mean() - F.logsigmoid(-score[EDGES:]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, some(_graph), {"embed": embed, "optimizer": optimizer})


class Convolved(nn.Module):
    """Two graph convolutions by a normalised sparse adjacency that the model holds."""

    adjacency: Tensor

    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        linked = (torch.rand(NODES, NODES) < 0.3).float() + torch.eye(NODES)
        self.register_buffer("adjacency", (linked / linked.sum(1, keepdim=True)).to_sparse(layout=layout))
        self.first, self.second = (nn.Parameter(torch.randn(WIDTH, n)) for n in (WIDTH, CLASSES))
        self.bias = nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.relu(torch.spmm(self.adjacency, x @ self.first)), 0.5, self.training)
        return F.log_softmax(torch.sparse.mm(self.adjacency, x @ self.second) + self.bias, dim=1)


def _train_convolved(layout: torch.layout) -> Made:
    model = Convolved(layout)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=5e-4)

    def step(x: Tensor, edges: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        del edges
        model.train()
        optimizer.zero_grad()
        out = model(x)
        loss = F.nll_loss(out[:6], y[:6])
        loss.backward()
        optimizer.step()
        return loss.detach(), (out.detach().argmax(1) == y).float().mean()

    weights = dict(model.named_parameters())
    return Made(step, some(_graph), {"optimizer": optimizer, **weights})


@program("step")
def convolutions_by_a_coo_adjacency(wrap: Wrap) -> Made:
    return _train_convolved(torch.sparse_coo)


@program("step")
def convolutions_by_a_csr_adjacency(wrap: Wrap) -> Made:
    return _train_convolved(torch.sparse_csr)
