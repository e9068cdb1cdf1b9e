"""Learning from pairs of views and from other networks: contrast, queues, followers, teachers."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.harness import Made, Wrap, program, some

DOORS = ("step", "backend", "compile")


def _encoder(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(inplace=True), nn.Linear(12, width))


def _views() -> tuple[Tensor, Tensor]:
    x = torch.randn(4, 6)
    return x + 0.1 * torch.randn(4, 6), x + 0.1 * torch.randn(4, 6)


@program(*DOORS)
def contrast_within_a_batch(wrap: Wrap) -> Made:
    model = _encoder()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-4)
    net = wrap(model)

    def step(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        features = F.normalize(net(torch.cat([a, b])), dim=1)
        labels = torch.cat([torch.arange(a.shape[0])] * 2)
        same = (labels[None] == labels[:, None]).float()
        alike = features @ features.T
        others = ~torch.eye(labels.shape[0], dtype=torch.bool)
        same, alike = same[others].view(labels.shape[0], -1), alike[others].view(labels.shape[0], -1)
        right = alike[same.bool()].view(labels.shape[0], -1)
        wrong = alike[~same.bool()].view(labels.shape[0], -1)
        logits = torch.cat([right, wrong], dim=1) / 0.1
        loss = F.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), (logits.argmax(1) == 0).float().mean()

    return Made(step, some(_views), {"model": model, "optimizer": optimizer})


@program(*DOORS)
def contrast_with_a_diagonal_mask(wrap: Wrap) -> Made:
    model = _encoder()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    net = wrap(model)

    def step(a: Tensor, b: Tensor) -> Tensor:
        z = F.normalize(torch.cat([net(a), net(b)]), dim=1)
        alike = z @ z.T / 0.5
        alike.fill_diagonal_(-1e9)
        count = a.shape[0]
        target = torch.arange(2 * count).roll(count)
        loss = F.cross_entropy(alike, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, some(_views), {"model": model, "optimizer": optimizer})


@program(*DOORS, captures=4)
def predict_a_follower(wrap: Wrap) -> Made:
    online, predictor = _encoder(), nn.Linear(8, 8)
    target = copy.deepcopy(online)
    for p in target.parameters():
        p.requires_grad = False
    optimizer = torch.optim.Adam([*online.parameters(), *predictor.parameters()], 1e-3)
    net, follower = wrap(online), wrap(target)

    def step(a: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            za, zb = follower(a), follower(b)
        pa, pb = predictor(net(a)), predictor(net(b))
        loss = (4 - 2 * F.cosine_similarity(pa, zb, -1) - 2 * F.cosine_similarity(pb, za, -1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for mine, theirs in zip(online.parameters(), target.parameters(), strict=True):
            theirs.data = 0.99 * theirs.data + (1 - 0.99) * mine.data
        return loss.detach()

    state = {"online": online, "predictor": predictor, "target": target, "optimizer": optimizer}
    return Made(step, some(_views), state)


class Queue(nn.Module):
    """Keys of earlier batches in a ring, a query encoder, and a key encoder that follows it."""

    def __init__(self, size: int = 12) -> None:
        super().__init__()
        self.query, self.key, self.size = _encoder(), _encoder(), size
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)
        self.register_buffer("ring", F.normalize(torch.randn(8, size), dim=0))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            for mine, theirs in zip(self.query.parameters(), self.key.parameters(), strict=True):
                theirs.mul_(0.99).add_(mine, alpha=0.01)
            order = torch.randperm(b.shape[0])
            k = F.normalize(self.key(b[order])[order.argsort()], dim=1)
        right = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        wrong = torch.einsum("nc,ck->nk", [q, self.ring.clone().detach()])
        logits = torch.cat([right, wrong], dim=1) / 0.07
        with torch.no_grad():
            places = (self.place + torch.arange(b.shape[0])) % self.size
            self.ring[:, places] = k.T
            self.place.copy_((self.place + b.shape[0]) % self.size)
        return logits, torch.zeros(logits.shape[0], dtype=torch.long)


@program(*DOORS)
def queue_of_keys(wrap: Wrap) -> Made:
    model = Queue()
    optimizer = torch.optim.SGD(model.query.parameters(), 0.03, momentum=0.9)
    net = wrap(model)

    def step(a: Tensor, b: Tensor) -> Tensor:
        loss = F.cross_entropy(*net(a, b))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, some(_views), {"model": model, "optimizer": optimizer})


@program("step", captures=5)
def queue_with_a_pointer_in_python(wrap: Wrap) -> Made:
    model = Queue(size=8)
    optimizer = torch.optim.SGD(model.query.parameters(), 0.03)

    def step(a: Tensor, b: Tensor) -> Tensor:
        q = F.normalize(model.query(a), dim=1)
        with torch.no_grad():
            k = F.normalize(model.key(b), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ model.ring.clone()], dim=1) / 0.07
        loss = F.cross_entropy(logits, torch.zeros(len(a), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            start = int(model.place)
            model.ring[:, start : start + len(k)] = k.T
            model.place[0] = (start + len(k)) % model.size
        return loss.detach()

    return Made(wrap(step), some(_views), {"model": model, "optimizer": optimizer})


@program(*DOORS)
def margins_of_triplets(wrap: Wrap) -> Made:
    model = _encoder()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        z = net(x)
        far = torch.cdist(z, z)
        same = y[:, None] == y[None]
        worst = far.masked_fill(~same, -float("inf")).max(1).values
        best = far.masked_fill(same, float("inf")).min(1).values
        loss = F.relu(worst - best + 0.3).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = some(lambda: (torch.randn(6, 6), torch.tensor([0, 0, 1, 1, 2, 2])))
    return Made(step, batches, {"model": model, "optimizer": optimizer})


@program(*DOORS)
def pictures_and_texts(wrap: Wrap) -> Made:
    pictures, texts = nn.Linear(10, 8), nn.EmbeddingBag(20, 8)
    scale = nn.Parameter(torch.tensor(2.6592))
    optimizer = torch.optim.AdamW([*pictures.parameters(), *texts.parameters(), scale], 1e-3)
    see, read = wrap(pictures), wrap(texts)

    def step(x: Tensor, words: Tensor) -> Tensor:
        a, b = F.normalize(see(x), dim=-1), F.normalize(read(words), dim=-1)
        logits = scale.exp() * a @ b.t()
        target = torch.arange(x.shape[0])
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            scale.clamp_(0, 4.6052)
        return loss.detach()

    state = {"pictures": pictures, "texts": texts, "scale": scale, "optimizer": optimizer}
    return Made(step, some(lambda: (torch.randn(4, 10), torch.randint(0, 20, (4, 3)))), state)


@program(*DOORS)
def little_redundancy(wrap: Wrap) -> Made:
    model = _encoder()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def loss_of(za: Tensor, zb: Tensor) -> Tensor:
        za, zb = (za - za.mean(0)) / (za.std(0) + 1e-5), (zb - zb.mean(0)) / (zb.std(0) + 1e-5)
        cross = (za.T @ zb).div_(za.shape[0])
        on = torch.diagonal(cross).add_(-1).pow_(2).sum()
        rows, columns = cross.shape
        off = cross.flatten()[:-1].view(rows - 1, columns + 1)[:, 1:].flatten().pow_(2).sum()
        return on + 0.005 * off

    net, measured = wrap(model), wrap(loss_of)

    def step(a: Tensor, b: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = measured(net(a), net(b))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, some(_views), {"model": model, "optimizer": optimizer})


@program(*DOORS)
def variance_and_covariance(wrap: Wrap) -> Made:
    model = _encoder()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    net = wrap(model)

    def spread(z: Tensor) -> Tensor:
        z = z - z.mean(0)
        covariance = (z.T @ z) / (z.shape[0] - 1)
        off = covariance - torch.diag_embed(covariance.diagonal())
        return F.relu(1 - torch.sqrt(z.var(0) + 1e-4)).mean() + off.pow(2).sum() / z.shape[1]

    def step(a: Tensor, b: Tensor) -> Tensor:
        za, zb = net(a), net(b)
        loss = 25 * F.mse_loss(za, zb) + spread(za) + spread(zb)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, some(_views), {"model": model, "optimizer": optimizer})


@program(*DOORS, captures=4)
def student_and_teacher(wrap: Wrap) -> Made:
    teacher, student = _encoder(4).eval().requires_grad_(False), nn.Linear(6, 4)
    optimizer = torch.optim.SGD(student.parameters(), 0.1)
    knows, learns = wrap(teacher), wrap(student)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = F.softmax(knows(x) / 2.0, dim=-1)
        logits = learns(x)
        soft = F.kl_div(F.log_softmax(logits / 2.0, -1), wanted, reduction="batchmean") * 4
        loss = 0.7 * soft + 0.3 * F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = some(lambda: (torch.randn(5, 6), torch.randint(0, 4, (5,))))
    return Made(step, batches, {"teacher": teacher, "student": student, "optimizer": optimizer})


@program(*DOORS, captures=4)
def teacher_that_is_centred(wrap: Wrap) -> Made:
    student = _encoder()
    teacher = copy.deepcopy(student).requires_grad_(False)
    center = torch.zeros(1, 8)
    optimizer = torch.optim.AdamW(student.parameters(), 1e-3)
    learns, knows = wrap(student), wrap(teacher)

    def step(a: Tensor, b: Tensor) -> Tensor:
        nonlocal center
        with torch.no_grad():
            told = knows(torch.cat([a, b]))
        wanted = F.softmax((told - center) / 0.04, dim=-1).detach().chunk(2)
        seen = (learns(torch.cat([a, b])) / 0.1).chunk(2)
        loss = sum(torch.sum(-q * F.log_softmax(v, -1), -1).mean() for q, v in zip(wanted, seen[::-1], strict=True)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            center.mul_(0.9).add_(told.mean(0, keepdim=True), alpha=0.1)
            torch._foreach_mul_(list(teacher.parameters()), 0.99)
            torch._foreach_add_(list(teacher.parameters()), list(student.parameters()), alpha=0.01)
        return loss.detach()

    return Made(step, some(_views), {"student": student, "teacher": teacher, "center": center, "optimizer": optimizer})
