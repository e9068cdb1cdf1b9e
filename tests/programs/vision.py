"""Networks that look at images: classifiers of several families, segmentation, enlarging, comparing pairs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.harness import Made, Wrap, program, some

EVERY = ("step", "backend", "compile", "freeze")


def _labelled(channels: int = 1, size: int = 12, classes: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(4, channels, size, size), torch.randint(0, classes, (4,))


def _classifier(model: nn.Module, optimizer: torch.optim.Optimizer, wrap: Wrap, **shape: int) -> Made:
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = some(lambda: _labelled(**shape))
    return Made(step, batches, {"model": model, "optimizer": optimizer}, (model, [(x,) for x, _ in batches]))


class Digits(nn.Module):
    """Two convolutions, pooling and dropout of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)
        self.drop1, self.drop2 = nn.Dropout2d(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(128, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.drop1(F.max_pool2d(x, 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(self.drop2(x)), dim=1)


@program(*EVERY)
def digits(wrap: Wrap) -> Made:
    model = Digits()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.7)
    net = wrap(model)

    def step(data: Tensor, target: Tensor) -> float:
        model.train()
        optimizer.zero_grad()
        loss = F.nll_loss(net(data), target)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.item()

    batches = some(_labelled)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    return Made(step, batches, state, (model, [(x,) for x, _ in batches]))


@program("step", "backend", "compile", captures=4)
def train_then_evaluate(wrap: Wrap) -> Made:
    model = Digits()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        model.train()
        optimizer.zero_grad()
        loss = F.nll_loss(net(x), y)
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            right = (net(x).argmax(1) == y).sum()
        return loss.detach(), right

    return Made(step, some(_labelled), {"model": model, "optimizer": optimizer})


class Residual(nn.Module):
    """Two convolutions with batch norm around a shortcut; the whole branch is dropped for some images."""

    def __init__(self, channels: int, out: int, stride: int, drop: float) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.short = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        y = self.nb(self.b(F.relu(self.na(self.a(x)), inplace=True)))
        if self.training and self.drop > 0:
            keep = 1 - self.drop
            mask = x.new_empty(x.shape[0], 1, 1, 1).bernoulli_(keep)
            y = y * mask.div_(keep)
        y += self.short(x)
        return F.relu(y, inplace=True)


@program(*EVERY)
def residual_with_drop_path(wrap: Wrap) -> Made:
    rates = torch.linspace(0, 0.3, 3).tolist()
    blocks = [Residual(c, o, s, r) for (c, o, s), r in zip([(3, 4, 1), (4, 8, 2), (8, 8, 1)], rates, strict=True)]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 5e-4}, {"params": rest, "weight_decay": 0.0}]
    return _classifier(model, torch.optim.SGD(groups, lr=0.1, momentum=0.9), wrap, channels=3)


class Squeeze(nn.Module):
    """Depthwise convolution, channels weighted by what they hold, and a narrow projection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.expand = nn.Sequential(
            nn.Conv2d(width, 3 * width, 1, bias=False), nn.BatchNorm2d(3 * width), nn.Hardswish()
        )
        self.depth = nn.Conv2d(3 * width, 3 * width, 3, padding=1, groups=3 * width)
        self.down, self.up = nn.Conv2d(3 * width, 2, 1), nn.Conv2d(2, 3 * width, 1)
        self.project = nn.Conv2d(3 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.depth(self.expand(x))
        scale = F.hardsigmoid(self.up(F.relu(self.down(y.mean((2, 3), keepdim=True)))))
        return x + self.project(y * scale)


@program(*EVERY)
def mobile(wrap: Wrap) -> Made:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), Squeeze(4), Squeeze(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
    )
    return _classifier(model, torch.optim.RMSprop(model.parameters(), 1e-3, momentum=0.9), wrap, channels=3)


class WideKernels(nn.Module):
    """A large depthwise kernel, a layer norm over channels, and a branch scaled by a learned vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(1e-2 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.gamma * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


@program(*EVERY)
def wide_kernels_channels_last(wrap: Wrap) -> Made:
    blocks = [WideKernels(6), WideKernels(6)]
    model = nn.Sequential(nn.Conv2d(3, 6, 4, 4), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
    model = model.to(memory_format=torch.channels_last)
    return _classifier(model, torch.optim.AdamW(model.parameters(), 1e-3), wrap, channels=3)


class Patches(nn.Module):
    """Patches with a class token and learned positions, through encoder layers that normalize first."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.empty(1, 10, width))
        nn.init.trunc_normal_(self.places, std=0.02)
        layer = nn.TransformerEncoderLayer(width, 2, 32, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        return self.head(self.encoder(x)[:, 0])


@program(*EVERY)
def patches(wrap: Wrap) -> Made:
    model = Patches()
    return _classifier(model, torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05), wrap)


class Mixing(nn.Module):
    """Layers that mix patches, then channels."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(count, 12), nn.GELU(), nn.Linear(12, count))
        self.channels = nn.Sequential(nn.Linear(width, 20), nn.GELU(), nn.Linear(20, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.n1(x).mT).mT
        return x + self.channels(self.n2(x))


class Mixer(nn.Module):
    """Patches cut by unfold, mixing layers, an average."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(16, 8), nn.Linear(8, 5)
        self.layers = nn.ModuleList(Mixing(9, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(F.unfold(x, 4, stride=4).mT)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


@program(*EVERY)
def mixer(wrap: Wrap) -> Made:
    model = Mixer()
    return _classifier(model, torch.optim.NAdam(model.parameters(), 1e-3), wrap)


@program(*EVERY)
def enlarge(wrap: Wrap) -> Made:
    model = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1), nn.PixelShuffle(2))
    nn.init.orthogonal_(model[0].weight, nn.init.calculate_gain("relu"))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    net = wrap(model)

    def step(large: Tensor) -> tuple[float, float]:
        small = F.interpolate(large, scale_factor=0.5, mode="bicubic", antialias=True)
        optimizer.zero_grad()
        loss = F.mse_loss(net(small), large)
        loss.backward()
        optimizer.step()
        return loss.item(), (10 * torch.log10(1 / loss.detach())).item()

    batches = some(lambda: torch.rand(2, 1, 12, 12))
    frozen = [(torch.rand(2, 1, 6, 6),) for _ in range(2)]
    return Made(step, batches, {"model": model, "optimizer": optimizer}, (model, frozen))


class Pairs(nn.Module):
    """One network looks at both images; a head says whether they show the same."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(100, 8))
        self.head = nn.Sequential(nn.Linear(16, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.sigmoid(self.head(torch.cat((self.look(a), self.look(b)), 1)))


@program(*EVERY)
def pairs(wrap: Wrap) -> Made:
    model = Pairs()
    optimizer = torch.optim.Adadelta(model.parameters())
    criterion = nn.BCELoss()
    net = wrap(model)

    def step(a: Tensor, b: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        answer = net(a, b).squeeze()
        loss = criterion(answer, same)
        loss.backward()
        optimizer.step()
        right = torch.where(answer > 0.5, 1, 0).eq(same.view_as(answer)).sum()
        return loss.detach(), right

    batches = some(lambda: (torch.randn(4, 1, 12, 12), torch.randn(4, 1, 12, 12), torch.randint(0, 2, (4,)).float()))
    state = {"model": model, "optimizer": optimizer}
    return Made(step, batches, state, (model, [(a, b) for a, b, _ in batches]))


class Segment(nn.Module):
    """Down and up again with shortcuts, instance norms, and a dilated middle."""

    def __init__(self) -> None:
        super().__init__()
        self.d1, self.d2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, 2, 1)
        self.middle = nn.Conv2d(8, 8, 3, padding=2, dilation=2)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.out = nn.Conv2d(8, 3, 1)
        self.norm = nn.InstanceNorm2d(8, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        a = F.leaky_relu(self.d1(x), 0.1)
        b = F.leaky_relu(self.norm(self.middle(self.d2(a))), 0.1)
        b = F.interpolate(self.up(b), size=a.shape[2:], mode="bilinear", align_corners=False)
        return self.out(torch.cat([a, b], dim=1))


@program(*EVERY)
def segment_with_dice(wrap: Wrap) -> Made:
    model = Segment()
    optimizer = torch.optim.RAdam(model.parameters(), 1e-2)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        logits = net(x)
        hot = F.one_hot(y, 3).permute(0, 3, 1, 2).float()
        soft = logits.softmax(1)
        dice = 1 - (2 * (soft * hot).sum((2, 3)) + 1) / (soft.sum((2, 3)) + hot.sum((2, 3)) + 1)
        loss = F.cross_entropy(logits, y, weight=torch.tensor([1.0, 2.0, 0.5])) + dice.mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = some(lambda: (torch.randn(2, 1, 9, 9), torch.randint(0, 3, (2, 9, 9))))
    return Made(step, batches, {"model": model, "optimizer": optimizer}, (model, [(x,) for x, _ in batches]))
