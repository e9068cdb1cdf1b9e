"""Who holds memory: the storages of a moment add up to the simulation, and each is what it is said to be."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.analysis.categories import CATEGORIES, handed_to_backward
from dovetail.inspect.explanation import Explanation
from dovetail.inspect.grouping import GROUPINGS, Branch, group, group_decisions
from dovetail.inspect.holders import Holder, layers_of, moment, peak_moment, short_operator
from dovetail.inspect.layers import Layers
from dovetail.inspect.memory_map import memory_map
from dovetail.inspect.report_rows import Decision
from dovetail.inspect.source_paths import is_library, short_path
from dovetail.inspect.units import byte_unit
from dovetail.ir.program import Origin
from tests.inspect import explained


class Block(nn.Module):
    """A residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        out: Tensor = x + self.mlp(self.norm(x))
        return out


class Stack(nn.Module):
    """Three blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        """A loss."""
        out: Tensor = self.head(self.blocks(x)).square().mean()
        return out


@pytest.fixture(scope="module")
def stack() -> Explanation:
    """A training step of a model with repeated layers."""
    return dovetail.explain(Stack(), torch.ones(16, 8))


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> Explanation:
    """Programs of every kind."""
    make: Callable[[], Explanation] = request.param
    return make()


_ALL = [explained.explained_net, explained.explained_cut, explained.explained_write, explained.explained_copy]


@pytest.mark.parametrize("found", _ALL, indirect=True, ids=lambda make: make.__name__)
def test_the_holders_of_every_moment_add_up(found: Explanation) -> None:
    layers = layers_of(found)
    for memory in (found.step, *(program.memory for program in found.programs)):
        for node, level in enumerate(memory.live_bytes):
            now = moment(memory, node, found.lines, layers)
            assert now.made_bytes == level
            assert now.resident_bytes == memory.resident_bytes
            assert now.total_bytes == level + memory.resident_bytes
            assert {holder.category for holder in now.holders} <= set(CATEGORIES)
            assert len({holder.storage for holder in now.holders}) == len(now.holders)
    assert peak_moment(found).made_bytes == found.peak_bytes


@pytest.mark.parametrize("by", GROUPINGS)
def test_every_tree_adds_up(stack: Explanation, by: str) -> None:
    holders = peak_moment(stack).holders
    tree = group(holders, by)  # type: ignore[arg-type]
    assert (tree.size, tree.count) == (sum(h.bytes for h in holders), len(holders))
    _adds_up(tree)
    assert sorted(h.storage for branch in tree.walk() for h in branch.holders) == sorted(h.storage for h in holders)


def _adds_up(tree: Branch) -> None:
    for branch in tree.walk():
        assert branch.size == sum(child.size for child in branch.children) + sum(h.bytes for h in branch.holders)
        assert branch.count == sum(child.count for child in branch.children) + len(branch.holders)
        assert len({child.path for child in branch.children}) == len(branch.children)
        for child in branch.children:
            assert child.path[: len(branch.path)] == branch.path
            assert (
                child.path[-1] == child.label.rpartition(".")[2] or "." in child.label or child.label == child.path[-1]
            )


def test_what_each_storage_is_for(stack: Explanation) -> None:
    holders = {holder.name: holder for holder in peak_moment(stack).holders}
    weight = holders["blocks.1.mlp.0.weight"]
    assert (weight.category, weight.module, weight.layer) == ("weights", "blocks.1.mlp.0", "blocks.*.mlp.0")
    assert (weight.bytes, weight.is_resident, weight.line) == (32 * 8 * 4, True, "")
    assert holders["arg_0"].category == "inputs"
    weights = sum(holder.bytes for holder in holders.values() if holder.category == "weights")
    assert weights == sum(parameter.nbytes for parameter in Stack().parameters())
    saved = [holder for holder in holders.values() if holder.category == "saved for backward"]
    assert {holder.layer for holder in saved} >= {"blocks.*.norm", "blocks.*.mlp.0"}
    path = Path(__file__)
    inside = [holder for holder in saved if holder.layer.startswith("blocks.*.")]
    assert {holder.source for holder in inside} == {"out: Tensor = x + self.mlp(self.norm(x))"}
    assert all(holder.line.startswith(short_path(str(path)) + ":") and not holder.is_library for holder in inside)
    end = len(stack.step.nodes) - 1
    last = moment(stack.step, end, stack.lines, layers_of(stack)).holders
    gradients = sum(holder.bytes for holder in last if holder.category == "gradients" and not holder.is_resident)
    assert gradients == weights


def test_a_training_step_has_state_and_gradients() -> None:
    model = Stack()
    optimizer = torch.optim.AdamW(model.parameters())
    extra = {"mean": torch.zeros(3)}

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x)
        loss.backward()
        extra["mean"].add_(1)
        optimizer.step()
        return loss

    compiled = dovetail.compile_step(step)
    for _ in range(3):
        compiled(torch.ones(16, 8))
    program = compiled.program
    memory = memory_map(program, {}, handed_to_backward(program))
    sizes = dict.fromkeys(CATEGORIES, 0)
    for row in memory.residents:
        sizes[row.category] += row.bytes
    parameters = sum(p.nbytes for p in model.parameters())
    assert sizes["weights"] == parameters
    assert sizes["optimizer state"] == 2 * parameters + 4 * len(list(model.parameters()))
    assert sizes["other state"] == 12
    assert sizes["inputs"] == 16 * 8 * 4
    state = [row for row in memory.residents if row.category == "optimizer state"]
    assert {row.origin.module for row in state} >= {"model.blocks.0.mlp.0", "model.head"}
    made = {row.category for row in memory.storages}
    assert made >= {"gradients", "saved for backward", "outputs"}
    gradients = [row for row in memory.storages if "gradients" in (row.category, row.later)]
    assert sorted(row.bytes for row in gradients) == sorted(p.nbytes for p in model.parameters())


def test_a_frozen_program_has_constants() -> None:
    frozen = dovetail.freeze(Stack().eval(), (torch.ones(16, 8),))
    found = dovetail.explain(frozen)
    held = [row for row in found.step.residents if row.category == "constants"]
    assert sum(row.bytes for row in held) == frozen.constant_bytes()
    assert {row.origin.module for row in held} >= {"blocks.0.mlp.0", "head"}


def test_memory_that_inputs_share_counts_once() -> None:
    base = torch.ones(64)
    found = dovetail.explain(lambda a, b: (a + b).sum(), base[:32], base[16:48])
    assert found.step.resident_bytes == 48 * 4
    same = dovetail.explain(lambda a, b: (a + b).sum(), base, base)
    assert same.step.resident_bytes == 64 * 4


def test_sizes_that_are_open_follow_the_call() -> None:
    compiled = dovetail.compile(lambda x: (x * 2).relu(), dynamic=True)
    found = dovetail.explain(compiled, torch.ones(5, 7))
    assert found.step.resident_bytes == 5 * 7 * 4
    assert peak_moment(found).total_bytes == 2 * 5 * 7 * 4


def _holder(rng: random.Random, number: int) -> Holder:
    module = ".".join(rng.choice(["a", "b", "0", "1", "<&>", "\u202e"]) for _ in range(rng.randrange(4)))
    file = rng.choice(["", "/home/me/train.py", "/x/site-packages/lib/layer.py"])
    category = rng.choice(CATEGORIES)
    line = f"{short_path(file)}:{rng.randrange(3)}" if file else ""
    operator = rng.choice(["mm", "add"]) if file else ""
    size = rng.randrange(1, 10**9)
    return Holder(
        number, f"v{number}", size, "", category, module, module, file, line, "", operator, is_library(file), not file
    )


def test_trees_of_any_holders_add_up() -> None:
    rng = random.Random(3)
    for count in (0, 1, 2, 40):
        holders = [_holder(rng, number) for number in range(count)]
        for by in GROUPINGS:
            tree = group(holders, by)
            assert tree.size == sum(holder.bytes for holder in holders)
            _adds_up(tree)
        tree = group(holders, "line")
        assert [child.is_library for child in tree.children] == sorted(child.is_library for child in tree.children)


def test_a_grouping_that_is_none() -> None:
    with pytest.raises(ValueError, match="'color' is not a grouping: by is one of module, layer, line"):
        group([], "color")  # type: ignore[arg-type]


def test_decisions_of_repeated_layers_are_one(stack: Explanation) -> None:
    groups = group_decisions(stack.decisions, layers_of(stack))
    assert sorted(map(id, stack.decisions)) == sorted(id(row) for group in groups for row in group.rows)
    assert sum(group.bytes for group in groups) == sum(row.bytes for row in stack.decisions)
    (gelu,) = [group for group in groups if group.operator == "gelu" and group.kind == "saved"]
    assert gelu.text(byte_unit(25_000_000)) == "3 x gelu, saved, <0.1 MB each"
    assert (gelu.layer, gelu.bytes_each) == ("blocks.*.mlp.1", 16 * 32 * 4)
    assert len(groups) < len(stack.decisions) / 2


def test_decisions_that_differ_in_anything_stay_apart() -> None:
    row = Decision("saved", "f", "v", "aten.gelu.default", "NOT-CHEAP", "dear", 8, Origin("m.py", 1, "f", "h.0"))
    others = [
        Decision("recomputed", "f", "v", row.operator, row.code, row.why, 8, row.origin),
        Decision("saved", "f", "v", "aten.tanh.default", row.code, row.why, 8, row.origin),
        Decision("saved", "f", "v", row.operator, "CHEAPEST-CUT", row.why, 8, row.origin),
        Decision("saved", "f", "v", row.operator, row.code, row.why, 16, row.origin),
        Decision("saved", "f", "v", row.operator, row.code, row.why, 8, Origin("m.py", 1, "f", "g.0")),
    ]
    layers = Layers(["h.0", "h.1"])
    assert [group.count for group in group_decisions([row, *others], layers)] == [1] * 6
    twin = Decision(
        "saved", "g", "w", "aten.gelu_.default", row.code, row.why, 8, Origin("n.py", 9, "f", "h.1"), "by x"
    )
    (both,) = group_decisions([row, twin], layers)
    assert (both.count, both.layer, both.operator) == (2, "h.*", "gelu")
    assert group_decisions([row], layers)[0].text(byte_unit(8)) == "1 x gelu, saved, 8 B"


def test_short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_path(str(tmp_path / "a" / "train.py")) == str(Path("a", "train.py"))
    inside = str(tmp_path / ".venv" / "lib" / "site-packages" / "transformers" / "models" / "gpt2.py")
    assert short_path(inside) == str(Path("transformers", "models", "gpt2.py"))
    assert is_library(inside)
    assert is_library(torch.nn.functional.__file__)
    assert not is_library(__file__)
    assert short_path("/somewhere/else/that/is/not/there/train.py") == str(Path("there", "train.py"))
    assert short_path("<stdin>") == "<stdin>"
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "pyproject.toml").touch()
    monkeypatch.chdir(project / "src")
    assert short_path(str(project / "tools" / "run.py")) == str(Path("tools", "run.py"))


@pytest.mark.parametrize(
    ("operator", "short"),
    [
        ("aten.gelu.default", "gelu"),
        ("prims.functional_aten_bernoulli_float", "bernoulli_float"),
        ("prims.guard", "guard"),
        ("mylib.op.default", "op"),
        ("neg", "neg"),
        ("", ""),
    ],
)
def test_short_operators(operator: str, short: str) -> None:
    assert short_operator(operator) == short


def test_layers_that_are_partly_folded_are_one_branch() -> None:
    layers = Layers([*(f"h.{n}.mlp" for n in range(4)), "h.0.extra"])
    made = [
        Holder(n, f"v{n}", 8, "", "temporaries", f"h.{n}.mlp", layers.fold(f"h.{n}.mlp"), "", "", "", "", False, False)
        for n in range(4)
    ]
    (h,) = group(made, "layer").children
    assert [(child.label, child.size) for child in h.children] == [("1-3.mlp", 24), ("0.mlp", 8)]
