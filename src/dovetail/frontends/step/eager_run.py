"""Calls of a step in eager mode, which show what its code reads and which numbers it takes off tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dovetail.capture.exclusive import replacing, step_is_watched
from dovetail.capture.item_log import ItemHints, ItemLog
from dovetail.frontends.step.output import output_is_unnoted
from dovetail.frontends.step.passed import leads_on
from dovetail.frontends.structure import flatten
from dovetail.reach.names import Names
from dovetail.reach.watcher import noted_reads
from dovetail.torch_compat.control_flow import sub_programs_by_dynamo
from dovetail.torch_compat.dynamo import compiled_functions_run_plainly


class EagerRuns:
    """What calls in eager mode have shown. read: names that the code reads. has_watched: whether there was one."""

    def __init__(self) -> None:
        self.read = Names()
        self.has_watched = False
        self._log = ItemLog()

    @property
    def hints(self) -> ItemHints:
        """The numbers and sizes that the last call took from data, to be handed out."""
        return ItemHints(self._log.numbers, self._log.sizes, is_log=self.has_watched)

    def run(self, step: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a step, and note what it reads, unless another thread does the same. Raises: what the step raises."""
        with replacing() as is_alone:
            if is_alone:
                self.has_watched = True
                return self._watched(step, args, kwargs)
        return step(*args, **kwargs)

    def _watched(self, step: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        leaves, _ = flatten((args, kwargs))
        log = ItemLog()
        noted = noted_reads([step, *filter(leads_on, leaves)])
        by_dynamo = sub_programs_by_dynamo(lambda graph, inputs: torch.fx.Interpreter(graph).run(*inputs))
        with step_is_watched(), compiled_functions_run_plainly(), by_dynamo, noted as reads, output_is_unnoted(), log:
            results = step(*args, **kwargs)
        self.read.add(reads)
        if log.numbers or log.sizes:
            self._log = log
        return results
