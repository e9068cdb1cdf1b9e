"""Find kernels that trust their operands: call each with wrong shapes and indices, and see which of them crash.

    python tests/artifact/kernel_probe.py [--only NAME ...] [--out found.json]

Calls come from torch's own database of operators, forward and backward. Each is repeated in a process of its own with
one operand changed: indices far outside, other shapes, other numbers. Operands lie right before (or right behind)
pages that nobody may read, so reading one element too many ends the process. What ends so must not be reached from a
file unless something checks the operands first: `docs/generate_operators.py` and `ops/preconditions.py` list it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

_PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_SAMPLES = 2
_CALLS = 4
_SECONDS = 4


class _Recorder(TorchDispatchMode):
    """Keeps the first calls of each overload."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[tuple[Any, Any, Any]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = self.calls.setdefault(str(func), [])
        if len(known) < _CALLS and func.namespace in ("aten", "prims"):
            known.append((func, _frozen(args), _frozen(kwargs or {})))
        return func(*args, **(kwargs or {}))


def _frozen(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return item.detach().clone() if item.layout is torch.strided else None
    if isinstance(item, tuple | list):
        return type(item)([_frozen(part) for part in item]) if type(item) in (tuple, list) else item
    return {key: _frozen(part) for key, part in item.items()} if isinstance(item, dict) else item


def recorded() -> dict[str, list[tuple[Any, Any, Any]]]:
    """Calls by overload, from the database of operators."""
    recorder = _Recorder()
    for op in op_db:
        for dtype in (torch.float32, torch.int64):
            if dtype not in op.dtypes:
                continue
            wants = dtype is torch.float32 and op.supports_autograd
            try:
                for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=wants)):
                    if number >= _SAMPLES:
                        break
                    with recorder:
                        result = op.op(sample.input, *sample.args, **sample.kwargs)
                        results = result if isinstance(result, tuple | list) else (result,)
                        total = [r.sum() for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
                        if total:
                            total[0].abs().backward()
            except Exception:
                continue
    return recorder.calls


def guarded(tensor: torch.Tensor, before: bool) -> torch.Tensor:
    """A copy that ends where a page begins that nobody may read; with `before`, it begins where one ends."""
    plain = tensor.contiguous()
    size = plain.numel() * plain.element_size()
    if size == 0:
        return plain
    pages = -(-size // _PAGE) * _PAGE
    start = _LIBC.mmap(None, pages + 2 * _PAGE, 3, 0x22, -1, 0)
    _LIBC.mprotect(start, _PAGE, 0)
    _LIBC.mprotect(start + _PAGE + pages, _PAGE, 0)
    at = start + _PAGE if before else start + _PAGE + pages - size
    buffer = (ctypes.c_char * size).from_address(at)
    made = torch.frombuffer(buffer, dtype=torch.uint8).view(plain.dtype).view(plain.shape)
    return made.copy_(plain)


def places(item: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every operand of a call, lists taken apart and whole."""
    if path and not isinstance(item, dict):
        yield path, item
    if isinstance(item, tuple | list | dict):
        for key, part in item.items() if isinstance(item, dict) else enumerate(item):
            yield from places(part, (*path, key))


def changed(item: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The operands with one of them replaced."""
    if not path:
        return value
    if isinstance(item, dict):
        return {key: changed(part, path[1:], value) if key == path[0] else part for key, part in item.items()}
    return type(item)([changed(p, path[1:], value) if i == path[0] else p for i, p in enumerate(item)])


def variants(item: Any) -> Iterator[tuple[str, Any]]:
    """Wrong values for an operand."""
    if isinstance(item, torch.Tensor):
        yield from _tensor_variants(item)
    elif isinstance(item, bool):
        yield "flipped", not item
    elif isinstance(item, int):
        yield from ((f"number {n}", n) for n in (0, -1, 3, 1000, 1 << 31, 1 << 62) if n != item)
    elif isinstance(item, float):
        yield from ((f"number {n}", n) for n in (0.0, -1.0, 1e30))
    elif isinstance(item, tuple | list) and all(isinstance(part, int) for part in item):
        yield "no numbers", type(item)()
        yield "more numbers", type(item)([*item, 1])
        yield "large numbers", type(item)([1000 for _ in item])


def _tensor_variants(item: torch.Tensor) -> Iterator[tuple[str, Any]]:
    if item.numel() and not item.dtype.is_floating_point and not item.dtype.is_complex and item.dtype != torch.bool:
        far = min(1 << 40, torch.iinfo(item.dtype).max)
        yield "indices far above", torch.full_like(item, far)
        if torch.iinfo(item.dtype).min < 0:
            yield "indices far below", torch.full_like(item, max(-far, torch.iinfo(item.dtype).min))
        last = item.clone()
        last.view(-1)[-1] = far
        yield "last index far above", last
    for dim in range(item.dim()):
        if item.shape[dim] > 1:
            yield f"dim {dim} of 1", item.narrow(dim, 0, 1).clone()
            yield f"dim {dim} shorter", item.narrow(dim, 0, item.shape[dim] - 1).clone()
        if item.shape[dim]:
            times = [1] * item.dim()
            times[dim] = 64 if item.numel() < 100_000 else 2
            yield f"dim {dim} longer", item.repeat(times)
    yield "no elements", item.new_empty([0, *item.shape[1:]])
    yield "one more dim", item.unsqueeze(0)
    if item.dim():
        yield "a scalar", item.reshape(-1)[0].clone() if item.numel() else item.new_zeros(())
        yield "flat", item.reshape(-1).clone()
    yield "another dtype", item.to(torch.float64 if item.dtype != torch.float64 else torch.float32)
    yield "None", None


def _guard_all(item: Any, before: bool) -> Any:
    if isinstance(item, torch.Tensor):
        return guarded(item, before)
    if isinstance(item, dict):
        return {key: _guard_all(part, before) for key, part in item.items()}
    return type(item)([_guard_all(p, before) for p in item]) if type(item) in (tuple, list) else item


def attempts(calls: list[tuple[Any, Any, Any]]) -> Iterator[tuple[str, Any, Any, Any]]:
    """All wrong calls of an overload."""
    for number, (func, args, kwargs) in enumerate(calls):
        whole = [args, kwargs]
        for path, item in places(whole):
            if len(path) < 2 or isinstance(item, dict):
                continue
            for what, value in variants(item):
                for before in (False, True):
                    yield f"call {number} operand {path}: {what} {before}", func, changed(whole, path, value), before


def probe(calls: list[tuple[Any, Any, Any]]) -> list[str]:
    """What ended a process, each with how."""
    found: list[str] = []
    listed = list(attempts(calls))
    start = 0
    while start < len(listed):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            _child(listed, start, writer)
        os.close(writer)
        told = b""
        while part := os.read(reader, 65536):
            told = (told + part)[-64:]
        os.close(reader)
        _, status = os.waitpid(child, 0)
        last = int(told.split()[-1]) if told.split() else start
        if status:
            sign = signal.Signals(status & 127).name if status & 127 else f"status {status}"
            found.append(f"{sign}: {listed[last][0]}")
            if len(found) >= 12:
                break
        start = last + 1 if status else len(listed)
    return found


def _child(listed: list[Any], start: int, writer: int) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        for number in range(start, len(listed)):
            os.write(writer, f"{number} ".encode())
            _, func, (args, kwargs), before = listed[number]
            signal.alarm(_SECONDS)
            try:
                result = func(*_guard_all(args, before), **_guard_all(kwargs, before))
                for item in result if isinstance(result, tuple | list) else (result,):
                    if isinstance(item, torch.Tensor):
                        item.sum()
            except Exception:
                pass
        signal.alarm(0)
    except BaseException:
        os._exit(3)
    os._exit(0)


def main() -> None:
    """Probe and write down what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("found.json"))
    parser.add_argument("--shard", default="0/1")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    begun = time.monotonic()
    calls = recorded()
    print(len(calls), "overloads recorded in", round(time.monotonic() - begun), "s", flush=True)
    shard, of = map(int, options.shard.split("/"))
    found: dict[str, list[str]] = {}
    for number, (name, of_name) in enumerate(sorted(calls.items())):
        if number % of != shard or (options.only and not any(wanted in name for wanted in options.only)):
            continue
        bad = probe(of_name)
        if bad:
            found[name] = bad
            print(name, bad[0], flush=True)
            options.out.write_text(json.dumps(found, indent=1))
    options.out.write_text(json.dumps(found, indent=1))
    print(len(found), "overloads ended their process;", round(time.monotonic() - begun), "s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
