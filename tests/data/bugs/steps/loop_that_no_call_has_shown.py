"""Recording never ended where a loop over what data leave of a tensor is new to a step that eager mode has shown before."""

import torch

PROGRAMS = 2
EAGER_CALLS = 2


class Boxes:
    are_thinned = False


def make():
    Boxes.are_thinned = False

    def step(scores):
        if torch.rand(()) > 1.0:  # never: data decide, so that a call in eager mode shows it
            scores = scores * 2.0
        left, kept = scores.argsort(descending=True), []
        while Boxes.are_thinned and len(left) > 0:
            first = left[0]
            kept.append(int(first))
            left = left[(scores[left] - scores[first]).abs() > 0.1]
        return scores, kept

    def calls():
        for number in range(6):
            Boxes.are_thinned = number >= 2
            yield (torch.linspace(0.0, 1.0, 5),)

    return step, calls(), lambda: []
