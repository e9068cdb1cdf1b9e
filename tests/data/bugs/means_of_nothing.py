"""Gradients of losses that are means over no elements, and images of an empty batch that are made larger, could not be recorded."""

import torch
import torch.nn.functional as F


def program(x, images):
    total = sum(loss(x, x.detach()).nan_to_num(1.0) for loss in (F.mse_loss, F.smooth_l1_loss, F.huber_loss))
    return total, F.interpolate(images, scale_factor=2)


def inputs():
    return torch.zeros(0, 3, requires_grad=True), torch.zeros(0, 1, 2, 2)
