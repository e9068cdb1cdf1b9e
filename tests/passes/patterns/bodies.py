"""Writes in the bodies of control flow, and around it."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.passes.patterns.pattern import Pattern

higher_order = torch.ops.higher_order


def branch_with_a_temporary(x: Tensor) -> Tensor:
    def one(x: Tensor) -> tuple[Tensor]:
        return (x.sin().add_(1),)

    def other(x: Tensor) -> tuple[Tensor]:
        return (x.cos().mul_(2),)

    result: Tensor = higher_order.cond(x.sum() > 0, one, other, (x,))[0]
    return result


def branch_with_parts(x: Tensor) -> Tensor:
    def one(x: Tensor) -> tuple[Tensor]:
        y = x * 2
        y[:2] = 0
        return (y,)

    result: Tensor = higher_order.cond(x.sum() > 0, one, lambda x: (x * 3,), (x,))[0]
    return result


def written_after_a_branch(x: Tensor) -> Tensor:
    result: Tensor = higher_order.cond(x.sum() > 0, lambda x: (x.sin(),), lambda x: (x.cos(),), (x,))[0]
    x.add_(1)
    return result.mul_(2)


def loop_with_a_temporary(x: Tensor, count: Tensor) -> Tensor:
    def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        y[:1].add_(1)
        return i + 1, y

    result: Tensor = higher_order.while_loop(lambda i, x: i < 3, body, (count, x), ())[1]
    return result


def loop_reads_the_intermediate(x: Tensor, count: Tensor) -> Tensor:
    y = x * 2

    def body(i: Tensor, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, z + y.sin().mul_(2)

    result: Tensor = higher_order.while_loop(lambda i, z, y: i < 3, body, (count, x * 1), (y,))[1]
    return y.add_(1) + result


def loop_fills_a_buffer(x: Tensor, count: Tensor) -> Tensor:
    def body(i: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, buffer.index_put((i.view(1),), torch.ones(1, 4))

    result: Tensor = higher_order.while_loop(lambda i, buffer: i < 3, body, (count, x), ())[1]
    return result


PATTERNS = (
    Pattern("branch: a temporary", branch_with_a_temporary, lambda: (torch.randn(4, 4),)),
    Pattern("branch: parts", branch_with_parts, lambda: (torch.randn(4, 4),)),
    Pattern("branch: written afterwards", written_after_a_branch, lambda: (torch.randn(4, 4),)),
    Pattern("loop: a temporary", loop_with_a_temporary, lambda: (torch.randn(4, 4), torch.tensor(0))),
    Pattern(
        "loop: reads the intermediate",
        loop_reads_the_intermediate,
        lambda: (torch.randn(4, 4), torch.tensor(0)),
        report="xla#45912",
    ),
    Pattern(
        "loop: fills a buffer",
        loop_fills_a_buffer,
        lambda: (torch.randn(8, 4), torch.tensor(0)),
        copies=3,
        why="what a loop carries belongs to the loop: each turn makes it again",
        report="jax#25399",
    ),
)
