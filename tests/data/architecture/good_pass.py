# module: dovetail.passes.good_pass
# expect: nothing
"""Everything here is allowed: public torch, lower layers, operators with an underscore, its own private names."""

from collections import namedtuple

import torch
from dovetail.analysis import alias
from dovetail.errors import DovetailError
from dovetail.ir.program import Program

aten = torch.ops.aten
Pair = namedtuple("Pair", ["first", "second"])


class Rewriter:
    _limit = 3

    def __init__(self) -> None:
        super().__init__()
        self._seen = aten._softmax.default
        self._copy = torch.ops.aten._to_copy.default
        self._pair = Pair(1, 2)._replace(first=self._limit)

    @classmethod
    def limit(cls) -> int:
        return cls._limit + Rewriter._limit + type(cls)._limit


def rewrite(program: Program) -> Program:
    if getattr(program, "nodes", None) is None or alias is None:
        raise DovetailError(what=program.__class__.__name__)
    return program
