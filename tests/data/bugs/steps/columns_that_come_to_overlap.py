"""Views that lay apart when the step was captured, and share bytes in a later call: the program is for separate ones."""

import torch

PROGRAMS = 1


def make():
    buffer = torch.zeros(8, 3)
    column = buffer[:, 0]

    def step(x):
        column.add_(1)
        return x + column

    def calls():
        for place in (1, 2, 1, 0):
            yield (buffer[:, place],)

    return step, calls(), lambda: [buffer.clone()]


REFUSES_LAST = "DT-ALIAS-001"
