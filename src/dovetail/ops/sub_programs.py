"""Operators over subgraphs (`cond`, `map`, `scan`, `while_loop`) as primitives of a program.

Their subgraphs stay what torch made of them, graphs of operators, and run as eager runs them: below autograd, which
has been recorded already as another such operator with subgraphs of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.ir.prim import Prim
from dovetail.ops.facts import facts_of
from dovetail.torch_compat.autograd import below_autograd
from dovetail.torch_compat.control_flow import let_sizes_be_unknown
from dovetail.torch_compat.dispatch import DispatchMode, HigherOrder, storage_key
from dovetail.torch_compat.pytree import TreeSpec, flatten, unflatten

# Of these torch promises that they only run their subgraphs; others write, or look into them.
_SUPPORTED = frozenset({"cond", "map_impl", "scan", "while_loop", "while_loop_stack_output"})


@dataclass(frozen=True, slots=True, eq=False)
class WithSubPrograms:
    """Runs an operator on operands, with all other arguments as they were. places: where the operands go."""

    operator: HigherOrder
    leaves: tuple[Any, ...]
    places: tuple[int, ...]
    spec: TreeSpec

    def __call__(self, *operands: object) -> object:
        leaves = list(self.leaves)
        for place, operand in zip(self.places, operands, strict=True):
            leaves[place] = operand
        args, kwargs = unflatten(leaves, self.spec)
        with below_autograd():
            return self.operator(*args, **kwargs)


def run_with_sub_programs(
    operator: HigherOrder, args: Sequence[Any], kwargs: Mapping[str, Any], is_operand: Callable[[object], bool]
) -> tuple[Prim, list[Any], object] | None:
    """The primitive for this application, its operands, and the result of running it once, on fakes.

    None when the operator is not supported, or when what a subgraph does to its operands is not only to read them.
    """
    leaves, spec = flatten((tuple(args), dict(kwargs)))
    held: list[Any] = [leaf for leaf in leaves if callable(leaf) and not is_operand(leaf)]
    if operator.name() not in _SUPPORTED or not all(isinstance(leaf, torch.fx.GraphModule) for leaf in held):
        return None
    if any(True for graph in held for _ in (*graph.parameters(), *graph.buffers())):
        return None  # tensors that are not operands
    places = tuple(place for place, leaf in enumerate(leaves) if is_operand(leaf))
    operands = [leaves[place] for place in places]
    let_sizes_be_unknown()
    watch = _Watch(operands)
    result = watch.run(operator, args, kwargs)
    if watch.writes:
        return None
    fixed = tuple(None if place in places else leaf for place, leaf in enumerate(leaves))
    name = operator.name()
    run = WithSubPrograms(operator, fixed, places, spec)
    python, is_tuple = f"torch.ops.higher_order.{name}", isinstance(result, tuple)
    return Prim(name, run, python, draws=watch.draws, effect=watch.effect, gives_tuple=is_tuple), operands, result


class _Watch(DispatchMode):
    """Notes what subgraphs do: whether one writes an operand, draws, or has effects."""

    supports_higher_order_operators = True

    def __init__(self, operands: Sequence[object]) -> None:
        super().__init__()
        self.writes = self.draws = self.effect = False
        self._outside = _storages_of(operands)

    def run(self, operator: HigherOrder, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        """Run the operator with each of its subgraphs watched."""
        leaves, spec = flatten((tuple(args), dict(kwargs)))
        watched = [self._around(leaf) if isinstance(leaf, torch.fx.GraphModule) else leaf for leaf in leaves]
        watched_args, watched_kwargs = unflatten(watched, spec)
        return operator(*watched_args, **watched_kwargs)

    def _around(self, sub_program: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object) -> object:
            before = self._outside
            self._outside = before | _storages_of(args)  # on fakes, rows and carries are copies of the operands
            try:
                with self:
                    return sub_program(*args)
            finally:
                self._outside = before

        return run

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, HigherOrder):
            self.writes |= func.name() not in _SUPPORTED  # as far as anyone knows
            return self.run(func, args, kwargs or {})
        facts = facts_of(func)
        self.draws |= facts.draws or facts.reads_generator
        self.effect |= facts.effect
        for position in facts.writes:
            written = args[position] if position < len(args) else None
            self.writes |= not isinstance(written, torch.Tensor) or storage_key(written) in self._outside
        return func(*args, **(kwargs or {}))


def _storages_of(values: Sequence[object]) -> frozenset[int]:
    return frozenset(storage_key(value) for value in values if isinstance(value, torch.Tensor))
