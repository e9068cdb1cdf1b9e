"""What steps are given and give back, and what a step may be."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from tests.frontends.step.agreement import Case
from tests.frontends.step.cases.changes import Parts
from tests.frontends.step.twins import Call, Step, Twin


def _one_update(net: nn.Module, opt: optim.Optimizer, rows: Tensor, labels: Tensor) -> Tensor:
    opt.zero_grad()
    loss = F.cross_entropy(net(rows), labels)
    loss.backward()
    opt.step()
    return loss


# --- arguments --------------------------------------------------------------------------------------------------------


def _by_name_or_place() -> Twin:
    p = Parts()

    def call(number: int) -> Call:
        rows, labels = p.batch(number)
        return Call((rows,), {"labels": labels}) if number % 2 else Call((), {"labels": labels, "rows": rows})

    return p.twin(call=call)


def _optional() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels, weight=weight)
        loss.backward()
        opt.step()
        return loss

    weight = torch.tensor([1.0, 2.0, 0.5, 1.0])
    return p.twin(step, call=lambda k: Call((*p.batch(k), weight.clone()) if k % 3 == 2 else p.batch(k)))


def _number_each_call() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor, temperature: float) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows) / temperature, labels)
        loss.backward()
        opt.step()
        return loss * temperature

    return p.twin(step, call=lambda k: Call(p.batch(k), {"temperature": 1.0 + k / 10}))


def _kind_in_words() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor, kind: str) -> Tensor:
        opt.zero_grad()
        loss_of = F.cross_entropy if kind == "entropy" else F.multi_margin_loss
        loss = loss_of(net(rows), labels)
        loss.backward()
        opt.step()
        return loss

    return p.twin(step, call=lambda k: Call(p.batch(k), {"kind": "margin" if k % 4 == 3 else "entropy"}))


@dataclass
class _Fields:
    rows: Tensor
    labels: Tensor


class _Named(NamedTuple):
    rows: Tensor
    labels: Tensor


class _Holder:
    def __init__(self, rows: Tensor, labels: Tensor) -> None:
        self.rows = rows
        self.labels = labels


def _container(kind: Any) -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(batch: Any) -> Tensor:
        return _one_update(net, opt, batch.rows, batch.labels)

    return p.twin(step, call=lambda k: Call((kind(*p.batch(k)),)))


def _arrays() -> Twin:
    """Batches of numpy, turned into tensors in the step."""
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Any, labels: Any) -> Tensor:
        return _one_update(net, opt, torch.from_numpy(rows), torch.as_tensor(labels))

    return p.twin(step, call=lambda k: Call(tuple(item.numpy().copy() for item in p.batch(k))))


def _lists() -> Twin:
    """Batches of nested lists, turned into tensors in the step."""
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: list[list[float]], labels: list[int]) -> Tensor:
        return _one_update(net, opt, torch.tensor(rows), torch.tensor(labels))

    return p.twin(step, call=lambda k: Call(tuple(item.tolist() for item in p.batch(k))))


def _written() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        rows.sub_(rows.mean(0))
        rows[0] += 1
        return _one_update(net, opt, rows, labels)

    return p.twin(step)


def _twice_the_same() -> Twin:
    """Two arguments that are one tensor in some calls, overlap in others, and neither in the rest."""
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, other: Tensor, labels: Tensor) -> Tensor:
        return _one_update(net, opt, rows - other * 2, labels)

    def call(number: int) -> Call:
        rows, labels = p.batch(number)
        if number % 3 == 0:
            return Call((rows[:6], rows[1:], labels[:6]))
        rows = rows[:6].clone()
        return Call((rows, rows if number % 3 == 1 else rows.clone(), labels[:6]))

    return p.twin(step, call=call)


def _layouts() -> Twin:
    p = Parts()

    def call(number: int) -> Call:
        rows, labels = p.batch(number)
        made = (rows, rows.t().contiguous().t(), rows[:1].expand(7, 6), torch.cat([rows, rows])[::2][:7])
        return Call((made[number % 4], labels))

    return p.twin(call=call)


def _dtypes() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        return _one_update(net, opt, rows.float(), labels.long())

    def call(number: int) -> Call:
        rows, labels = p.batch(number)
        return Call((rows.double(), labels.int()) if number % 3 == 2 else (rows, labels))

    return p.twin(step, call=call)


def _adversarial() -> Twin:
    """Inputs moved along their gradient before they are trained on."""
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        rows = rows.detach().clone().requires_grad_()
        (direction,) = torch.autograd.grad(F.cross_entropy(net(rows), labels), rows)
        return _one_update(net, opt, (rows + 0.1 * direction.sign()).detach(), labels)

    return p.twin(step)


def _leaf() -> Twin:
    """An argument that takes gradients: they arrive at the caller's tensor."""
    p = Parts()
    net, opt = p.net, p.opt
    seen: list[Tensor] = []

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        return _one_update(net, opt, rows, labels)

    def call(number: int) -> Call:
        rows, labels = p.batch(number)
        seen[:] = [rows.requires_grad_()]
        return Call((rows, labels))

    return p.twin(step, call=call, attributes=lambda: {"gradients": [rows.grad for rows in seen]})


def _all_given() -> Twin:
    """The model and the optimizer are arguments too."""
    p = Parts()
    return p.twin(_one_update, call=lambda k: Call((p.net, p.opt, *p.batch(k))))


def _fails_for_a_batch() -> Twin:
    """Batches of a wrong shape, whose error is eager's, and of one row, which batch norm refuses."""
    p = Parts()

    def call(number: int) -> Call:
        rows, labels = p.batch(number)
        if number == 5:
            return Call((rows[:, :5], labels))
        return Call((rows[:1], labels[:1]) if number == 8 else (rows, labels))

    return p.twin(call=call)


def _written_twice_the_same() -> Twin:
    """Two arguments that are one tensor in every other call; one is written."""
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, other: Tensor, labels: Tensor) -> Tensor:
        rows.mul_(0.5)
        return _one_update(net, opt, rows + other, labels)

    def call(number: int) -> Call:
        rows, labels = p.batch(number)
        return Call((rows, rows if number % 2 else rows.clone(), labels))

    return p.twin(step, call=call)


# --- results ----------------------------------------------------------------------------------------------------------


def _results() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> dict[str, Any]:
        opt.zero_grad()
        out = net(rows)
        loss = F.cross_entropy(out, labels)
        loss.backward()
        opt.step()
        kept = out.detach()
        return {
            "given": rows,
            "labels": [labels, labels],
            "loss": loss.detach(),
            "nothing": None,
            "text": "done",
            "size": rows.shape[0],
            "shape": tuple(rows.shape),
            "two": (kept, kept),
            "correct": (kept.argmax(1) == labels).sum().item(),
            "is good": bool((kept.argmax(1) == labels).float().mean() > 2),
            "fields": _Named(loss.detach() * 2, labels + 1),
        }

    return p.twin(step)


def _views_of_results() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        opt.zero_grad()
        out = net(rows)
        F.cross_entropy(out, labels).backward()
        opt.step()
        kept = out.detach().clone()
        return kept, kept[1:3], kept.t(), rows[2:], rows.view(-1)

    return p.twin(step)


def _parameter_returned() -> Twin:
    """State itself, as the object it is."""
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> tuple[Any, ...]:
        loss = _one_update(net, opt, rows, labels)
        return loss, net.first.weight, net.norm.running_mean, net

    return p.twin(step)


def _nothing_returned() -> Twin:
    p = Parts()
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> None:
        _one_update(net, opt, rows, labels)

    return p.twin(step)


# --- what a step is ---------------------------------------------------------------------------------------------------


class _Callable:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def __call__(self, rows: Tensor, labels: Tensor) -> Tensor:
        return _one_update(self.parts.net, self.parts.opt, rows, labels)


class _TrainingModule(nn.Module):
    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.net = parts.net
        self.opts = [parts.opt]

    def forward(self, rows: Tensor, labels: Tensor) -> Tensor:
        """One update."""
        return _one_update(self.net, self.opts[0], rows, labels)


def _announced(step: Step) -> Step:
    @functools.wraps(step)
    def run(*given: Any, **named: Any) -> Any:
        result = step(*given, **named)
        assert result is not None, "a step returns something"
        return result

    return run


def _as(kind: str) -> Twin:
    p = Parts()
    kinds: dict[str, Step] = {
        "partial": functools.partial(_one_update, p.net, p.opt),
        "callable object": _Callable(p),
        "bound method": _Callable(p).__call__,
        "module": _TrainingModule(p),
        "lambda": lambda rows, labels: _one_update(p.net, p.opt, rows, labels),
        "wrapped": _announced(p.step()),
        "with gradients enabled": torch.enable_grad()(p.step()),
    }
    return p.twin(kinds[kind])


def _evaluation_only() -> Twin:
    """No optimizer: a forward pass, with batch norm's averages moving."""
    p = Parts()
    net = p.net

    @torch.no_grad()
    def step(rows: Tensor, labels: Tensor) -> Tensor:
        return (net(rows).argmax(1) == labels).float().mean()

    return p.twin(step)


def _scaled_by_array() -> Twin:
    """A small array of numpy that the loop writes."""
    p = Parts()
    net, opt, scale = p.net, p.opt, np.ones(1)

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        return _one_update(net, opt, rows * float(scale[0]), labels)

    def before(number: int) -> None:
        scale[0] = 1 + number // 5

    return p.twin(step, before=before)


GIVEN = (
    Case("arguments by name or by place", _by_name_or_place, captures=None),
    Case("an optional argument", _optional, captures=None, eager_calls=None),
    Case("a number that is another in each call", _number_each_call, captures=None, eager_calls=None),
    Case("a word", _kind_in_words, captures=None, eager_calls=None, at_most=3),
    Case("a dataclass", functools.partial(_container, _Fields)),
    Case("a named tuple", functools.partial(_container, _Named)),
    Case("an object with tensors", functools.partial(_container, _Holder), captures=None, eager_calls=None),
    Case("arrays of numpy", _arrays, captures=None, eager_calls=None),
    Case("lists of numbers", _lists, captures=None, eager_calls=None),
    Case("an argument is written", _written),
    Case("arguments share memory", _twice_the_same, captures=None, eager_calls=None),
    Case("two arguments are one, which is written", _written_twice_the_same, captures=None, eager_calls=None),
    Case("arguments of other strides", _layouts, captures=None, eager_calls=None),
    Case("arguments of other dtypes", _dtypes, captures=None, eager_calls=None),
    Case("adversarial inputs", _adversarial),
    Case("an argument takes gradients", _leaf, captures=None, eager_calls=None, options={"keep_grads": True}),
    Case("model and optimizer as arguments", _all_given),
    Case("batches that eager refuses", _fails_for_a_batch, captures=None, eager_calls=None, fails=True),
    Case("results of many kinds", _results, eager_calls=1),
    Case("results that are views", _views_of_results),
    Case("state as a result", _parameter_returned),
    Case("no result", _nothing_returned),
    *(
        Case(f"a step that is a {kind}", functools.partial(_as, kind))
        for kind in ("partial", "callable object", "bound method", "module", "lambda", "wrapped")
    ),
    Case("a step with gradients enabled", functools.partial(_as, "with gradients enabled")),
    Case("no optimizer", _evaluation_only),
    Case("a small array that the loop writes", _scaled_by_array, captures=None, eager_calls=None),
)
