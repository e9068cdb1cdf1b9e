"""`exponential_` and its like with a generator of the caller's were refused."""

import torch

PROGRAMS = 1


def make():
    generator = torch.Generator().manual_seed(3)
    seen = torch.zeros(4, 5)

    def step(x):
        seen.cauchy_(generator=generator).add_(torch.empty_like(x).log_normal_(1.0, 0.5, generator=generator))
        tries = torch.empty(3).geometric_(0.3, generator=generator)
        return (x / torch.empty_like(x).exponential_(generator=generator)).argmax(-1), tries

    calls = ((torch.arange(20.0).view(4, 5) + number,) for number in range(4))
    return step, calls, lambda: [seen.clone(), generator.get_state()]
