"""Functional programs with correct in-place forms, written by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.analysis.written_programs import EFFECTS

_LIBRARY = torch.library.Library("dovetail_checks", "DEF")
_LIBRARY.define("bump_(Tensor(a!) x, Tensor by) -> Tensor")
_LIBRARY.define("note(Tensor x) -> ()")


def _bump(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    before = x.sum()
    x.add_(by)
    return before


def _note(x: torch.Tensor) -> None:
    EFFECTS.append(x.clone())


_LIBRARY.impl("bump_", _bump, "CPU")
_LIBRARY.impl("note", _note, "CPU")


@dataclass(frozen=True)
class Pair:
    """Two programs that mean the same on these inputs. donated: inputs whose memory may be left with anything."""

    functional: str
    inplace: str
    inputs: Callable[[], Mapping[str, Any]] = field(default=lambda: {"x": torch.randn(4), "y": torch.randn(4)})
    donated: frozenset[int] = frozenset()


def _square() -> Mapping[str, Any]:
    return {"x": torch.randn(4, 4), "y": torch.randn(4, 4)}


def _shared() -> Mapping[str, Any]:
    base = torch.randn(8)
    return {"x": base[:5], "y": base[3:], "z": torch.randn(5)}


def _mixed() -> Mapping[str, Any]:
    return {"x": torch.randn(4), "y": torch.randn(4, dtype=torch.float64)}


def _complex() -> Mapping[str, Any]:
    return {"x": torch.randn(4, dtype=torch.complex64), "y": torch.randn(4, dtype=torch.complex64)}


def _channels() -> Mapping[str, Any]:
    return {"x": torch.randn(3, 2), "mean": torch.zeros(2), "var": torch.ones(2)}


PAIRS: dict[str, Pair] = {
    "chain": Pair(
        "a = aten.mul.Tensor(x, 2)\nb = aten.add.Tensor(a, y)\nc = aten.relu.default(b)\nreturn c",
        "a = aten.mul.Tensor(x, 2)\nb = aten.add_.Tensor(a, y)\nc = aten.relu_.default(b)\nreturn c",
    ),
    "read before it is overwritten": Pair(
        "a = aten.mul.Tensor(x, 2)\nb = aten.exp.default(a)\nc = aten.sin.default(a)\n"
        "d = aten.sub.Tensor(b, c)\nreturn d",
        "a = aten.mul.Tensor(x, 2)\nb = aten.exp.default(a)\nc = aten.sin_.default(a)\n"
        "d = aten.sub_.Tensor(b, c)\nreturn d",
    ),
    "moved before the write": Pair(
        "a = aten.mul.Tensor(x, 2)\nb = aten.exp.default(a)\nc = aten.sum.default(a)\nreturn b, c",
        "a = aten.mul.Tensor(x, 2)\nc = aten.sum.default(a)\nb = aten.exp_.default(a)\nreturn b, c",
    ),
    "a scatter by a write through a view": Pair(
        "a = aten.mul.Tensor(x, 2)\ns = aten.slice.Tensor(a, 0, 1, 3)\nt = aten.neg.default(s)\n"
        "b = aten.slice_scatter.default(a, t, 0, 1, 3)\nc = aten.add.Tensor(b, y)\nreturn c",
        "a = aten.mul.Tensor(x, 2)\ns = aten.slice.Tensor(a, 0, 1, 3)\nt = aten.neg_.default(s)\n"
        "c = aten.add.Tensor(a, y)\nreturn c",
    ),
    "a view scatter by a copy": Pair(
        "a = aten.mul.Tensor(x, 2)\nt = aten.diagonal.default(y)\n"
        "b = prims.view_scatter(aten.split.Tensor, 1)(a, y2, 2, 1)\nc = aten.cos.default(b)\nreturn c, t",
        "a = aten.mul.Tensor(x, 2)\nt = aten.diagonal.default(y)\nl, r = aten.split.Tensor(a, 2, 1)\n"
        "d = aten.copy_.default(r, y2)\nc = aten.cos_.default(a)\nreturn c, t",
        lambda: {**_square(), "y2": torch.randn(4, 2)},
    ),
    "rows and columns": Pair(
        "a = aten.mm.default(x, y)\nr = aten.select.int(a, 0, 1)\ns = aten.exp.default(r)\n"
        "b = aten.select_scatter.default(a, s, 0, 1)\nq = aten.select.int(b, 1, 2)\np = aten.mul.Tensor(q, 3)\n"
        "c = aten.select_scatter.default(b, p, 1, 2)\nreturn c",
        "a = aten.mm.default(x, y)\nr = aten.select.int(a, 0, 1)\ns = aten.exp_.default(r)\n"
        "q = aten.select.int(a, 1, 2)\np = aten.mul_.Tensor(q, 3)\nreturn a",
        _square,
    ),
    "as_strided": Pair(
        "a = aten.clone.default(x)\nb = aten.as_strided_scatter.default(a, y, [2, 2], [4, 1], 5)\n"
        "c = aten.t.default(b)\nreturn c, b",
        "a = aten.clone.default(x)\nv = aten.as_strided.default(a, [2, 2], [4, 1], 5)\n"
        "w = aten.copy_.default(v, y)\nc = aten.t.default(a)\nreturn c, a",
        lambda: {"x": torch.randn(4, 4), "y": torch.randn(2, 2)},
    ),
    "an out argument": Pair(
        "a = aten.mm.default(x, y)\nb = aten.mm.default(a, x)\nc = aten.add.Tensor(b, a)\nreturn c",
        "o = aten.empty.memory_format([4, 4])\na = aten.mm.out(x, y, out=o)\nb = aten.mm.default(a, x)\n"
        "c = aten.add.out(b, a, out=a)\nreturn c",
        _square,
    ),
    "lists": Pair(
        "a = aten.exp.default(x)\nb = aten.sin.default(y)\nc, d = aten._foreach_mul.Scalar([a, b], 3)\n"
        "e, f = aten._foreach_add.List([c, d], [y, x], alpha=2)\nreturn e, f",
        "a = aten.exp.default(x)\nb = aten.sin.default(y)\naten._foreach_mul_.Scalar([a, b], 3)\n"
        "aten._foreach_add_.List([a, b], [y, x], alpha=2)\nreturn a, b",
    ),
    "an epilogue": Pair(
        "a = aten.mul.Tensor(x, 2)\nb = aten.add.Tensor(a, y)\nc = aten.sum.default(x)\n"
        "aten.copy_.default(x, b)\nreturn c",
        "c = aten.sum.default(x)\na = aten.mul_.Tensor(x, 2)\nb = aten.add_.Tensor(a, y)\nreturn c",
    ),
    "an epilogue that stays": Pair(
        "a = aten.mm.default(x, y)\nb = aten.relu.default(a)\naten.copy_.default(x, b)\nreturn b",
        "a = aten.mm.default(x, y)\nb = aten.relu_.default(a)\naten.copy_.default(x, b)\nreturn b",
        _square,
    ),
    "an epilogue through a view": Pair(
        "v = aten.select.int(x, 0, 1)\na = aten.mul.Tensor(v, 3)\nb = aten.select_scatter.default(x, a, 0, 1)\n"
        "c = aten.sum.default(b)\naten.copy_.default(x, b)\nreturn c",
        "v = aten.select.int(x, 0, 1)\na = aten.mul_.Tensor(v, 3)\nc = aten.sum.default(x)\nreturn c",
        _square,
    ),
    "inputs that overlap": Pair(
        "a = aten.add.Tensor(x, z)\nb = aten.mul.Tensor(y, 2)\naten.copy_.default(x, a)\nc = aten.sum.default(y)\n"
        "d = aten.view.default(x, [5])\nreturn b, c, d",
        "b = aten.mul.Tensor(y, 2)\na = aten.add_.Tensor(x, z)\nc = aten.sum.default(y)\n"
        "d = aten.view.default(x, [5])\nreturn b, c, d",
        _shared,
    ),
    "a donated input": Pair(
        "a = aten.sin.default(x)\nb = aten.add.Tensor(a, y)\nc = aten.neg.default(x)\nreturn b, c",
        "a = aten.sin.default(x)\nb = aten.add_.Tensor(a, y)\nc = aten.neg_.default(x)\nreturn b, c",
        donated=frozenset({0}),
    ),
    "several results": Pair(
        "a = aten.mul.Tensor(x, 2)\nv, i = aten.topk.default(a, 2)\nw = aten.exp.default(v)\n"
        "j = aten.mul.Tensor(i, 2)\nreturn w, j",
        "a = aten.mul.Tensor(x, 2)\nv, i = aten.topk.default(a, 2)\nw = aten.exp_.default(v)\n"
        "j = aten.mul_.Tensor(i, 2)\nreturn w, j",
    ),
    "a comparison in place": Pair(
        "a = aten.exp.default(x)\nm = aten.gt.Tensor(a, y)\nf = aten._to_copy.default(m, dtype=torch.float32)\n"
        "c = aten.add.Tensor(f, y)\nreturn c",
        "a = aten.exp.default(x)\nm = aten.gt_.Tensor(a, y)\nc = aten.add_.Tensor(m, y)\nreturn c",
    ),
    "a conversion": Pair(
        "a = aten.exp.default(x)\nb = aten._to_copy.default(y, dtype=torch.float32)\nc = aten.sin.default(b)\n"
        "s = aten.slice_scatter.default(a, c, 0, 0, 4)\nd = aten.slice.Tensor(b, 0, 1, 3)\ne = aten.clone.default(d)\n"
        "return s, e",
        "a = aten.exp.default(x)\naten.copy_.default(a, y)\nd = aten.slice.Tensor(a, 0, 1, 3)\n"
        "e = aten.clone.default(d)\nc = aten.sin_.default(a)\nreturn c, e",
        _mixed,
    ),
    "draws": Pair(
        "a = aten.exp.default(x)\nb = prims.functional_form(aten.normal_.default, (0,))(a)\n"
        "c = aten.rand_like.default(y)\nd = aten.add.Tensor(c, b0)\nreturn d, b0".replace("b = ", "(b0,) = "),
        "a = aten.exp.default(x)\nb0 = aten.normal_.default(a)\nc = aten.rand_like.default(y)\n"
        "d = aten.add_.Tensor(c, b0)\nreturn d, b0",
    ),
    "dropout": Pair(
        "a = aten.exp.default(x)\nb, m = aten.native_dropout.default(a, 0.5, True)\nc = aten.mul.Tensor(b, y)\n"
        "r = aten.rand.default([4])\nreturn c, m, r",
        "a = aten.exp.default(x)\nb, m = aten.native_dropout.default(a, 0.5, True)\nc = aten.mul_.Tensor(b, y)\n"
        "r = aten.rand.default([4])\nreturn c, m, r",
    ),
    "an operator of another library": Pair(
        "a = aten.exp.default(x)\ns, b = prims.functional_form(checks.bump_.default, (0,))(a, y)\n"
        "checks.note.default(b)\nc = aten.mul.Tensor(b, s)\nchecks.note.default(c)\nreturn c, s",
        "a = aten.exp.default(x)\ns = checks.bump_.default(a, y)\nchecks.note.default(a)\n"
        "c = aten.mul_.Tensor(a, s)\nchecks.note.default(c)\nreturn c, s",
    ),
    "running statistics": Pair(
        "o, m, r, n, v = aten._native_batch_norm_legit_functional.default(x, None, None, mean, var, True, 0.1, 1e-5)\n"
        "p = aten.relu.default(o)\naten.copy_.default(mean, n)\naten.copy_.default(var, v)\nreturn p, m, r",
        "o, m, r = aten._native_batch_norm_legit.default(x, None, None, mean, var, True, 0.1, 1e-5)\n"
        "p = aten.relu_.default(o)\nreturn p, m, r",
        _channels,
    ),
    "halves of complex numbers": Pair(
        "a = aten.clone.default(x)\nr = aten.view_as_real.default(a)\ni = aten.select.int(r, 1, 1)\n"
        "j = aten.exp.default(i)\ns = aten.select_scatter.default(r, j, 1, 1)\nb = aten.view_as_complex.default(s)\n"
        "c = aten._conj.default(b)\nd = aten.clone.default(c)\nreturn b, d",
        "a = aten.clone.default(x)\nr = aten.view_as_real.default(a)\ni = aten.select.int(r, 1, 1)\n"
        "j = aten.exp_.default(i)\nc = aten._conj.default(a)\nd = aten.clone.default(c)\nreturn a, d",
        _complex,
    ),
    "bytes of another dtype": Pair(
        "a = aten.mul.Tensor(x, 2)\nv = aten.view.dtype(a, torch.int16)\ns = aten.slice.Tensor(v, 0, 0, 3)\n"
        "n = aten.bitwise_not.default(s)\nw = aten.slice_scatter.default(v, n, 0, 0, 3)\n"
        "b = aten.view.dtype(w, torch.int32)\nreturn b",
        "a = aten.mul.Tensor(x, 2)\nv = aten.view.dtype(a, torch.int16)\ns = aten.slice.Tensor(v, 0, 0, 3)\n"
        "n = aten.bitwise_not_.default(s)\nb = aten.view.dtype(a, torch.int32)\nreturn b",
        lambda: {"x": torch.randint(0, 99, (3,), dtype=torch.int32)},
    ),
    "outputs that are views": Pair(
        "a = aten.mul.Tensor(x, 2)\nb = aten.exp.default(a)\nv = aten.t.default(b)\nw = aten.select.int(x, 0, 1)\n"
        "c = aten.view_copy.default(b, [16])\nreturn b, v, w, c",
        "a = aten.mul.Tensor(x, 2)\nb = aten.exp_.default(a)\nv = aten.t.default(b)\nw = aten.select.int(x, 0, 1)\n"
        "f = aten.view.default(b, [16])\nc = aten.clone.default(f)\nreturn b, v, w, c",
        _square,
    ),
}
