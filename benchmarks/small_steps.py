"""Training steps of small networks, which spend their time on calls, and of some larger ones: each a function without
arguments.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models import build_workload
from benchmarks.training_steps import usual_step
from examples.demo.model import Gpt, GptConfig

Step = Callable[[], object]


def trained(model: nn.Module, loss_of: Callable[[], Tensor]) -> Step:
    """A step of AdamW on a loss."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def mlp(width: int, batch: int, layers: int = 4) -> Step:
    """Some layers with ReLU, squared error."""
    model = nn.Sequential(*[layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())])
    x, y = torch.randn(batch, width), torch.randn(batch, width)

    def loss_of() -> Tensor:
        error: Tensor = model(x) - y
        return (error**2).mean()

    return trained(model, loss_of)


def physics_informed() -> Step:
    """A network whose second derivatives are in its loss: u_t = u_xx - u^3 + u. Raissi et al. 2019."""
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    points = torch.rand(64, 2)

    def loss_of() -> Tensor:
        at = points.clone().requires_grad_()
        u = model(at)
        (first,) = torch.autograd.grad(u.sum(), at, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), at, create_graph=True)
        return ((first[:, 1:] - second[:, :1] + u**3 - u) ** 2).mean()

    return trained(model, loss_of)


def recurrent(steps: int) -> Step:
    """A GRU cell over some time steps, and a linear layer on the last."""
    cell, head = nn.GRUCell(16, 32), nn.Linear(32, 1)
    x, y = torch.randn(steps, 16, 16), torch.randn(16, 1)

    def loss_of() -> Tensor:
        hidden = x.new_zeros(16, 32)
        for each in x.unbind():
            hidden = cell(each, hidden)
        return F.mse_loss(head(hidden), y)

    return trained(nn.ModuleList([cell, head]), loss_of)


def convolutional() -> Step:
    """Two convolutions and a linear layer, on pictures of 8x8, as of digits."""
    layers = (nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten())
    model = nn.Sequential(*layers, nn.Linear(16, 10))
    x, y = torch.randn(32, 1, 8, 8), torch.arange(32) % 10
    return trained(model, lambda: F.cross_entropy(model(x), y))


def atari() -> Step:
    """An agent that reads four screens of 84x84. Mnih et al. 2015."""
    convolutions = (
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
    )
    model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6))
    x, y = torch.randn(32, 4, 84, 84), torch.arange(32) % 6
    return trained(model, lambda: F.cross_entropy(model(x), y))


def deep_q() -> Step:
    """A step of deep Q learning, with a target network. Mnih et al. 2015."""
    online = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    target = copy.deepcopy(online)
    before, after, reward = torch.randn(64, 4), torch.randn(64, 4), torch.randn(64)
    actions, goes_on = torch.arange(64) % 2, torch.ones(64)

    def loss_of() -> Tensor:
        chosen = online(before).gather(1, actions[:, None])[:, 0]
        with torch.no_grad():
            wanted = reward + 0.99 * target(after).max(1)[0] * goes_on
        return F.smooth_l1_loss(chosen, wanted)

    return trained(online, loss_of)


def tiny_gpt() -> Step:
    """A GPT of 4 layers, 64 wide, on 16 tokens."""
    model = Gpt(GptConfig(vocabulary=65, context=16, layers=4, heads=4, width=64, dropout=0.0))
    tokens = torch.arange(17)[None] % 65
    return trained(model, lambda: model(tokens[:, :-1], tokens[:, 1:]))


def updates(kind: Callable[..., torch.optim.Optimizer], count: int) -> Step:
    """Updates of tensors of 64 times 64 elements, whose gradients are there."""
    parameters = [nn.Parameter(torch.randn(64, 64)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.randn(64, 64)
    return kind(parameters, 1e-3).step


def as_a_function(width: int, batch: int, layers: int = 4) -> Step:
    """The MLP as a function of its weights, with gradients by `torch.func` and SGD: each call leaves new weights."""
    x, y = torch.randn(batch, width), torch.randn(batch, width)
    state = {"weights": {name: 0.1 * torch.randn(width, width) for name in map("layer{}".format, range(layers))}}

    def loss_of(weights: dict[str, Tensor]) -> Tensor:
        h = x
        for weight in weights.values():
            h = F.relu(h @ weight)
        return ((h - y) ** 2).mean()

    def step() -> Tensor:
        gradients, loss = torch.func.grad_and_value(loss_of)(state["weights"])
        state["weights"] = {name: weight - 1e-3 * gradients[name] for name, weight in state["weights"].items()}
        return loss

    return step


def larger(model: str) -> Step:
    """The usual step of a model of `benchmarks.models.MODELS`, dropout included."""
    workload = build_workload(model)
    step, _ = usual_step(workload.model)
    return lambda: step(workload.inputs)


SMALL_STEPS: dict[str, Callable[[], Step]] = {
    "mlp 4x64, batch 32": lambda: mlp(64, 32),
    "mlp 4x256, batch 64": lambda: mlp(256, 64),
    "mlp 12x256, batch 64": lambda: mlp(256, 64, 12),
    "mlp 4x1024, batch 256": lambda: mlp(1024, 256),
    "PINN, second derivatives": physics_informed,
    "GRU cell, 32 time steps": lambda: recurrent(32),
    "digits CNN": convolutional,
    "Atari CNN": atari,
    "DQN with a target network": deep_q,
    "GPT 4x64, 16 tokens": tiny_gpt,
    "MLP 4x64 as a function": lambda: as_a_function(64, 32),
    "AdamW, 10 tensors": lambda: updates(torch.optim.AdamW, 10),
    "AdamW, 200 tensors": lambda: updates(torch.optim.AdamW, 200),
    "SGD, 200 tensors": lambda: updates(torch.optim.SGD, 200),
    "GPT-2, 4 layers, 1x32": lambda: larger("gpt2-4-short"),
    "GPT-2, 4 layers, 4x128": lambda: larger("gpt2-4"),
    "BERT, 4 layers, 4x128": lambda: larger("bert"),
    "Llama, 4 layers, 4x128": lambda: larger("llama"),
    "ResNet-18, 8 images": lambda: larger("resnet18"),
}
