"""Random programs over constants: the plan against all plans, the folded programs against the given ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Program, Stage, TensorMeta, Value, values_in
from dovetail.ir.signature import Signature, UserInput, UserOutput
from dovetail.ir.stages import verify_program
from dovetail.ops.facts import writes_of
from dovetail.passes.dead_code import remove_dead_code
from dovetail.passes.fold_constants import fold_constants
from dovetail.passes.fold_plan import plan_folding
from tests.rotation import rotated

aten = torch.ops.aten


class _Maker:
    """A random program over constants; every value has a real tensor, from which it is described."""

    def __init__(self, rng: random.Random, count: int, readers: int) -> None:
        self.rng = rng
        self.tensors: dict[Value, Tensor] = {}
        self.storages: dict[int, int] = {}
        self.nodes: list[Node] = []
        self.names = itertools.count()
        self.said: set[str] = set()
        flat = torch.randn(96)
        self.x = self.value("x", torch.randn(()))
        rows = torch.randint(-9, 9, (8, 16), dtype=torch.int8)
        self.constants = [
            self.value("w0", flat[:64].view(4, 16)),
            self.value("w1", flat[80:]),
            self.value("w2", rows),
            self.value("w3", torch.randn(2, 1)),
            self.value("w4", torch.tensor(1.5)),
        ]
        self.made = list(self.constants)
        for _ in range(count):
            self.expression()
        self.outputs = [self.read(v) for v in rng.sample(self.made, min(readers, len(self.made)))]

    def value(self, name: str, tensor: Tensor) -> Value:
        """A value described as this tensor lies."""
        key = tensor.untyped_storage().data_ptr() if tensor.numel() else -id(tensor)
        number = self.storages.setdefault(key, len(self.storages))
        meta = TensorMeta(
            tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device, number
        )
        value = Value(name, meta)
        self.tensors[value] = tensor
        return value

    def call(self, target: Any, *args: Any) -> list[Value]:
        """Append a node."""
        result = target(*[self.tensors[a] if isinstance(a, Value) else a for a in args])
        items = result if isinstance(result, tuple | list) else [result]
        outputs = tuple(self.value(f"v{next(self.names)}", item) for item in items)
        self.nodes.append(Node(target, args, outputs=outputs, unpack=isinstance(result, tuple | list)))
        return list(outputs)

    def expression(self) -> None:
        """Append a node over constants."""
        source = self.rng.choice(self.made)
        tensor = self.tensors[source]
        choices: list[tuple[Any, ...]] = [
            (aten.neg.default, source), (aten.sum.default, source), (aten._to_copy.default, source),
            (aten.alias.default, source), (aten.abs.default, source), (aten.stack.default, [source, source]),
            (aten.mul.Tensor, source, self.rng.choice((2, 0.5))), (aten.full.default, [self.rng.choice((2, 40))], 1.0),
        ]  # fmt: skip
        if tensor.dim() > 1 and tensor.shape[0] > 1:
            choices += [(aten.t.default, source)] * (tensor.dim() == 2)
            choices += [(aten.slice.Tensor, source, 0, 0, 1), (aten.slice.Tensor, source, 0, 1, 2)]
            choices += [(aten.select.int, source, 0, -1), (aten.split.Tensor, source, 1)]
        if tensor.dim() == 0:
            choices += [(aten.expand.default, source, [5, 5]), (aten.unsqueeze.default, source, 0)]
        same = [v for v in self.made if self.tensors[v].shape == tensor.shape]
        choices += [(aten.add.Tensor, source, self.rng.choice(same))] * 2
        target, *args = self.rng.choice(choices)
        if target is aten.stack.default:
            target, args = aten.repeat.default, [source, [2] + [1] * max(tensor.dim() - 1, 0)]
        if (said := f"{target}{args}") not in self.said:  # twins are one to the plan
            self.said.add(said)
            self.made += self.call(target, *args)

    def read(self, value: Value) -> Value:
        """Append a node that runs at each call."""
        return self.call(aten.mul.Tensor, value, self.x)[0]

    def program(self) -> Program:
        """The program so far."""
        inputs = (self.x, *self.constants)
        roles = Signature(tuple(map(UserInput, range(len(inputs)))), tuple(map(UserOutput, range(len(self.outputs)))))
        return Program("random", Stage.FUNCTIONAL, inputs, tuple(self.nodes), tuple(self.outputs), roles)


def _run(program: Program, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    known: dict[Value, Any] = {value: tensors[value.name] for value in program.inputs}
    for node in program.nodes:
        args = [known[a] if isinstance(a, Value) else a for a in node.args]
        result = node.target(*args)
        items = result if node.unpack else [result]
        for value, item in zip(node.outputs, items, strict=True):
            assert value is not None
            known[value] = item
            assert (value.tensor.shape, value.tensor.stride) == (item.shape, item.stride())
            for other, held in known.items():  # what shares memory says so, and where
                shared = held.numel() and held.untyped_storage().data_ptr() == item.untyped_storage().data_ptr()
                assert not (shared and item.numel()) or other.tensor.storage == value.tensor.storage
    return [known[value] for value in program.outputs if isinstance(value, Value)]


class _Moody:
    """Negates, or raises."""

    raises = False

    def __call__(self, tensor: Tensor) -> Tensor:
        if _Moody.raises:
            raise RuntimeError("not now")
        return tensor.neg()


MOODY = Prim("moody", _Moody(), "prims.MOODY")


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("seed", rotated(range(80), 4))
def test_nothing_is_lost_when_nodes_raise(seed: int, everything: bool) -> None:
    rng = random.Random(seed)
    maker = _Maker(rng, rng.randint(4, 30), rng.randint(1, 8))
    program = maker.program()
    negations = [node for node in program.nodes if node.target is aten.neg.default]
    nodes = tuple(replace(node, target=MOODY) if node in negations else node for node in program.nodes)
    program = replace(program, nodes=nodes)
    inputs = {value.name: maker.tensors[value] for value in program.inputs}
    tensors = {value.name: maker.tensors[value] for value in maker.constants}
    plan = plan_folding([program], tensors.keys(), everything=everything)
    _Moody.raises = True
    try:
        (folded,), report = fold_constants([program], tensors, plan)
    finally:
        _Moody.raises = False
    verify_program(folded, lambda node: bool(writes_of(node)))
    expected, found = _run(program, inputs), _run(folded, {**tensors, "x": inputs["x"]})
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert {value.name for value in folded.inputs} - {"x"} == set(tensors)
    failed = {name for name, _ in report.failed}
    assert failed <= {value.name for node in negations for value in node.results()}
    if everything:
        left = {value.name for node in folded.nodes if node.target is MOODY for value in node.results()}
        assert left <= {value.name for node in negations for value in node.results()}


@pytest.mark.parametrize("seed", rotated(range(80), 4))
def test_several_programs_share_one_pool(seed: int) -> None:
    rng = random.Random(seed)
    maker = _Maker(rng, rng.randint(4, 30), 8)
    whole = maker.program()
    programs = []
    for number in range(3):
        outputs = tuple(rng.sample(whole.outputs, rng.randint(1, len(whole.outputs))))
        part = replace(whole, name=f"part{number}", outputs=outputs)
        part = replace(part, signature=Signature(part.signature.inputs, tuple(map(UserOutput, range(len(outputs))))))
        programs.append(remove_dead_code(part)[0])
    inputs = {value.name: maker.tensors[value] for value in whole.inputs}
    tensors = {value.name: maker.tensors[value] for value in maker.constants}
    plan = plan_folding(programs, tensors.keys())
    folded, report = fold_constants(programs, tensors, plan)
    assert report.bytes_after <= report.bytes_before
    for before, after, kept, added in zip(programs, folded, report.kept_inputs, report.added_inputs, strict=True):
        verify_program(after, lambda node: bool(writes_of(node)))
        expected, found = _run(before, inputs), _run(after, {**tensors, "x": inputs["x"]})
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
        assert [v.name for v in after.inputs] == [*(before.inputs[index].name for index in kept), *added]
    assert {v.name for program in folded for v in program.inputs} - {"x"} == set(tensors)


def _region(tensor: Tensor) -> set[int]:
    """The bytes from the first one, rounded down to 64, to the last one."""
    if not tensor.numel():
        return set()
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    first = tensor.storage_offset() * tensor.itemsize
    return set(range(first - first % 64, first + (reach + 1) * tensor.itemsize))


def _cheapest(maker: _Maker, program: Program) -> int:
    """The fewest bytes, over all ways to run some nodes at each call and to compute the others once."""
    constant: set[Value] = set(maker.constants)
    free: list[Node] = []
    for node in program.nodes:
        if all(value in constant for value in node.operands()):
            constant.update(node.results())
            free.append(node)
    outside = [node for node in program.nodes if node not in free]
    everywhere: dict[int, set[int]] = {}
    for value, tensor in maker.tensors.items():
        everywhere.setdefault(value.tensor.storage, set()).update(_region(tensor))
    best = None
    for running in itertools.product((False, True), repeat=len(free)):
        runs = [node for node, is_running in zip(free, running, strict=True) if is_running]
        made = {value for node in (*runs, *outside) for value in node.results()}
        stored = {value for node in (*runs, *outside) for value in node.operands()} - made - {maker.x}
        bytes_of: dict[int, set[int]] = {}
        for value in stored:
            number = value.tensor.storage
            views_it = any(
                r.tensor.storage == number for node in runs for r in node.results() if value in node.operands()
            )
            whole = value in maker.constants or views_it
            region = set(range(max(everywhere[number], default=-1) + 1)) if whole else _region(maker.tensors[value])
            bytes_of.setdefault(number, set()).update(region)
        total = sum(map(len, bytes_of.values()))
        best = total if best is None else min(best, total)
    assert best is not None
    return best


@pytest.mark.parametrize("seed", rotated(range(150), 4))
def test_the_plan_is_the_cheapest_of_all(seed: int) -> None:
    rng = random.Random(seed)
    maker = _Maker(rng, rng.randint(1, 8), rng.randint(1, 4))
    program = maker.program()
    plan = plan_folding([program], {value.name for value in maker.constants})
    assert plan.bytes_after == _cheapest(maker, program) <= plan.bytes_before


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("seed", rotated(range(150), 4))
def test_folded_programs_do_the_same(seed: int, everything: bool) -> None:
    rng = random.Random(seed)
    maker = _Maker(rng, rng.randint(1, 30), rng.randint(1, 8))
    program = maker.program()
    verify_program(program, lambda node: bool(writes_of(node)))
    inputs = {value.name: maker.tensors[value] for value in program.inputs}
    expected = _run(program, inputs)
    tensors = {value.name: maker.tensors[value] for value in maker.constants}
    for name in ("w0", "w1"):  # a storage of their own, which dies when they do
        tensors[name] = inputs[name]
    flat = torch.cat([inputs["w0"].flatten(), torch.zeros(16), inputs["w1"]])
    tensors.update(w0=flat[:64].view(4, 16), w1=flat[80:])
    plan = plan_folding([program], tensors.keys(), everything=everything)
    (folded,), report = fold_constants([program], tensors, plan)
    verify_program(folded, lambda node: bool(writes_of(node)))
    found = _run(folded, {**tensors, "x": inputs["x"]})
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert report.bytes_after == plan.bytes_after
    assert everything or report.bytes_after <= report.bytes_before
    assert not report.failed
    held = {value.name: value.tensor for value in folded.inputs}
    for name, meta in held.items():
        if name != "x":
            assert tensors[name].storage_offset() == meta.offset
            assert (tensors[name].shape, tensors[name].stride()) == (meta.shape, meta.stride)
    assert set(held) - {"x"} == set(tensors)
    if everything:
        assert all(maker.x in node.operands() for node in folded.nodes)
    assert set(values_in(folded.outputs)) == set(folded.outputs)
    # once more, there is nothing left to do
    named = replace(folded, name="again")
    again = plan_folding([named], tensors.keys(), everything=everything)
    assert again.bytes_after <= plan.bytes_after
    if everything:
        assert not again.stored
