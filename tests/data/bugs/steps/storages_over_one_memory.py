"""Two tensors made from one NumPy array share bytes through storages that begin at different addresses; they were taken
for separate ones."""

import numpy as np
import torch

PROGRAMS = 0
REFUSES_LAST = "DT-ALIAS-001"


def make():
    array = np.zeros(8, np.float32)
    first, second = torch.from_numpy(array[:6]), torch.from_numpy(array[2:])

    def step(x):
        first.add_(x[:6])
        return second * 2

    return step, iter([(torch.ones(8),), (torch.ones(8),)]), lambda: [first.clone(), second.clone()]
