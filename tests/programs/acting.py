"""Learning to act: policies, critics, values with targets, clipped ratios."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.harness import Made, Wrap, program, some

DOORS = ("step", "backend", "compile")


def _mlp(enters: int, leaves: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(enters, 12), nn.Tanh(), nn.Linear(12, leaves))


@program("step", "backend", "compile", captures=8)
def play_an_episode_and_reinforce(wrap: Wrap) -> Made:
    policy = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.6), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    act = wrap(policy)
    push = torch.tensor([[-0.1], [0.1]]) * torch.tensor([[0.0, 1.0, 0.0, -1.0]])

    def step(state: Tensor) -> tuple[Tensor, Tensor]:
        logs, rewards = [], []
        for _ in range(4):
            chances = F.softmax(act(state), dim=-1)
            chosen = torch.multinomial(chances, 1).squeeze(-1)
            logs.append(chances.gather(-1, chosen[:, None]).log().squeeze(-1))
            state = state + push[chosen]
            rewards.append(-state.square().sum(-1))
        returns: list[Tensor] = []
        total = torch.zeros_like(rewards[0])
        for reward in reversed(rewards):
            total = reward + 0.99 * total
            returns.insert(0, total)
        wanted = torch.stack(returns)
        wanted = (wanted - wanted.mean()) / (wanted.std() + 1e-6)
        loss = -(torch.stack(logs) * wanted).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), state

    return Made(step, some(lambda: torch.randn(2, 4)), {"policy": policy, "optimizer": optimizer})


class ActorCritic(nn.Module):
    """One body, two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.action, self.value = nn.Linear(4, 12), nn.Linear(12, 3), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.relu(self.body(x))
        return F.softmax(self.action(h), dim=-1), self.value(h).squeeze(-1)


@program(*DOORS)
def actor_and_critic(wrap: Wrap) -> Made:
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), 3e-2)
    net = wrap(model)

    def step(x: Tensor, rewards: Tensor) -> tuple[Tensor, Tensor]:
        chances, values = net(x)
        who = torch.distributions.Categorical(chances, validate_args=False)
        action = who.sample()
        advantage = rewards[torch.arange(len(x)), action] - values.detach()
        loss = (-who.log_prob(action) * advantage).sum() + F.smooth_l1_loss(values, rewards.max(1).values)
        loss = loss - 0.01 * who.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), action

    return Made(step, some(lambda: (torch.randn(5, 4), torch.randn(5, 3))), {"model": model, "optimizer": optimizer})


def _moves() -> tuple[Tensor, ...]:
    done = (torch.rand(6) < 0.2).float()
    return torch.randn(6, 4), torch.randint(0, 3, (6, 1)), torch.randn(6), torch.randn(6, 4), done


@program(*DOORS, captures=4)
def values_with_a_target(wrap: Wrap) -> Made:
    policy, target = _mlp(4, 3), _mlp(4, 3)
    target.load_state_dict(policy.state_dict())
    optimizer = torch.optim.AdamW(policy.parameters(), 1e-3, amsgrad=True)
    now, later = wrap(policy), wrap(target)

    def step(x: Tensor, action: Tensor, reward: Tensor, after: Tensor, done: Tensor) -> Tensor:
        found = now(x).gather(1, action)
        with torch.no_grad():
            best = later(after).max(1).values
        wanted = best * 0.99 * (1 - done) + reward
        loss = F.smooth_l1_loss(found, wanted.unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(policy.parameters(), 100)
        optimizer.step()
        mine, theirs = policy.state_dict(), target.state_dict()
        for key in mine:
            theirs[key] = mine[key] * 0.005 + theirs[key] * (1 - 0.005)
        target.load_state_dict(theirs)
        return loss.detach()

    return Made(step, some(_moves), {"policy": policy, "target": target, "optimizer": optimizer})


@program(*DOORS, captures=6)
def two_values_and_a_copy_now_and_then(wrap: Wrap) -> Made:
    policy = nn.ModuleDict({"state": _mlp(4, 1), "advantage": _mlp(4, 3)})
    target = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.RMSprop(policy.parameters(), 1e-3, centered=True)
    clock = {"calls": 0}

    def values(net: nn.ModuleDict, x: Tensor) -> Tensor:
        advantage = net["advantage"](x)
        return net["state"](x) + advantage - advantage.mean(1, keepdim=True)

    mine, theirs = wrap(lambda x: values(policy, x)), wrap(lambda x: values(target, x))

    def step(x: Tensor, action: Tensor, reward: Tensor, after: Tensor, done: Tensor) -> Tensor:
        with torch.no_grad():
            chosen = mine(after).argmax(1, keepdim=True)
            wanted = reward + 0.9 * (1 - done) * theirs(after).gather(1, chosen).squeeze(1)
        apart = wanted - mine(x).gather(1, action).squeeze(1)
        optimizer.zero_grad()
        apart.square().mean().backward()
        optimizer.step()
        clock["calls"] += 1
        if clock["calls"] % 3 == 0:
            target.load_state_dict(policy.state_dict())
        return apart.detach().abs() + 1e-5  # the priorities

    state = {"policy": policy, "target": target, "optimizer": optimizer, "clock": clock}
    return Made(step, some(_moves), state)


@program(*DOORS)
def clipped_ratios(wrap: Wrap) -> Made:
    actor, critic = _mlp(4, 2), _mlp(4, 1)
    spread = nn.Parameter(torch.zeros(2))
    parameters = [*actor.parameters(), *critic.parameters(), spread]
    optimizer = torch.optim.Adam(parameters, 3e-4, eps=1e-5)

    def loss_of(x: Tensor, action: Tensor, before: Tensor, wanted: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
        who = torch.distributions.Normal(actor(x), spread.exp().expand(x.shape[0], 2), validate_args=False)
        ratio = (who.log_prob(action).sum(1) - before).exp()
        with torch.no_grad():
            apart = ((ratio - 1) - ratio.log()).mean()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy = torch.max(-advantage * ratio, -advantage * torch.clamp(ratio, 0.8, 1.2)).mean()
        value = 0.5 * (critic(x).view(-1) - wanted).square().mean()
        return policy + 0.5 * value - 0.01 * who.entropy().sum(1).mean(), apart

    measured = wrap(loss_of)

    def step(*batch: Tensor) -> list[Tensor]:
        seen = []
        for rows in torch.randperm(batch[0].shape[0]).chunk(2):
            loss, apart = measured(*(part[rows] for part in batch))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
            seen += [loss.detach(), apart]
        return seen

    state = {"actor": actor, "critic": critic, "spread": spread, "optimizer": optimizer}
    batches = some(lambda: (torch.randn(8, 4), torch.randn(8, 2), torch.randn(8) - 2, torch.randn(8), torch.randn(8)))
    return Made(step, batches, state)


@program(*DOORS)
def advantages_backwards_in_time(wrap: Wrap) -> Made:
    critic = _mlp(3, 1)
    optimizer = torch.optim.SGD(critic.parameters(), 1e-2)
    value = wrap(critic)

    def step(x: Tensor, rewards: Tensor, done: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            values = value(x).squeeze(-1)
            advantages = torch.zeros_like(rewards)
            last = torch.zeros(rewards.shape[1])
            for t in reversed(range(rewards.shape[0])):
                alive = 1.0 - done[t]
                delta = rewards[t] + 0.99 * values[t + 1] * alive - values[t]
                advantages[t] = last = delta + 0.99 * 0.95 * alive * last
        loss = F.mse_loss(value(x[:-1]).squeeze(-1), advantages + values[:-1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), advantages

    batches = some(lambda: (torch.randn(6, 2, 3), torch.randn(5, 2), (torch.rand(5, 2) < 0.3).float()))
    return Made(step, batches, {"critic": critic, "optimizer": optimizer})


@program(*DOORS, captures=8)
def soft_actor_and_twin_critics(wrap: Wrap) -> Made:
    actor, critics = _mlp(4, 4), nn.ModuleList([_mlp(6, 1), _mlp(6, 1)])
    targets = copy.deepcopy(critics).requires_grad_(False)
    heat = torch.zeros(1, requires_grad=True)
    optimizers = [torch.optim.Adam(p, 1e-3) for p in (actor.parameters(), critics.parameters(), [heat])]

    def act(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log = actor(x).chunk(2, -1)
        log = torch.clamp(log, -5, 2)
        noise = torch.randn_like(mean)
        raw = mean + log.exp() * noise
        density = (-0.5 * noise.square() - log).sum(-1) - (2 * (0.6931 - raw - F.softplus(-2 * raw))).sum(-1)
        return torch.tanh(raw), density

    def least(nets: nn.ModuleList, x: Tensor, a: Tensor) -> Tensor:
        return torch.min(*(net(torch.cat([x, a], -1)).squeeze(-1) for net in nets))

    draw = wrap(act)

    def step(x: Tensor, a: Tensor, reward: Tensor, after: Tensor) -> Tensor:
        with torch.no_grad():
            later, density = draw(after)
            wanted = reward + 0.99 * (least(targets, after, later) - heat.exp() * density)
        first = sum(F.mse_loss(net(torch.cat([x, a], -1)).squeeze(-1), wanted) for net in critics)
        optimizers[1].zero_grad()
        first.backward()
        optimizers[1].step()
        action, density = draw(x)
        second = (heat.exp().detach() * density - least(critics, x, action)).mean()
        optimizers[0].zero_grad()
        second.backward()
        optimizers[0].step()
        third = -(heat * (density.detach() - 2)).mean()
        optimizers[2].zero_grad()
        third.backward()
        optimizers[2].step()
        with torch.no_grad():
            for kept, new in zip(targets.parameters(), critics.parameters(), strict=True):
                kept.data.mul_(0.995)
                kept.data.add_(0.005 * new.data)
        return torch.stack([first.detach(), second.detach(), third.detach()])

    state = {"actor": actor, "critics": critics, "targets": targets, "heat": heat, "optimizers": optimizers}
    batches = some(lambda: (torch.randn(5, 4), torch.rand(5, 2) * 2 - 1, torch.randn(5), torch.randn(5, 4)))
    return Made(step, batches, state)


@program(*DOORS)
def preferences_between_answers(wrap: Wrap) -> Made:
    policy = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), 1e-2)

    def log_of(model: nn.Module, text: Tensor) -> Tensor:
        logs = model(text[:, :-1]).log_softmax(-1)
        return logs.gather(-1, text[:, 1:, None]).squeeze(-1).sum(-1)

    def loss_of(better: Tensor, worse: Tensor) -> Tensor:
        mine = log_of(policy, better) - log_of(policy, worse)
        with torch.no_grad():
            theirs = log_of(reference, better) - log_of(reference, worse)
        return -F.logsigmoid(0.1 * (mine - theirs)).mean()

    measured = wrap(loss_of)

    def step(better: Tensor, worse: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = measured(better, worse)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = some(lambda: (torch.randint(0, 11, (3, 5)), torch.randint(0, 11, (3, 5))))
    return Made(step, batches, {"policy": policy, "reference": reference, "optimizer": optimizer})
