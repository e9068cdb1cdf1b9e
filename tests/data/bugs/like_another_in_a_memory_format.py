"""A tensor like another one, in a memory format that is named, was recorded to lie as the other one. So were padded volumes without a
batch, which have a memory format of their own."""

import torch
import torch.nn.functional as F


def program(x, image):
    made = []
    for create in (torch.zeros_like, torch.ones_like, torch.rand_like, torch.randn_like):
        contiguous = create(x, memory_format=torch.contiguous_format)
        last = create(image, memory_format=torch.channels_last)
        made += [contiguous, contiguous + 1, last, last * 2, create(x, memory_format=torch.preserve_format)]
    padded = [F.pad(image.contiguous(memory_format=torch.channels_last), [1] * 6, mode=mode) for mode in ("reflect", "replicate")]
    return *made, torch.full_like(x, 2.0, memory_format=torch.contiguous_format), *padded, padded[0] * 2, padded[1].relu()


def inputs():
    return torch.randn(4, 3).t(), torch.randn(2, 3, 4, 5)
