"""`EmbeddingBag(mode="sum", sparse=True)` with weights raised an error of torch's fakes."""

import torch

PROGRAMS, EAGER_CALLS = 1, 1


def make():
    torch.manual_seed(0)
    bag = torch.nn.EmbeddingBag(9, 4, mode="sum", sparse=True)
    optimizer = torch.optim.SparseAdam(list(bag.parameters()), lr=0.1)

    def step(indices, offsets, weights):
        optimizer.zero_grad()
        loss = bag(indices, offsets, per_sample_weights=weights).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    numbers = torch.Generator().manual_seed(1)
    offsets = torch.tensor([0, 3, 3, 7])
    calls = (
        (torch.randint(9, (10,), generator=numbers), offsets, torch.rand(10, generator=numbers)) for _ in range(5)
    )
    return step, calls, lambda: [bag.weight.detach().clone()]
