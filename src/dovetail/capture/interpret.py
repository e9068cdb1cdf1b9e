"""Run a torch.fx graph node by node, telling the recorder where each node comes from.

Dynamo turns `torch.utils.checkpoint` into an operator with the region as its body; here it becomes a checkpoint again,
so that backward recomputes the region as the user asked, with eager's own code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate
from torch.utils.checkpoint import checkpoint

from dovetail.capture.origins import OriginTracker
from dovetail.capture.places import truth_of
from dovetail.ir.provenance import origin_of
from dovetail.torch_compat.autograd import version_of
from dovetail.torch_compat.traced_numbers import is_traced

_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint
_CHECKPOINT_OPTIONS = ("preserve_rng_state", "determinism_check", "debug", "early_stop")


class GraphInterpreter(fx.Interpreter):
    """fx.Interpreter that reports origins, restores checkpoint regions, and computes floats of sizes as Python does.

    in_region: context manager factory, entered while a checkpoint region runs. number_for: see `NumberTrace`; without
    it, floats are torch's symbols, of which it puts sums and products in order.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        origins: OriginTracker,
        in_region: Callable[[], Any],
        number_for: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(module, garbage_collect_values=False)
        self._origins = origins
        self._in_region = in_region
        self._number_for = number_for
        self._traced: dict[int, tuple[Any, Any]] = {}  # by identity: torch's symbols for floats, and traced numbers

    def run_node(self, n: fx.Node) -> Any:
        """Run one node with its origin announced."""
        if n.op in ("placeholder", "output"):
            return super().run_node(n)
        with self._origins.at(origin_of(n)):
            return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call, or open a checkpoint region."""
        if target is _CHECKPOINT:
            return self._run_checkpoint(args, kwargs)
        if self._number_for is None:
            return super().call_function(target, args, kwargs)
        if _is_of_numbers(target) and not any(isinstance(x, torch.Tensor) for x in args):
            return self._of_numbers(target, args, kwargs)
        if self._traced:
            taken: Any = map_aggregate(args, self._as_python_has_it)
            named: Any = map_aggregate(kwargs, self._as_python_has_it)
            args, kwargs = tuple(taken), dict(named)
        return super().call_function(target, args, kwargs)

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call; a truth value of a tensor is in a symbol for a whole number, which programs have."""
        if target == "item" and args[0].dtype is torch.bool and self._number_for is not None:
            return truth_of(args[0])
        return super().call_method(target, args, kwargs)

    def _of_numbers(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of numbers: torch's symbol for a float, beside which the number is traced."""
        found = super().call_function(target, args, kwargs)
        if type(found) is torch.SymFloat and not is_traced(found):
            given = [self._as_python_has_it(x, sizes_too=True) for x in args]
            traced = super().call_function(target, tuple(given), kwargs)
            if is_traced(traced):
                self._traced[id(found)] = found, traced
        return found

    def _as_python_has_it(self, item: Any, *, sizes_too: bool = False) -> Any:
        """The traced number that torch's symbol stands for. sizes_too: for whole numbers as well."""
        if sizes_too and type(item) is torch.SymInt and self._number_for is not None:
            return self._number_for(item)
        return self._traced[id(item)][1] if id(item) in self._traced else item

    def _run_checkpoint(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        region: fx.GraphModule = args[0]
        options = {name: kwargs[name] for name in _CHECKPOINT_OPTIONS if name in kwargs}
        context_fn = region.meta.get("_checkpoint_context_fn")
        if context_fn is not None:
            options["context_fn"] = context_fn

        closed_over = _ClosedOver(args[1:])

        def run_region(*differentiable: Any) -> Any:
            with self._in_region(), closed_over.watched():
                inputs = closed_over.merge(differentiable)
                return GraphInterpreter(region, self._origins, self._in_region, self._number_for).run(*inputs)

        return checkpoint(run_region, *closed_over.differentiable, use_reentrant=False, **options)


def _is_of_numbers(target: Any) -> bool:
    """Whether a function of Python's, or torch's for its symbols, computes a number of numbers."""
    is_torchs = str(getattr(target, "__name__", "")).lstrip("_").startswith("sym_")
    return is_torchs or getattr(target, "__module__", "") in ("_operator", "builtins", "math")


class _ClosedOver:
    """Inputs of a checkpoint region, of which those without gradients do not go through checkpoint's arguments.

    Dynamo makes arguments of everything that a region reads. Checkpoint refuses to recompute when an argument was
    written since; a buffer that the region itself writes (running statistics) was none in the user's program. So they
    are closed over here, and refused only when they were written by anyone else.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._inputs = inputs
        self._is_argument = [isinstance(item, torch.Tensor) and item.requires_grad for item in inputs]
        pairs = list(zip(inputs, self._is_argument, strict=True))
        self.differentiable = [item for item, is_argument in pairs if is_argument]
        self._closed = [item for item, is_argument in pairs if isinstance(item, torch.Tensor) and not is_argument]
        self._untouched: list[tuple[torch.Tensor, int]] | None = None

    def merge(self, differentiable: Sequence[Any]) -> list[Any]:
        """All inputs in order."""
        arriving = iter(differentiable)
        pairs = zip(self._inputs, self._is_argument, strict=True)
        return [next(arriving) if is_argument else item for item, is_argument in pairs]

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """The region runs. First time: note what it leaves alone; later: that must be as it was."""
        before = [(tensor, version_of(tensor)) for tensor in self._closed]
        for tensor, version in self._untouched or ():
            if version_of(tensor) != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    "a tensor that a checkpoint region reads was written before the region ran again"
                )
        yield
        if self._untouched is None:
            self._untouched = [(tensor, version) for tensor, version in before if version_of(tensor) == version]
