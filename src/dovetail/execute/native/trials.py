"""Answers to questions whether a row gives torch's bits: tried once, kept for the process and on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

import torch

from dovetail.execute.native import cache
from dovetail.execute.operator_runs import by_themselves
from dovetail.torch_compat.dispatch import Overload, has_own_kernels

_FOUND: dict[Hashable, bool] = {}
_LOCK = threading.RLock()


def answered(question: Hashable, target: Overload, trial: Callable[[], bool]) -> bool:
    """Whether a trial of an operator succeeds. While the processor rounds in another way: no.

    question: a dataclass whose text tells it from all others. trial: may raise Refused. What else it raises is the
    operator's own error, for dtypes that it does not take, or lack of memory: the node runs, and raises it where eager
    mode does.
    """
    with _LOCK:
        if question not in _FOUND:
            if not has_own_kernels(target):
                return False
            try:
                _FOUND[question] = _kept(question, target, trial)
            except Exception:
                return False
        return _FOUND[question]


def _kept(question: Hashable, target: Overload, trial: Callable[[], bool]) -> bool:
    """The answer: as a process found it that ran with the same kernels."""
    text = repr((question, str(target), torch.get_num_threads() > 1))
    answer = cache.recall("probe", text)
    if answer is not None:
        return bool(int(answer))
    with by_themselves():
        found = trial()
    cache.remember("probe", text, str(target), str(int(found)).encode())
    return found
