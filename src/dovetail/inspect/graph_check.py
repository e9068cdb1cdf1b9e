"""Run a graph and compare every node's result with its `meta["val"]`.

Compilers rely on the description: a node whose real result has other strides fails far from the wrong
description. Structure (a tuple is not a list), dtype, shape, strides, device, layout, and numbers are compared.
Strides count where they matter: in dimensions above 1 of tensors that have elements.

Symbolic sizes are bound from the inputs; data-dependent ones where they first occur alone.
Cost: about 10 us a node besides the node itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from dovetail.errors import GraphMismatch
from dovetail.ir.convert import scalar_of
from dovetail.ir.fx_sizes import fold_expression
from dovetail.ir.provenance import origin_of
from dovetail.ir.sizes import SizeExpr
from dovetail.torch_compat.symbols import SYMBOLIC_TYPES

_SEQUENCES = (tuple, list)


class GraphChecker(fx.Interpreter):
    """Interprets a graph module and raises GraphMismatch at the first node that gives something else than it says.

    findings: with `collect`, what was found instead of raising, in order of the nodes; one per node at most.
    """

    def __init__(self, gm: fx.GraphModule, *, collect: bool = False) -> None:
        super().__init__(gm)
        self.findings: list[GraphMismatch] = []
        self._collect = collect
        self._numbers: dict[str, Any] = {}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph. Raises: GraphMismatch."""
        self.findings.clear()
        self._numbers.clear()
        given = list(self.module.graph.process_inputs(*args)) if isinstance(self.module, fx.GraphModule) else list(args)
        holders = [node for node in self.graph.nodes if node.op == "placeholder"]
        for node, value in zip(holders, given, strict=False):
            self._bind(node.meta.get("val"), value)
        return super().run(*args, **kwargs)

    def run_node(self, n: fx.Node) -> Any:
        """Run one node and check it."""
        result = super().run_node(n)
        if "val" in n.meta and n.op != "output":
            self._bind(n.meta["val"], result)
            difference = self._difference(n.meta["val"], result, "")
            if difference is not None:
                self._report(n, *difference)
        return result

    def _report(self, node: fx.Node, what: str, expected: str, found: str) -> None:
        sizes = ", ".join(f"{name} = {number}" for name, number in self._numbers.items())
        error = GraphMismatch(
            name=node.name,
            node=str(node.format_node()),
            origin=str(origin_of(node)),
            what=what,
            expected=expected,
            found=found,
            hint=f"sizes in this run: {sizes}" if sizes else "the sizes of this graph are fixed",
        )
        if not self._collect:
            raise error
        self.findings.append(error)

    # --- comparing ----------------------------------------------------------------------------------------------

    def _difference(self, said: Any, real: Any, place: str) -> tuple[str, str, str] | None:
        """What differs, as it is said, and as it is; None when they agree."""
        where = f" of item {place}" if place else ""
        if isinstance(said, _SEQUENCES) or isinstance(real, _SEQUENCES):
            return self._difference_of_sequences(said, real, place)
        if isinstance(said, torch.Tensor) and isinstance(real, torch.Tensor):
            return self._difference_of_tensors(said, real, where)
        if isinstance(said, torch.Tensor) or isinstance(real, torch.Tensor) or (said is None) != (real is None):
            return f"the kind of result{where}", _kind(said), _kind(real)
        if isinstance(said, (bool, int, float, *SYMBOLIC_TYPES)):
            number = self._number(said)
            same = number is None or number == real or (number != number and real != real)
            return None if same else (f"the number{where}", f"{said} = {number}", str(real))
        return None

    def _difference_of_sequences(self, said: Any, real: Any, place: str) -> tuple[str, str, str] | None:
        where = f" of item {place}" if place else ""
        kinds = [next((k for k in _SEQUENCES if isinstance(item, k)), None) for item in (said, real)]
        if kinds[0] is not kinds[1]:
            return f"the structure{where}", _kind(said), _kind(real)
        if len(said) != len(real):
            return f"the number of items{where}", str(len(said)), str(len(real))
        for index, (one, other) in enumerate(zip(said, real, strict=True)):
            difference = self._difference(one, other, f"{place}.{index}" if place else str(index))
            if difference is not None:
                return difference
        return None

    def _difference_of_tensors(self, said: torch.Tensor, real: torch.Tensor, where: str) -> tuple[str, str, str] | None:
        for what, one, other in (
            ("dtype", said.dtype, real.dtype),
            ("device", said.device, real.device),
            ("layout", said.layout, real.layout),
            ("rank", said.dim(), real.dim()),
        ):
            if one != other:
                return f"the {what}{where}", str(one), str(other)
        shape = self._numbers_of(said.shape, real.shape)
        if shape != tuple(real.shape):
            return f"the shape{where}", _sizes(said.shape, shape), str(tuple(real.shape))
        if said.layout is not torch.strided or real.numel() == 0:
            return None
        stride = self._numbers_of(said.stride(), real.stride())
        matters = [size > 1 for size in real.shape]
        if any(m and a != b for m, a, b in zip(matters, stride, real.stride(), strict=True)):
            return f"the strides{where}", _sizes(said.stride(), stride), str(tuple(real.stride()))
        return None

    # --- symbols ------------------------------------------------------------------------------------------------

    def _bind(self, said: Any, real: Any) -> None:
        """Learn what the symbols are that stand alone, where they are met first."""
        if isinstance(said, torch.Tensor) and isinstance(real, torch.Tensor):
            if said.layout is torch.strided and real.layout is torch.strided and said.dim() == real.dim():
                self._bind([*said.shape, *said.stride()], [*real.shape, *real.stride()])
        elif isinstance(said, _SEQUENCES) and isinstance(real, _SEQUENCES):
            for one, other in zip(said, real, strict=False):
                self._bind(one, other)
        elif isinstance(said, SYMBOLIC_TYPES):
            expr = scalar_of(said)
            if isinstance(expr, SizeExpr) and expr.op == "symbol":
                self._numbers.setdefault(str(expr.args[0]), real)

    def _number(self, said: Any) -> Any:
        """A number, or what a symbolic one is in this run; None when that is not known."""
        if not isinstance(said, SYMBOLIC_TYPES):
            return said
        expr = scalar_of(said)
        if not isinstance(expr, SizeExpr):
            return expr
        try:
            return fold_expression(
                expr,
                lambda part: self._numbers[str(part.args[0])] if part.op == "symbol" else None,
                lambda function, args: function(*args),
            )
        except KeyError:
            return None

    def _numbers_of(self, said: Sequence[Any], real: Sequence[int]) -> tuple[Any, ...]:
        numbers = [self._number(size) for size in said]
        return tuple(b if a is None else a for a, b in zip(numbers, real, strict=True))


def _sizes(said: Sequence[Any], numbers: tuple[Any, ...]) -> str:
    text = f"({', '.join(map(str, said))})"
    return text if not any(isinstance(size, SYMBOLIC_TYPES) for size in said) else f"{text} = {numbers}"


def _kind(item: object) -> str:
    if isinstance(item, torch.Tensor):
        return f"a tensor {tuple(item.shape)}"
    return "None" if item is None else f"a {type(item).__name__}"
