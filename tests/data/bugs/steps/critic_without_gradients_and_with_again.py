"""A step that turned `requires_grad` of a linear layer off and on again was refused: the layer had made a view of it."""

import torch
from torch import nn

PROGRAMS = 1


def _turn(module, on):
    for parameter in module.parameters():
        parameter.requires_grad = on


def make():
    torch.manual_seed(0)
    actor, critic = nn.Linear(3, 6), nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))
    for_actor, for_critic = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())

    def step(x, z):
        for_critic.zero_grad()
        difference = (critic(x) - critic(actor(z).detach())).square().mean()
        difference.backward()
        for_critic.step()
        _turn(critic, False)
        for_actor.zero_grad()
        view = critic[0].weight.t()
        loss = critic(actor(z)).mean()
        loss.backward()
        for_actor.step()
        critic.requires_grad_(True)
        return difference.item(), loss.detach(), view.requires_grad

    def state():
        weights = [*actor.parameters(), *critic.parameters()]
        moments = [x for made in (for_actor, for_critic) for each in made.state.values() for x in each.values()]
        return [(w.detach().clone(), w.grad.clone(), w.requires_grad) for w in weights] + [x.clone() for x in moments]

    numbers = torch.Generator().manual_seed(1)
    calls = ((torch.randn(4, 6, generator=numbers), torch.randn(4, 3, generator=numbers)) for _ in range(5))
    return step, calls, state
