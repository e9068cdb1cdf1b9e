"""The random generators that operators of a program are given."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from dovetail.ir.program import Node


def given_generators(nodes: Iterable[Node]) -> list[torch.Generator]:
    """Those of the user's, each once, in the order in which they are met."""
    operands = (operand for node in nodes for operand in (*node.args, *(value for _, value in node.kwargs)))
    return list({id(each): each for each in operands if isinstance(each, torch.Generator)}.values())
