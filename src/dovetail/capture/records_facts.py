"""The part of the recorder that notes what is no operator of torch's: checks of facts, and primitives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from dovetail.capture.origins import OriginTracker
from dovetail.capture.places import truth_of
from dovetail.errors import DataDependentControlFlow, NoFakeKernel
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, Target, Value
from dovetail.ir.sizes import Scalar, SizeExpr
from dovetail.ops.prims import EXPECT
from dovetail.torch_compat.data_sizes import assume
from dovetail.torch_compat.fakes import DATA_DEPENDENT_ERRORS, NO_FAKE_KERNEL_ERRORS


class RecordsFacts:
    """See the module docstring. The attributes are those of the recorder."""

    nodes: list[Node]
    symbols: dict[str, Any]
    _expected: set[Scalar]
    _values: dict[int, Value]
    _origins: OriginTracker

    def operand_of(self, argument: object) -> Operand:
        """See `Recorder`."""
        raise NotImplementedError

    def _append(
        self, target: Target, args: tuple[Operand, ...], kwargs: tuple[tuple[str, Operand], ...], result: object
    ) -> None:
        raise NotImplementedError

    def expect(self, facts: Sequence[Scalar]) -> None:
        """Let the program check facts about its sizes that are only known when it runs; each once."""
        for fact in facts:
            is_own = isinstance(fact, SizeExpr) and all(name in self.symbols for name in fact.symbols())
            if is_own and fact not in self._expected:
                self._expected.add(fact)
                self._append(EXPECT, (fact, str(fact)), (), None)

    @contextmanager
    def named_errors(self, func: object) -> Iterator[None]:
        """Say which operator has no answer on fakes. Raises: NoFakeKernel; DataDependentControlFlow."""
        try:
            yield
        except NO_FAKE_KERNEL_ERRORS as error:
            raise NoFakeKernel(operator=str(func), origin=self._origins.here()) from error
        except DATA_DEPENDENT_ERRORS as error:
            raise DataDependentControlFlow(operator=str(func), origin=self._origins.here()) from error

    def recorded(self, make: Callable[[], Any]) -> Any:
        """See `RecordsSparse`."""
        raise NotImplementedError

    def expect_truth(self, make: Callable[[], torch.Tensor], answer: bool) -> None:
        """Let the program check that the truth of a tensor, which operators make, is `answer`.

        Raises: DataDependentControlFlow where symbols for what depends on data are not allowed.
        """
        found = self.recorded(lambda: truth_of(make()))
        assume(found if answer else torch.sym_not(found))

    def record_prim(self, prim: Prim, args: Sequence[object], result: torch.Tensor | None) -> None:
        """Append the application of one of dovetail's own primitives, with the (unrecorded) fake tensor it gives."""
        self._append(prim, tuple(map(self.operand_of, args)), (), result)

    def unrecorded(self, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The fake tensor that `make` builds, without a trace of how."""
        count = len(self.nodes)
        tensor = make()
        del self.nodes[count:]
        self._values.pop(id(tensor), None)
        return tensor
