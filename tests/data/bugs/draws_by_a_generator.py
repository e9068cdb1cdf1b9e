"""`exponential_`, `geometric_`, `cauchy_` and `log_normal_` with a generator of the caller's were refused."""

import torch

DYNAMO = False
_GENERATOR = torch.Generator()


def program(x):
    choice = (x / torch.empty_like(x).exponential_(2.0, generator=_GENERATOR)).argmax(-1)
    x.t().cauchy_(1.0, 2.0, generator=_GENERATOR)
    part = x[1:, ::2]
    part.log_normal_(generator=_GENERATOR)
    trials = torch.empty(5, dtype=torch.int64).geometric_(0.2, generator=_GENERATOR)
    return choice, part, trials, torch.rand(3, generator=_GENERATOR)


def inputs():
    _GENERATOR.manual_seed(3)
    return (torch.rand(4, 6),)
