"""Random programs of two phases, never run, and the best split of one by trying every choice."""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import torch

from dovetail.ir.program import Node, Phase, Program, Stage, TensorMeta, Value, values_in
from dovetail.ir.signature import (
    Gradient,
    InputMutation,
    InputRole,
    OutputRole,
    Signature,
    Tangent,
    UserInput,
    UserOutput,
    WriteKind,
)
from dovetail.partition.work import CPU

aten = torch.ops.aten
_CPU = torch.device("cpu")

VIEW, POINTWISE, PRODUCT, DRAW, PAIR, FILL = (
    aten.alias.default,
    aten.add.Tensor,
    aten.dot.default,
    aten.bernoulli.default,
    aten.var_mean.dim,
    aten.zeros.default,
)
_OPERANDS = {VIEW: 1, POINTWISE: 2, PRODUCT: 2, DRAW: 1, PAIR: 1, FILL: 0}
CHEAP = frozenset({VIEW, POINTWISE, FILL})
ALL = frozenset({*CHEAP, PRODUCT, PAIR})


def value(name: str, size: int, storage: int) -> Value:
    """A tensor of bytes."""
    return Value(name, TensorMeta((size,), (1,), 0, torch.uint8, _CPU, storage))


class Maker:
    """Writes a program node by node. See `random_program`."""

    def __init__(self, inputs: dict[str, int]) -> None:
        self.inputs = [value(name, size, number) for number, (name, size) in enumerate(inputs.items())]
        self.storages = len(inputs)
        self.nodes: list[Node] = []

    def tangent(self, size: int) -> Value:
        """The gradient that arrives."""
        self.storages += 1
        self.inputs.append(value("tangent", size, self.storages))
        return self.inputs[-1]

    def apply(self, target: object, *operands: Value, sizes: tuple[int, ...] = (8,), late: bool = False) -> list[Value]:
        """Append a node with results of these sizes; a view lies where its operand lies."""
        made = []
        for place, size in enumerate(sizes):
            self.storages += 1
            storage = operands[0].tensor.storage if target is VIEW else self.storages
            made.append(value(f"v{len(self.nodes)}_{place}", size, storage))
        phase = Phase.BACKWARD if late else Phase.FORWARD
        self.nodes.append(Node(target, operands, outputs=tuple(made), unpack=len(made) > 1, phase=phase))
        return made

    def program(self, outputs: list[tuple[OutputRole, Value]]) -> Program:
        """The program; the input that is called tangent is one, the others are the user's."""
        roles: list[InputRole] = [
            Tangent(0) if v.name == "tangent" else UserInput(i) for i, v in enumerate(self.inputs)
        ]
        signature = Signature(tuple(roles), tuple(role for role, _ in outputs))
        made = tuple(v for _, v in outputs)
        return Program("joint", Stage.FUNCTIONAL, tuple(self.inputs), tuple(self.nodes), made, signature)


def random_program(seed: int, nodes: int = 14) -> Program:
    """Views, pointwise nodes, products, draws, nodes of two results; now and then an input that is written."""
    rng = random.Random(seed)
    maker = Maker({"x": rng.randint(1, 40), "y": rng.randint(1, 40)})
    made = list(maker.inputs)
    targets = [VIEW, VIEW, *[POINTWISE] * 6, PRODUCT, DRAW, PAIR, FILL]
    for _ in range(rng.randint(3, nodes)):
        target = rng.choice(targets)
        recent = made[-5:] if rng.random() < 0.8 else made
        operands = [rng.choice(recent) for _ in range(_OPERANDS[target])]
        count = 2 if target is PAIR else 1
        sizes = tuple(0 if rng.random() < 0.03 else rng.choice((4, 8, 8, 16, rng.randint(1, 40))) for _ in range(count))
        made += maker.apply(target, *operands, sizes=(operands[0].tensor.shape[0],) if target is VIEW else sizes)
    early = made[2:]
    arriving = maker.tangent(8)
    outputs: list[tuple[OutputRole, Value]] = [(UserOutput(0), early[-1])]
    if rng.random() < 0.3:
        outputs.append((InputMutation(1, WriteKind.UNTRACKED), rng.choice(early)))
    viewing = random.Random(-1 - seed)
    for _ in range(rng.randint(1, 5)):
        read = [rng.choice(made) for _ in range(rng.randint(1, 2))]
        while viewing.random() < 0.3:
            last = read.pop()
            read += maker.apply(VIEW, last, sizes=(last.tensor.shape[0],), late=True)
        (arriving,) = maker.apply(POINTWISE, arriving, *read, late=True)
    outputs.append((Gradient(0), arriving))
    return maker.program(outputs)


@dataclass(frozen=True)
class _Facts:
    """What the search needs, by storage; written down apart from `partition.problem`."""

    made_by: dict[int, int]
    sizes: dict[int, int]
    free: frozenset[int]
    lost: frozenset[int]
    contents: frozenset[int]


def best_by_search(program: Program, may_run: frozenset[object], price: Fraction | None = None) -> tuple[int, int]:
    """The fewest bytes saved and, of those splits, the least work, by trying every choice.

    price: count each byte of work as so many bytes saved, instead.
    """
    early = [node for node in program.nodes if node.phase is Phase.FORWARD]
    late = [node for node in program.nodes if node.phase is Phase.BACKWARD]
    facts = _facts(program, early)
    saved_anyway = {v for node in late for v in node.operands()}

    def storage_to_get(v: Value) -> int | None:
        storage = v.tensor.storage
        is_there = storage in facts.free or (storage in facts.contents and v in saved_anyway)
        return None if is_there or storage not in facts.made_by else storage

    def may_run_again(node: Node) -> bool:
        return node.target in may_run and not any(v.tensor.storage in facts.lost for v in node.operands())

    @cache
    def is_possible(at: int) -> bool:
        node = early[at]
        return may_run_again(node) and all(can_have(v) for v in node.operands())

    def can_have(v: Value) -> bool:
        storage = storage_to_get(v)
        return storage is None or storage not in facts.contents or is_possible(facts.made_by[storage])

    @cache
    def search(needed: frozenset[int]) -> tuple[int, int]:
        if not needed:
            return (0, 0)
        at = max(facts.made_by[storage] for storage in needed)
        here = {storage for storage in needed if facts.made_by[storage] == at}
        rest, node = needed - here, early[at]
        found = []
        if not here & facts.contents:
            saved, moved = search(rest)
            found.append((saved + sum(facts.sizes[storage] for storage in here), moved))
        if is_possible(at):
            more = {storage_to_get(v) for v in node.operands()} - {None}
            saved, moved = search(rest | more)
            cost = CPU.bytes_per_call + sum(v.tensor.shape[0] for v in {*node.operands(), *node.results()})
            found.append((saved, moved + cost))
        return min(found, key=lambda pair: pair if price is None else (pair[0] + price * pair[1], 0))

    wanted = {storage_to_get(v) for v in saved_anyway} - {None}
    return search(frozenset(wanted))


def _facts(program: Program, early: list[Node]) -> _Facts:
    made_by: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for at, node in enumerate(early):
        for v in node.results():
            if node.target is not VIEW:
                made_by[v.tensor.storage] = at
                sizes[v.tensor.storage] = v.tensor.shape[0]
    roles = list(zip(program.signature.outputs, program.outputs, strict=True))
    contents = {v.tensor.storage for r, o in roles if isinstance(r, InputMutation) for v in values_in(o)}
    returned = {v.tensor.storage for r, o in roles if isinstance(r, UserOutput) for v in values_in(o)}
    lost = {program.inputs[r.input].tensor.storage for r, _ in roles if isinstance(r, InputMutation)}
    return _Facts(made_by, sizes, frozenset(returned - contents), frozenset(lost), frozenset(contents))
