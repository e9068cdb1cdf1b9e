"""A step whose object merely holds a data loader, a large array and a large table was refused."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

PROGRAMS = 1


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.loader = DataLoader(torch.arange(6.0), batch_size=2)
        self.batches = iter(self.loader)
        self.images = np.zeros((1000, 1000))
        self.table = {n: [n] for n in range(20_000)}
        self.net = nn.Linear(3, 3)
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        self.seen = 0

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.net(x).square().sum()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def make():
    trainer = Trainer()

    def calls():
        for number in range(5):
            trainer.table[number] = None  # what the step does not read may change
            trainer.seen += 1
            yield (torch.ones(2, 3) / (1 + number),)

    return trainer.step, calls(), lambda: [trainer.net.weight.detach().clone()]
