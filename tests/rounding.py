"""How far a result may be from the exact one: forward error analysis, element by element, from the data alone.

A model runs in float64, and next to each value runs a bound of what the same operators may lose in another precision,
whatever order their kernels add in (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., chapter 3):

    y = sum of w[i] * x[i] + b, n terms, rounded    |error| <= gamma(n + 1) * (sum |w[i]| |x[i]| + |b|)
    what x was off by before                                  + sum |w[i]| * bound of x[i]

with gamma(n) = n * u / (1 - n * u) and u the unit roundoff. Nothing is measured, so that a bound holds on any processor
and for any number of threads. Bounds are to first order, and are meant for models of a few layers: they grow with each.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten

_MOVES = frozenset(
    {
        "clone",
        "cat",
        "stack",
        "copy",
        "roll",
        "repeat",
        "index",
        "select_scatter",
        "constant_pad_nd",
        "reflection_pad1d",
        "reflection_pad2d",
        "upsample_nearest2d",
        "_unsafe_view",
        "_to_copy",
        "slice_scatter",
        "contiguous",
        "lift_fresh",
        "_reshape_copy",
    }
)
_FRESH = frozenset(["new_empty", "new_zeros", "empty_like", "zeros_like", "full_like"])
_SUMS = frozenset(["sum", "mean", "avg_pool2d", "_adaptive_avg_pool2d"])
_POINTWISE = frozenset(["hardswish", "hardsigmoid", "hardtanh"])  # which torch does not tag
# Their formulas round numbers that are larger than the result, up to the size of the argument or 3.
_ROUND_THEIR_ARGUMENT = frozenset(["gelu", "hardswish", "hardsigmoid"])


@dataclass(frozen=True)
class Rounded:
    """The results of a model in float64, and for each the bound of its error. shift: see `in_float64`."""

    exact: tuple[Tensor, ...]
    bounds: tuple[Tensor, ...]

    def assert_holds(self, results: Any) -> None:
        """No element of these results, in order, is further from the exact one than its bound."""
        found = [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor)]
        for result, exact, bound in zip(found, self.exact, self.bounds, strict=True):
            error = (result.double() - exact).abs()
            known = result.isfinite() & exact.isfinite() & bound.isfinite()
            excess = torch.where(known, error / bound.clamp_min(1e-300), torch.zeros_like(error))
            assert excess.numel() == 0 or excess.max() <= 1, (
                f"{excess.max():.3g} times the bound: off by {error.flatten()[excess.argmax()]:.3g}"
                f" from {exact.flatten()[excess.argmax()]:.6g}"
            )


def in_float64(
    model: Callable[..., Any], *inputs: Any, shift: str = "added up", dtype: torch.dtype | None = None
) -> Rounded:
    """The results of a model (or function) in float64, of its parameters as they are; bounds for the inputs' dtype.

    shift: "added up" where the shift of a batch norm may be a term of the sum before it, which rounds it once a term;
    "added once" where it is added to the finished sum. dtype: for which the bounds are.
    """
    given = [i for i in inputs if isinstance(i, Tensor) and i.is_floating_point()]
    bounds = _Bounds(dtype or given[0].dtype, shift_is_a_term=shift == "added up")
    double = copy.deepcopy(model).double() if isinstance(model, nn.Module) else model
    wide = tree_map(lambda i: i.double() if isinstance(i, Tensor) and i.is_floating_point() else i, inputs)
    with torch.no_grad(), bounds:
        results = [leaf for leaf in tree_leaves(double(*wide)) if isinstance(leaf, Tensor)]
    twice = 2 if bounds.dtype is torch.float64 else 1  # then what is called exact is off as well
    return Rounded(tuple(results), tuple(twice * bounds.of(result) + bounds.tiny for result in results))


class _Bounds(TorchDispatchMode):
    """Runs operators, and a bound for each tensor of floating point numbers that they give."""

    def __init__(self, dtype: torch.dtype, shift_is_a_term: bool) -> None:
        super().__init__()
        self.dtype = dtype
        info = torch.finfo(dtype)
        self.unit = info.eps / 2
        self.unit_of_sums = min(self.unit, torch.finfo(torch.float32).eps / 2)
        self.tiny = info.tiny * 1e4
        self.shift_is_a_term = shift_is_a_term
        self._known: dict[int, tuple[Tensor, Tensor]] = {}
        self.terms = 0  # of the sums of the last layer

    def of(self, tensor: Tensor) -> Tensor:
        """The bound of a tensor: zeros for one that nothing has computed."""
        known = self._known.get(id(tensor))
        return torch.zeros_like(tensor) if known is None else known[1]

    def gamma(self, terms: float) -> float:
        """What a sum of this many terms loses at most, relative to the sum of their magnitudes."""
        return terms * self.unit_of_sums / (1 - terms * self.unit_of_sums)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        changes = name.endswith("_") and not name.endswith("__")
        before = [t.clone() if _is_float(t) and changes else t for t in args]
        result = func(*args, **kwargs)
        made = result if isinstance(result, Tensor) else (result[0] if isinstance(result, tuple) else None)
        if made is None and isinstance(result, list):  # split and its kind
            bounds = func(self._shadow(args[0]), *args[1:], **kwargs)
            for part, bound in zip(result, bounds, strict=True):
                self._note(part, bound)
            return result
        if not _is_float(made):
            return result
        bound = self._bound(func, name.removesuffix("_"), before, args, kwargs, result)
        if changes:
            self._shadow(args[0]).copy_(bound)
        else:
            self._note(made, bound)
        return result

    def _note(self, made: Tensor, bound: Tensor) -> None:
        if bound.stride() != made.stride():
            bound = torch.empty_like(made).copy_(bound)
        self._known[id(made)] = made, bound

    def _shadow(self, tensor: Tensor) -> Tensor:
        """The bound of a tensor, which later writes and views go through."""
        if id(tensor) not in self._known:
            self._note(tensor, torch.zeros_like(tensor))
        return self._known[id(tensor)][1]

    def _bound(self, func: Any, name: str, values: Sequence[Any], args: Any, kwargs: Any, result: Any) -> Tensor:
        rule = _RULES.get(name)
        if rule is not None:
            found: Tensor = rule(self, values, [self._shadow(a) if _is_float(a) else None for a in args], kwargs)
            return found
        if name in _FRESH or not any(_is_float(leaf) for leaf in tree_leaves((values, kwargs))):
            return torch.zeros_like(result)
        if name in ("copy", "fill"):
            return self._shadow(args[1]).expand_as(args[0]) if _is_float(args[1]) else torch.zeros_like(args[0])
        if func.is_view or name in _MOVES:
            moved: Tensor = func(*tree_map(lambda a: self._shadow(a) if _is_float(a) else a, list(args)), **kwargs)
            return moved
        if name in _SUMS:
            terms = args[0].numel() / max(1, result.numel())
            lost = func(values[0].abs(), *args[1:], **kwargs)
            return func(self._shadow(args[0]), *args[1:], **kwargs) + self.gamma(terms + 1) * lost
        if torch.Tag.pointwise in func.tags or name in _POINTWISE:
            return self._pointwise(func, name, values, args, kwargs, result)
        raise NotImplementedError(f"no bound is known for {func}")

    def _pointwise(self, func: Any, name: str, values: Sequence[Any], args: Any, kwargs: Any, result: Any) -> Tensor:
        """What each operand moves the result by, and a few roundings."""
        plain = getattr(getattr(aten, name), func._overloadname)
        values = [v.clone() if _is_float(v) else v for v in values]
        centre = plain(*values, **kwargs)
        bound = 4 * self.unit * centre.abs()
        for place, value in enumerate(values):
            if _is_float(value):
                shadow = self._shadow(args[place])
                ends = [plain(*values[:place], value + s * shadow, *values[place + 1 :], **kwargs) for s in (1, -1)]
                bound = bound + torch.stack([(end - centre).abs().nan_to_num(0.0) for end in ends]).amax(0)
        if name in _ROUND_THEIR_ARGUMENT:
            bound = bound + 4 * self.unit * values[0].abs().clamp_min(3)
        return bound

    def product(self, multiply: Callable[..., Tensor], a: Tensor, da: Tensor, b: Tensor, db: Tensor, n: int) -> Tensor:
        """For a sum of n products of a and b, which have these bounds: of a weight that was rounded once more."""
        size = multiply(a.abs(), b.abs())
        off = multiply(da, b.abs() + db) + multiply(a.abs(), db)
        return off + (self.gamma(n + 1) + 2 * self.unit) * size


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _matmul(bounds: _Bounds, v: Sequence[Any], d: Sequence[Any], kwargs: Any) -> Tensor:
    bounds.terms = v[0].shape[-1]
    return bounds.product(torch.matmul, v[0], d[0], v[1], d[1], v[0].shape[-1])


def _addmm(bounds: _Bounds, v: Sequence[Any], d: Sequence[Any], kwargs: Any) -> Tensor:
    alpha, beta, n = abs(kwargs.get("alpha", 1)), abs(kwargs.get("beta", 1)), v[1].shape[-1]
    bounds.terms = n
    added = beta * (d[0] + (bounds.gamma(n + 1) + 2 * bounds.unit) * v[0].abs())
    return alpha * bounds.product(torch.matmul, v[1], d[1], v[2], d[2], n) + added


def _convolution(bounds: _Bounds, v: Sequence[Any], d: Sequence[Any], kwargs: Any) -> Tensor:
    x, w, bias, *geometry = v
    n = w.numel() // max(1, w.shape[1] if geometry[3] else w.shape[0])

    def convolve(a: Tensor, b: Tensor) -> Tensor:
        return torch.convolution(a, b, None, *geometry)

    found = bounds.product(convolve, x, d[0], w, d[1], n)
    if bias is not None:
        off = d[2] + (bounds.gamma(n + 1) + 2 * bounds.unit) * bias.abs()
        found = found + off.view(-1, *[1] * (found.dim() - 2))
    bounds.terms = n
    return found


def _batch_norm(bounds: _Bounds, v: Sequence[Any], d: Sequence[Any], kwargs: Any) -> Tensor:
    x, weight, bias, mean, var, training, _, eps = v[:8]
    assert not training, "statistics of a batch are not bounded here"
    along = (1, -1, *[1] * (x.dim() - 2))
    scale = (var + eps).rsqrt() if weight is None else weight / (var + eps).sqrt()
    shift = (mean * scale).abs() + (0 if bias is None else bias.abs())
    scale, shift = scale.abs().view(along), shift.view(along)
    terms = bounds.terms if bounds.shift_is_a_term else 0
    return scale * d[0] + 6 * bounds.unit * (scale * x.abs() + shift) + bounds.gamma(terms) * shift


def _normalized(bounds: _Bounds, x: Tensor, dx: Tensor, dim: Sequence[int], eps: float) -> tuple[Tensor, Tensor]:
    """(x - mean) / sqrt(var + eps) over dimensions, and its bound; the variance may be mean(x**2) - mean**2."""
    n = math.prod(x.shape[k] for k in dim)
    mean = x.mean(dim, keepdim=True)
    d_mean = dx.mean(dim, keepdim=True) + bounds.gamma(n + 1) * x.abs().mean(dim, keepdim=True)
    centred = x - mean
    d_centred = dx + d_mean + bounds.unit * centred.abs()
    var = centred.square().mean(dim, keepdim=True)
    lost = bounds.gamma(n + 4) * x.square().mean(dim, keepdim=True)
    d_var = (2 * centred.abs() * d_centred).mean(dim, keepdim=True) + 2 * lost
    inverse = (var + eps).rsqrt()
    d_inverse = inverse**3 / 2 * d_var + 4 * bounds.unit * inverse
    return centred * inverse, d_centred * inverse + centred.abs() * d_inverse


def _scaled(bounds: _Bounds, y: Tensor, d: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        y, d = y * weight, d * weight.abs()
    return d + 4 * bounds.unit * (y.abs() + (0 if bias is None else bias.abs()))


def _layer_norm(bounds: _Bounds, v: Sequence[Any], d: Sequence[Any], kwargs: Any) -> Tensor:
    x, shape, weight, bias, eps = v
    return _scaled(bounds, *_normalized(bounds, x, d[0], tuple(range(-len(shape), 0)), eps), weight, bias)


def _group_norm(bounds: _Bounds, v: Sequence[Any], d: Sequence[Any], kwargs: Any) -> Tensor:
    x, weight, bias, rows, channels, _, groups, eps = v
    grouped = (t.reshape(rows, groups, -1) for t in (x, d[0]))
    y, off = (t.view(x.shape) for t in _normalized(bounds, *grouped, [-1], eps))
    along = (1, channels, *[1] * (x.dim() - 2))
    weight, bias = (None if t is None else t.view(along) for t in (weight, bias))
    return _scaled(bounds, y, off, weight, bias)


def _softmax(bounds: _Bounds, v: Sequence[Any], d: Sequence[Any], kwargs: Any) -> Tensor:
    x, dim = v[:2]
    y = x.softmax(dim)
    off = d[0] + bounds.unit * (x.amax(dim, keepdim=True) - x).abs()
    return y * (off + (y * off).sum(dim, keepdim=True) + bounds.gamma(x.shape[dim]) + 8 * bounds.unit)


def _attention(bounds: _Bounds, v: Sequence[Any], d: Sequence[Any], kwargs: Any) -> Tensor:
    q, k, value = v[:3]
    scale = kwargs.get("scale") or q.shape[-1] ** -0.5
    assert len(v) < 5 or not v[4], "causal attention is not bounded here"
    k, dk = k.transpose(-1, -2), d[1].transpose(-1, -2)
    scores = scale * (q @ k)
    off = scale * bounds.product(torch.matmul, q, d[0], k, dk, q.shape[-1]) + 2 * bounds.unit * scores.abs()
    weights, d_weights = scores.softmax(-1), _softmax(bounds, (scores, -1), (off,), {})
    return bounds.product(torch.matmul, weights, d_weights, value, d[2], weights.shape[-1])


def _max_pool(bounds: _Bounds, v: Sequence[Any], d: Sequence[Any], kwargs: Any) -> Tensor:
    return nn.functional.max_pool2d(d[0], *v[1:])


_RULES: dict[str, Callable[[_Bounds, Sequence[Any], Sequence[Any], Any], Tensor]] = {
    "mm": _matmul,
    "bmm": _matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "convolution": _convolution,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "_softmax": _softmax,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "max_pool2d_with_indices": _max_pool,
}
