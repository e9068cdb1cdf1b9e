"""Do operators that write give, bit by bit, what their functional forms give? Asked of every operator torch can sample.

`python -m tests.ops.writing_forms --samples 3` runs torch's operator database, catches each ATen operator on its way,
and runs its writing form on copies, and its `out=` form into other memory and over operands that are laid out alike.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

from dovetail.ops.facts import facts_of, rounds_otherwise_in_place
from dovetail.ops.prims import clone_with_strides
from dovetail.ops.writing_forms import out_form, writing_form
from dovetail.pipeline.differential import same_bits
from dovetail.torch_compat.dispatch import DispatchMode, Overload

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool)


class Compare(DispatchMode):
    """Runs each operator as it is, and beside it what writes. found: (operator, form) -> the first difference."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, str], str] = {}
        self.compared: set[tuple[str, str]] = set()

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if isinstance(func, Overload) and isinstance(result, torch.Tensor) and facts_of(func).is_pure:
            self._compare(func, args, kwargs, result)
        return result

    def _compare(self, func: Overload, args: Any, kwargs: Mapping[str, Any], result: torch.Tensor) -> None:
        if result.layout is not torch.strided or result.is_quantized or result.numel() == 0 or _shares(result):
            return
        form = writing_form(func, result.dtype)
        if form is not None and form.returns_written and isinstance(args[0], torch.Tensor) and _alike(args[0], result):
            target = clone_with_strides(args[0])
            self._note(func, form.target, result, lambda: form.target(target, *args[1:], **kwargs))
        out = out_form(func, result.device.type)
        if out is None:
            return
        memory = clone_with_strides(result).fill_(1)
        place = memory.data_ptr()
        self._note(func, out, result, lambda: _still_at(place, memory, out(*args, **kwargs, out=memory)))
        if not facts_of(func).pointwise or rounds_otherwise_in_place(func, result.dtype):
            return
        for number, operand in enumerate(args):
            if isinstance(operand, torch.Tensor) and _alike(operand, result):
                over = [*args]
                over[number] = clone_with_strides(operand)
                self._note(func, out, result, lambda over=over, at=number: out(*over, **kwargs, out=over[at]))

    def _note(self, func: Overload, form: Overload, expected: torch.Tensor, run: Callable[[], Any]) -> None:
        key = (str(func), str(form))
        self.compared.add(key)
        try:
            actual = run()
        except (RuntimeError, IndexError, NotImplementedError, AssertionError) as error:
            self.found.setdefault(key, f"{type(error).__name__}: {error}".splitlines()[0])
            return
        if not same_bits(expected, actual):
            self.found.setdefault(key, f"other bits for {expected.dtype}{list(expected.shape)} {expected.stride()}")


def _still_at(place: int, memory: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    assert memory.data_ptr() == place, "other memory was taken"
    return result


def _alike(operand: torch.Tensor, result: torch.Tensor) -> bool:
    same = operand.dtype == result.dtype and operand.shape == result.shape and operand.stride() == result.stride()
    return same and operand.layout is torch.strided and not _shares(operand)


def _shares(tensor: torch.Tensor) -> bool:
    """Whether elements may share bytes."""
    reach = 0
    for step, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1):
        if step <= reach:
            return True
        reach += step * (size - 1)
    return tensor.is_conj() or tensor.is_neg()


def calls(dtype: torch.dtype, samples: int, only: str = "") -> Iterator[Callable[[], Any]]:
    """Calls of torch's sampled operators, their tensors as they come and transposed."""
    for entry in op_db:
        if (only and only not in entry.name) or dtype not in entry.supported_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                drawn = entry.sample_inputs("cpu", dtype)
                found = [sample for _, sample in zip(range(samples), drawn, strict=False)]
        except (RuntimeError, NotImplementedError):
            continue
        for sample in found:
            yield lambda e=entry, s=sample: e(s.input, *s.args, **s.kwargs)
            is_strided = isinstance(sample.input, torch.Tensor) and sample.input.layout is torch.strided
            if is_strided and sample.input.dim() > 1:
                turned = sample.input.transpose(0, -1).contiguous().transpose(0, -1)
                yield lambda e=entry, s=sample, t=turned: e(t, *s.args, **s.kwargs)


def compare_all(samples: int, dtypes: tuple[torch.dtype, ...] = DTYPES, only: str = "") -> Compare:
    """What was compared and found."""
    compare = Compare()
    for dtype in dtypes:
        for call in calls(dtype, samples, only):
            try:
                with warnings.catch_warnings(), torch.no_grad(), compare:
                    warnings.simplefilter("ignore")
                    call()
            except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError, AssertionError):
                continue  # the sample itself does not run here
    return compare


def main() -> int:
    """Print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    compare = compare_all(arguments.samples, only=arguments.only)
    for (operator, form), difference in sorted(compare.found.items()):
        print(f"{operator} -> {form}: {difference}")
    print(f"{len(compare.compared)} pairs compared, {len(compare.found)} differ")
    return 1 if compare.found else 0


if __name__ == "__main__":
    sys.exit(main())
