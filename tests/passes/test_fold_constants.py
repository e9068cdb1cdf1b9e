"""Constants computed once: what is folded, what stays, in which memory, and that each bit is eager's."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from dovetail.errors import FoldedOtherwise
from dovetail.ir.program import Node, Program
from dovetail.ir.signature import Constant, InputMutation, SharedBytes, Signature, UserInput, UserOutput, WriteKind
from dovetail.ir.sizes import symbol
from dovetail.ir.stages import verify_program
from dovetail.ops.facts import writes_of
from dovetail.passes import fold_constants, plan_fold_constants
from dovetail.passes.fold_constants import FoldReport
from dovetail.passes.fold_constants import fold_constants as fold_programs
from dovetail.passes.fold_plan import FoldingPlan, plan_folding
from tests.counting import LINEAR, growth
from tests.passes.programs import Builder, body

aten = torch.ops.aten


def _fold(
    program: Program, tensors: dict[str, Tensor], **options: Any
) -> tuple[Program, dict[str, Tensor], FoldingPlan, FoldReport]:
    plan = plan_folding([program], tensors.keys(), **options)
    held = dict(tensors)
    (folded,), report = fold_programs([program], held, plan)
    verify_program(folded, lambda node: bool(writes_of(node)))
    names = [value.name for value in program.inputs]
    assert [value.name for value in folded.inputs] == [
        *(names[index] for index in report.kept_inputs[0]),
        *report.added_inputs[0],
    ]
    return folded, held, plan, report


def _reasons(plan: FoldingPlan) -> dict[str, str]:
    return {decision.value: decision.reason for decision in plan.decisions}


def _run(program: Program, tensors: dict[str, Tensor], **given: Tensor) -> list[Any]:
    """The outputs of a program of fixed sizes."""
    known: dict[Any, Any] = {v: given[v.name] if v.name in given else tensors[v.name] for v in program.inputs}

    def real(operand: object) -> Any:
        if isinstance(operand, tuple | list):
            return type(operand)(map(real, operand))
        return known[operand] if operand.__hash__ is not None and operand in known else operand

    with torch.no_grad():
        for node in program.nodes:
            result: Any = node.target(*map(real, node.args), **{name: real(o) for name, o in node.kwargs})
            items = result if node.unpack else [result]
            known.update((v, item) for v, item in zip(node.outputs, items, strict=True) if v is not None)
    return [real(output) for output in program.outputs]


# --- what is folded ---------------------------------------------------------------------------------------------------


def test_before_and_after() -> None:
    b = Builder("x", "w")
    x, w = b.inputs
    sine = b.call("sine", aten.sin.default, w)
    double = b.call("double", aten.mul.Tensor, sine, 2)
    program = b.program(b.call("y", aten.add.Tensor, x, double))
    folded, held, plan, report = _fold(program, {"w": torch.randn(4)})
    (name,) = plan.stored
    assert name.startswith("w_mul_")
    assert body(folded) == [f"y = add.Tensor(x, {name})", "return (y,)"]
    assert folded.signature == Signature((UserInput(0), Constant(name)), (UserOutput(0),))
    assert list(held) == [name]
    assert report.dropped == plan.dropped == ("w",)
    assert report.kept_inputs == ((0,),)
    assert report.added_inputs == ((name,),)
    assert (plan.bytes_before, plan.bytes_after, report.bytes_before, report.bytes_after) == (16, 16, 16, 16)
    assert str(plan).splitlines() == [
        "1 values are computed once; constants take 0.000 MB instead of 0.000 MB",
        "  folded double of small: FOLDED: 16 bytes, computed from 16",
    ]
    assert str(report).startswith("stored 1 values, dropped 1 constants: 0.000 MB -> 0.000 MB\n  folded double")


def test_nothing_to_fold_gives_the_same_program() -> None:
    b = Builder("x", "w")
    program = b.program(b.call("y", aten.add.Tensor, *b.inputs))
    folded, held, plan, report = _fold(program, {"w": torch.randn(4)})
    assert folded is program
    assert plan.is_empty
    assert list(held) == ["w"]
    assert report.kept_inputs == ((0, 1),)


def test_the_tensors_of_others_are_left_alone() -> None:
    b = Builder("x", "w")
    program = b.program(b.call("y", aten.add.Tensor, b.inputs[0], b.call("s", aten.sin.default, b.inputs[1])))
    other = torch.randn(3)
    plan = plan_folding([program], {"w"})
    tensors = {"w": torch.randn(4), "other": other}
    fold_programs([program], tensors, plan)
    assert tensors["other"] is other


def test_unread_constants_go_and_roles_follow() -> None:
    b = Builder("dead", "x", "state", "w")
    _, x, state, w = b.inputs
    new = b.call("new", aten.add.Tensor, state, b.call("s", aten.sin.default, w))
    program = b.program(b.call("y", aten.mul.Tensor, x, new), new)
    roles = (UserOutput(0), InputMutation(2, WriteKind.UNTRACKED))
    program = Program(
        "p", program.stage, program.inputs, program.nodes, program.outputs, Signature(program.signature.inputs, roles)
    )
    folded, held, _, report = _fold(program, {"dead": torch.ones(4), "w": torch.ones(4)})
    assert report.kept_inputs == ((1, 2),)
    assert folded.signature.outputs == (UserOutput(0), InputMutation(1, WriteKind.UNTRACKED))
    assert folded.signature.inputs[:2] == (UserInput(1), UserInput(2))
    assert "dead" not in held


@pytest.mark.parametrize(
    ("target", "args", "options", "reason"),
    [
        (aten.bernoulli.default, (), {}, "DRAWS"),
        (aten.native_dropout.default, (0.5, True), {}, "DRAWS"),
        (aten.rand_like.default, (), {}, "DRAWS"),
        (aten.relu_.default, (), {}, "WRITES"),
        (aten._assert_async.msg, ("message",), {}, "EFFECT"),
        (aten.sin.default, (), {"shape": (symbol("s0"),)}, "SYMBOLIC-SIZE"),
        (aten.expand.default, ([symbol("s0")],), {}, "SYMBOLIC-SIZE"),
        (aten.mul.Tensor, (object(),), {}, "OPERAND"),
        (aten._conj.default, (), {}, "LAZY-BITS"),
        (torch.ops.higher_order.cond, (), {}, "SUB-PROGRAM"),
    ],
)
def test_what_is_never_folded(target: Any, args: Any, options: Any, reason: str) -> None:
    b = Builder("x", "w")
    x, w = b.inputs
    view = w if target is aten._conj.default else None
    made = b.call("made", target, w, *args, view_of=view, **options)
    program = b.program(b.call("y", aten.add.Tensor, x, made))
    for everything in (False, True):
        plan = plan_folding([program], {"w"}, everything=everything)
        assert not plan.stored
        assert _reasons(plan).get("made", "w is") in (reason, "w is")
        if reason != "WRITES":
            assert _reasons(plan)["made"] == reason
    plan = plan_folding([program], {"w"}, asked=["made"])
    assert not plan.stored


def test_random_numbers_without_operands_are_drawn_at_each_call() -> None:
    b = Builder("x")
    made = b.call("made", aten.rand.default, [4])
    plan = plan_folding([b.program(b.call("y", aten.add.Tensor, b.inputs[0], made))], (), everything=True)
    assert _reasons(plan) == {"made": "DRAWS"}


def test_what_is_made_of_nothing_is_made_at_each_call() -> None:
    b = Builder("x")
    made = b.call("made", aten.full.default, [4], 1.5)
    program = b.program(b.call("y", aten.add.Tensor, b.inputs[0], b.call("neg", aten.neg.default, made)))
    plan = plan_folding([program], ())
    assert _reasons(plan) == {"neg": "MADE-AT-CALL"}
    folded, held, plan, _ = _fold(program, {}, asked=["neg"])
    assert [v.tolist() for v in held.values()] == [[-1.5] * 4]
    assert _reasons(plan) == {"neg": "ASKED"}
    assert len(folded.nodes) == 1


def test_what_the_caller_gets_is_made_at_each_call() -> None:
    b = Builder("w")
    (w,) = b.inputs
    inner = b.call("inner", aten.sin.default, w)
    outer = b.call("outer", aten.cos.default, inner)
    folded, _, plan, _ = _fold(
        b.program(b.call("v", aten.view.default, outer, [4], view_of=outer)), {"w": torch.ones(4)}
    )
    assert _reasons(plan) == {"inner": "FOLDED", "outer": "ESCAPES"}
    assert [node.target for node in folded.nodes] == [aten.cos.default, aten.view.default]


def test_a_constant_that_the_caller_gets_is_none() -> None:
    b = Builder("x", "w")
    x, w = b.inputs
    view = b.call("view", aten.view.default, w, [4], view_of=w)
    program = b.program(b.call("y", aten.add.Tensor, x, b.call("s", aten.sin.default, w)), view)
    folded, _, plan, _ = _fold(program, {"w": torch.ones(4)}, everything=True)
    assert folded is program
    assert _reasons(plan)["w"] == "ESCAPES"


@pytest.mark.parametrize("how", ["node", "view", "role", "shared bytes"])
def test_a_written_constant_is_none(how: str) -> None:
    b = Builder("x", "w", "other")
    x, w, _ = b.inputs
    double = b.call("double", aten.mul.Tensor, w, 2)
    outputs = [b.call("y", aten.add.Tensor, x, double)]
    roles_in: list[Any] = [UserInput(0), UserInput(1), UserInput(2)]
    roles: list[Any] = [UserOutput(0)]
    if how == "node":
        b.call("z", aten.add_.Tensor, w, 1, view_of=w)
    elif how == "view":
        view = b.call("view", aten.view.default, w, [4], view_of=w)
        b.call("z", aten.copy_.default, view, x, view_of=w)
    elif how == "role":
        outputs.append(b.call("new", aten.sin.default, x))
        roles.append(InputMutation(1, WriteKind.UNTRACKED))
    else:
        roles_in[2] = SharedBytes((1,))
    plain = b.program(*outputs)
    program = Program(
        "p", plain.stage, plain.inputs, plain.nodes, plain.outputs, Signature(tuple(roles_in), tuple(roles))
    )
    plan = plan_folding([program], {"w"}, everything=True)
    assert not plan.stored
    assert _reasons(plan)["w"] == "WRITTEN"
    assert plan.kept == ("w",)


def test_what_is_written_in_one_program_is_no_constant_of_another() -> None:
    a, b = Builder("x", "w"), Builder("x", "w")
    first = a.program(a.call("y", aten.add.Tensor, a.inputs[0], a.call("s", aten.sin.default, a.inputs[1])))
    b.call("z", aten.add_.Tensor, b.inputs[1], 1, view_of=b.inputs[1])
    second = b.program(b.call("y", aten.add.Tensor, *b.inputs))
    assert not plan_folding([first, second], {"w"}).stored


def test_memory_that_is_written_on_the_way_is_no_constant() -> None:
    b = Builder("x", "w")
    x, w = b.inputs
    copy = b.call("copy", aten.clone.default, w)
    b.call("written", aten.mul_.Tensor, copy, x, view_of=copy)
    plan = plan_folding([b.program(b.call("y", aten.sin.default, copy))], {"w"}, everything=True)
    assert _reasons(plan) == {"copy": "WRITTEN"}


# --- how many bytes ---------------------------------------------------------------------------------------------------


class _LowBit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("q", torch.randint(-128, 127, (512, 512), dtype=torch.int8, generator=generator))
        self.scale = nn.Parameter(torch.rand(512, 1, generator=generator))
        self.dense = nn.Parameter(torch.rand(32, 1000, generator=generator))
        self.one = nn.Parameter(torch.rand((), generator=generator))

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        wide = self.one.expand(1024, 1024).contiguous()
        return x @ (self.q.float() * self.scale).t(), y @ self.dense.t(), z + wide


def _exported(module: nn.Module, *samples: Any, **options: Any) -> fx.GraphModule:
    return torch.export.export(module, samples, **options).module(check_guards=False)


def _megabytes(gm: fx.GraphModule) -> float:
    tensors = [*gm.parameters(), *gm.buffers()]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()) / 1e6


def test_constants_do_not_grow() -> None:
    samples = (torch.randn(2, 512), torch.randn(2, 1000), torch.randn(1024, 1024))
    gm = _exported(_LowBit(), *samples)
    assert round(_megabytes(gm), 3) == 0.392
    plan = plan_fold_constants(gm, *samples)
    folded = fold_constants(gm, *samples)
    assert round(_megabytes(folded), 3) == 0.392
    assert plan.bytes_after == plan.bytes_before == round(_megabytes(gm) * 1e6)
    assert {d.reason for d in plan.decisions if not d.is_folded} == {"GROWS"}
    everything = fold_constants(gm, *samples, everything=True)
    assert _megabytes(everything) > 5
    for expected, *found in zip(gm(*samples), folded(*samples), everything(*samples), strict=True):
        assert all(torch.equal(expected, one) for one in found)


def test_low_bits_are_widened_when_that_is_asked_for() -> None:
    samples = (torch.randn(2, 512), torch.randn(2, 1000), torch.randn(1024, 1024))
    gm = _exported(_LowBit(), *samples)
    name = next(node.name for node in gm.graph.nodes if node.target is aten.mul.Tensor)
    plan = plan_fold_constants(gm, *samples, asked=[name])
    assert _reasons(plan)["t"] == "ASKED"  # a view of it
    assert plan.bytes_after == plan.bytes_before - 512 * 512 - 512 * 4 + 512 * 512 * 4


def test_a_view_keeps_sharing_memory() -> None:
    b = Builder("x", "w")
    x, w = b.inputs
    tensor = torch.randn(4)
    view = b.call("view", aten.view.default, w, [2, 2], view_of=w, shape=(2, 2))
    program = b.program(b.call("y", aten.add.Tensor, x, w), b.call("z", aten.sin.default, view, shape=(2, 2)))
    folded, held, plan, report = _fold(program, {"w": tensor})
    (name,) = plan.stored
    assert held[name].data_ptr() == tensor.data_ptr()
    assert held["w"] is tensor
    (made,) = [value for value in folded.inputs if value.name == name]
    assert made.tensor.storage == folded.inputs[1].tensor.storage
    assert report.bytes_after == 16


def test_a_small_part_is_copied_when_nobody_holds_the_rest() -> None:
    b = Builder("x")
    w = b.value("w", shape=(100, 64))
    b.inputs.append(w)
    rows = b.call("rows", aten.slice.Tensor, w, 0, 10, 12, view_of=w, shape=(2, 64), offset=640)
    more = b.call("more", aten.slice.Tensor, w, 0, 50, 51, view_of=w, shape=(1, 64), offset=3200)
    again = b.call("again", aten.slice.Tensor, rows, 0, 1, 2, view_of=w, shape=(1, 64), offset=704)
    read = [
        b.call(f"r{i}", aten.mul.Tensor, v, b.inputs[0], shape=v.tensor.shape)
        for i, v in enumerate((rows, more, again))
    ]
    program = b.program(*read)
    tensor = torch.randn(100, 64)
    expected = [tensor[10:12], tensor[50:51], tensor[11:12]]
    plan = plan_folding([program], {"w"})
    assert plan.bytes_after == 3 * 64 * 4
    folded, held, plan, report = _fold(program, {"w": tensor})
    assert report.bytes_after == plan.bytes_after
    stored = {value.name: value.tensor for value in folded.inputs[1:]}
    assert [held[name].clone().tolist() for name in plan.stored] == [t.tolist() for t in expected]
    for name in plan.stored:
        assert held[name].storage_offset() == stored[name].offset
        assert held[name].stride() == stored[name].stride
        assert held[name].data_ptr() % 64 == 0
    first, second, third = (stored[name].storage for name in plan.stored)
    assert first == third != second


def test_a_part_is_not_copied_when_its_rest_is_held() -> None:
    b = Builder("x")
    w, u = b.value("w", shape=(100, 64)), b.value("u", shape=(100, 64))
    b.inputs += [w, u]
    rows = b.call("rows", aten.slice.Tensor, w, 0, 10, 12, view_of=w, shape=(2, 64), offset=640)
    program = b.program(b.call("r", aten.mul.Tensor, rows, b.inputs[0], shape=(2, 64)))
    tensor = torch.randn(100, 64)
    plan = plan_folding([program], {"w"})
    tensors = {"w": tensor, "u": tensor[:]}  # no constant, but it stays
    fold_programs([program], tensors, plan)
    assert tensors[plan.stored[0]].data_ptr() == tensor[10:12].data_ptr()


def test_a_part_that_is_looked_beside_is_not_copied() -> None:
    b = Builder("x")
    w = b.value("w", shape=(100, 64))
    b.inputs.append(w)
    rows = b.call("rows", aten.slice.Tensor, w, 0, 10, 12, view_of=w, shape=(2, 64), offset=640)
    beside = b.call("beside", aten.as_strided.default, rows, [symbol("s0")], [1], 0, view_of=w, shape=(symbol("s0"),))
    program = b.program(b.call("r", aten.sin.default, beside, shape=(symbol("s0"),)))
    tensor = torch.randn(100, 64)
    folded, held, plan, _ = _fold(program, {"w": tensor})
    assert held[plan.stored[0]].data_ptr() == tensor[10:12].data_ptr()
    (made,) = [value for value in folded.inputs if value.name == plan.stored[0]]
    assert folded.nodes[0].results()[0].tensor.storage == made.tensor.storage


# --- memory on the way ------------------------------------------------------------------------------------------------


def test_sources_die_right_after_their_last_evaluation() -> None:
    b = Builder("x", *(f"w{i}" for i in range(6)))
    x, *weights = b.inputs
    total = x
    for i, w in enumerate(weights):
        once = b.call(f"once{i}", aten.sin.default, w)
        total = b.call(f"sum{i}", aten.add.Tensor, total, b.call(f"twice{i}", aten.cos.default, once))
    program = b.program(total)
    tensors = {f"w{i}": nn.Parameter(torch.randn(4)) for i in range(6)}
    dying = [weakref.ref(t) for t in tensors.values()]
    plan = plan_folding([program], tensors.keys())
    seen: list[int] = []

    class _Watch(dict[str, Tensor]):
        def __setitem__(self, name: str, tensor: Tensor) -> None:
            seen.append(sum(ref() is not None for ref in dying))
            super().__setitem__(name, tensor)

    held: dict[str, Tensor] = _Watch(tensors)
    del tensors
    fold_programs([program], held, plan)
    assert seen == [5, 4, 3, 2, 1, 0]
    assert [ref() for ref in dying] == [None] * 6
    assert not any(t.requires_grad for t in held.values())


def test_graph_modules_let_dropped_tensors_die() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.b = nn.Linear(8, 8)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = x @ self.a.weight.exp() + self.b.bias
            return result

    module = Tied()
    x = torch.randn(2, 8)
    gm = _exported(module, x)
    expected = gm(x).detach()  # autograd would keep the weight
    folded = fold_constants(gm, x)
    assert torch.equal(folded(x), expected)
    assert {name for name, _ in gm.named_parameters()} >= {"a.weight", "b.bias"}
    dying = weakref.ref(module.a.weight)
    del module, gm
    gc.collect()
    assert dying() is None
    assert torch.equal(folded(x), expected)


# --- several programs -------------------------------------------------------------------------------------------------


def _method(name: str, size: int, *, scale: float = 2.0) -> Program:
    b = Builder("w")
    x = b.value("x", shape=(size, 4))
    b.inputs.append(x)
    sine = b.call(f"{name}_sine", aten.sin.default, b.inputs[0])
    made = b.call(f"{name}_made", aten.mul.Tensor, sine, scale)
    return b.program(b.call("y", aten.add.Tensor, x, made, shape=(size, 4)))


def test_programs_share_what_is_the_same() -> None:
    programs = [_method("a", 2), _method("b", 3), _method("c", 3, scale=3.0)]
    tensors = {"w": torch.randn(4)}
    plan = plan_folding(programs, tensors, everything=True)
    assert len(plan.stored) == 2
    folded, report = fold_programs(programs, tensors, plan)
    a, b, c = (program.inputs[-1].name for program in folded)
    assert a == b != c
    assert report.added_inputs == ((a,), (a,), (c,))
    assert report.kept_inputs == ((1,), (1,), (1,))
    assert set(tensors) == {a, c}
    # the name is of what is computed, not of the other programs
    assert plan_folding(programs[1:2], {"w"}).stored == (a,)
    assert plan_folding([_method("other", 9)], {"w"}).stored == (a,)


def test_by_default_two_of_one_are_one_too_many() -> None:
    programs = [_method("a", 2), _method("c", 3, scale=3.0)]
    plan = plan_folding(programs, {"w"})
    assert _reasons(plan) == {"a_sine": "FOLDED", "a_made": "GROWS", "c_made": "GROWS"}


def test_numbers_are_told_apart() -> None:
    names = set()
    for number in (0, 0.0, -0.0, False, 1, 1.0, True, float("nan"), float("inf"), 0j, complex(0.0, -0.0)):
        b = Builder("x", "w")
        made = b.call("made", aten.mul.Tensor, b.inputs[1], number)
        names |= set(plan_folding([b.program(b.call("y", aten.add.Tensor, b.inputs[0], made))], {"w"}).stored)
    assert len(names) == 11


def test_the_same_twice_in_one_program_is_stored_once() -> None:
    b = Builder("x", "w")
    x, w = b.inputs
    twins = [b.call(f"twin{i}", aten.sin.default, w) for i in range(2)]
    views = [
        b.call(f"view{i}", aten.expand.default, t, [symbol("s"), 4], view_of=t, shape=(symbol("s"), 4))
        for i, t in enumerate(twins)
    ]
    program = b.program(*(b.call(f"r{i}", aten.mul.Tensor, x, v, shape=(symbol("s"), 4)) for i, v in enumerate(views)))
    folded, _, plan, _ = _fold(program, {"w": torch.randn(4)})
    assert len(plan.stored) == 1
    first, second = (node.results()[0].tensor.storage for node in folded.nodes[:2])
    assert first == second == folded.inputs[-1].tensor.storage


def test_names_that_are_taken_and_asked_for_in_vain() -> None:
    b = Builder("x", "w")
    x, w = b.inputs
    program = b.program(b.call("y", aten.add.Tensor, x, b.call("s", aten.sin.default, w)))
    (name,) = plan_folding([program], {"w"}).stored
    (other,) = plan_folding([program], {"w"}, taken=[name]).stored
    assert other.startswith(name)
    assert other != name
    plan = plan_folding([program], {"w"}, asked=["y", "nothing"])
    assert [str(d) for d in plan.decisions[1:]] == [
        f"kept {name}: NOT-CONSTANT: it differs from call to call, or is not a value" for name in ("nothing", "y")
    ]


def test_what_only_dead_nodes_read_goes_with_them() -> None:
    b = Builder("x", "u", "w")
    x, u, w = b.inputs
    b.call("dead", aten.add.Tensor, x, b.call("su", aten.sin.default, u))
    program = b.program(b.call("y", aten.add.Tensor, x, b.call("sw", aten.sin.default, w)))
    folded, held, _, report = _fold(program, {"u": torch.ones(4), "w": torch.ones(4)})
    assert set(held) == set(report.stored) == {v.name for v in folded.inputs} - {"x"}


def test_checks_of_what_is_known_go() -> None:
    b = Builder("x", "w")
    x, w = b.inputs
    for kwargs in ((("dtype", torch.float32),), (("dtype", torch.float64),)):
        b.nodes.append(Node(aten._assert_tensor_metadata.default, (w, [4]), kwargs))
    program = b.program(b.call("y", aten.add.Tensor, x, b.call("s", aten.sin.default, w)))
    folded, _, plan, _ = _fold(program, {"w": torch.ones(4)})
    assert [dict(node.kwargs).get("dtype") for node in folded.nodes][:2] == [torch.float64, None]
    assert "EFFECT" in [d.reason for d in plan.decisions]


def test_weights_that_are_packed_for_a_library() -> None:
    b = Builder("x", "w")
    x, w = b.inputs
    packed = b.call("packed", aten.to_mkldnn.default, w)
    program = b.program(b.call("y", aten.bernoulli.default, packed), b.call("z", aten.mul.Tensor, x, packed))
    _, held, plan, report = _fold(program, {"w": torch.ones(4)}, asked=["packed"])
    assert [held[name].is_mkldnn for name in plan.stored] == [True]
    assert report.dropped == ("w",)
    wrong = b.call("wrong", aten.to_mkldnn.default, w, dtype=torch.float64)
    program = b.program(b.call("u", aten.mul.Tensor, x, wrong))
    with pytest.raises(FoldedOtherwise, match=r"folding wrong gave torch\._mkldnn"):
        _fold(program, {"w": torch.ones(4)}, asked=["wrong"])


def test_weights_of_two_names() -> None:
    root, graph = nn.Module(), fx.Graph()
    weight = nn.Parameter(torch.randn(8, 8))
    root.a, root.b = weight, weight
    root.register_buffer("part", weight.detach()[2:4])
    x, a, b, part = graph.placeholder("x"), *(graph.get_attr(name) for name in ("a", "b", "part"))
    t = graph.call_function(aten.t.default, (a,))
    made = [graph.call_function(aten.mul.Tensor, (x, weight)) for weight in (t, b)]
    made.append(graph.call_function(aten.add.Tensor, (part, graph.call_function(aten.select.int, (x, 0, 0)))))
    graph.output(tuple(made))
    gm = fx.GraphModule(root, graph)
    x_sample = torch.randn(8, 8)
    folded = fold_constants(gm, x_sample)
    for expected, found in zip(gm(x_sample), folded(x_sample), strict=True):
        assert torch.equal(expected, found)
    assert _megabytes(folded) == _megabytes(gm)
    assert [name for name, _ in folded.named_parameters(remove_duplicate=False)] == ["b"]


@pytest.mark.parametrize("everything", [False, True])
def test_an_attribute_that_is_an_argument_too_and_is_written(everything: bool) -> None:
    root, graph = nn.Module(), fx.Graph()
    root.register_buffer("w", torch.ones(4))
    x, w = graph.placeholder("x"), graph.get_attr("w")
    made = graph.call_function(aten.mul.Tensor, (graph.call_function(aten.sin.default, (w,)), x))
    graph.call_function(aten.copy_.default, (x, made))
    graph.output((made,))
    gm = fx.GraphModule(root, graph)
    plan = plan_fold_constants(gm, gm.w, everything=everything)
    assert _reasons(plan)["w"] == "WRITTEN"
    assert plan_fold_constants(gm, torch.ones(4), everything=everything).stored


def test_what_is_stored_is_no_tensor_of_inference_mode() -> None:
    b = Builder("x", "w")
    program = b.program(b.call("y", aten.add.Tensor, b.inputs[0], b.call("s", aten.sin.default, b.inputs[1])))
    with torch.inference_mode():
        _, held, _, _ = _fold(program, {"w": torch.ones(4)})
    assert not any(tensor.is_inference() for tensor in held.values())


# --- failures ---------------------------------------------------------------------------------------------------------


def test_what_raises_stays_with_all_it_needs() -> None:
    b = Builder("x", "u", "v", "w")
    x, u, v, w = b.inputs
    su, sv = b.call("su", aten.sin.default, u), b.call("sv", aten.sin.default, v)
    bad = b.call("bad", aten.index_select.default, sv, 0, b.call("index", aten._to_copy.default, w, dtype=torch.int64))
    both = b.call("both", aten.add.Tensor, su, bad)
    good = b.call("good", aten.cos.default, u)
    program = b.program(b.call("y", aten.add.Tensor, x, both), b.call("z", aten.add.Tensor, x, good))
    nodes = [
        Node(n.target, n.args, (("dtype", torch.int64),), n.outputs) if n.results()[0].name == "index" else n
        for n in program.nodes
    ]
    program = program.replace_nodes(tuple(nodes))
    tensors = {"u": torch.ones(4), "v": torch.ones(4), "w": torch.full((4,), 9.0)}
    folded, held, _, report = _fold(program, tensors, everything=True)
    ((name, reason),) = report.failed
    assert name == "bad"
    assert reason.startswith("RAISES: IndexError: ")
    assert [node.results()[0].name for node in folded.nodes] == ["bad", "both", "y", "z"]
    assert str(report).splitlines()[1].startswith("  kept bad: RAISES: IndexError")
    with pytest.raises(IndexError):
        _run(folded, held, x=torch.zeros(4))
    good_part = folded.replace_nodes(folded.nodes[3:], folded.outputs[1:])
    assert torch.equal(_run(good_part, held, x=torch.zeros(4))[0], torch.ones(4).cos())


def test_a_wrong_description_is_refused() -> None:
    b = Builder("x", "w")
    made = b.call("made", aten.sin.default, b.inputs[1], shape=(5,))
    program = b.program(b.call("y", aten.add.Tensor, b.inputs[0], made))
    with pytest.raises(FoldedOtherwise, match="folding made gave"):
        fold_programs([program], {"w": torch.ones(4)}, plan_folding([program], {"w"}, everything=True))
    with pytest.raises(FoldedOtherwise, match="folding w gave"):
        fold_programs([program], {"w": torch.ones(5)}, plan_folding([program], {"w"}, everything=True))


def test_modes_that_are_entered_do_not_show() -> None:
    b = Builder("x")
    w = b.value("w", shape=(4, 4))
    b.inputs.append(w)
    made = b.call("made", aten.mm.default, w, w, shape=(4, 4))
    program = b.program(b.call("y", aten.add.Tensor, b.inputs[0], made, shape=(4, 4)))
    tensors: dict[str, Tensor] = {"w": nn.Parameter(torch.randn(4, 4))}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, held, plan, _ = _fold(program, tensors)
    assert torch.equal(held[plan.stored[0]], (tensors["w"] @ tensors["w"]).detach())


# --- work -------------------------------------------------------------------------------------------------------------


def _long_program(count: int) -> tuple[Program, set[str]]:
    b = Builder("x", *(f"w{i}" for i in range(count)))
    x, *weights = b.inputs
    for i, w in enumerate(weights):
        view = b.call(f"v{i}", aten.view.default, w, [4], view_of=w)
        made = b.call(f"n{i}", aten.neg.default, b.call(f"m{i}", aten.mul.Tensor, view, 2.0))
        b.call(f"y{i}", aten.add.Tensor, x, b.call(f"k{i}", aten.add.Tensor, made, weights[i - 1]))
    return b.program(*[node.results()[0] for node in b.nodes[4::5]]), {w.name for w in weights}


def _plan_long_program(count: int) -> Callable[[], FoldingPlan]:
    program, weights = _long_program(count)
    return partial(plan_folding, [program], weights)


def test_work_grows_with_the_length_of_programs() -> None:
    assert len(_plan_long_program(5_000)().stored) == 5_000
    assert growth(_plan_long_program, 250) < LINEAR


# --- on graph modules -------------------------------------------------------------------------------------------------


class _Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("c", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.c.add_(1)
        return x + self.c * 2


@pytest.mark.parametrize("everything", [False, True])
def test_a_counter_counts(everything: bool) -> None:
    gm = _exported(_Counter(), torch.zeros(2))
    folded = fold_constants(gm, torch.zeros(2), everything=everything)
    assert [folded(torch.zeros(2)).tolist() for _ in range(3)] == [[2.0] * 2, [4.0] * 2, [6.0] * 2]
    assert _reasons(plan_fold_constants(gm, torch.zeros(2)))["c"] == "WRITTEN"


def _stateful(write: Callable[[Tensor], object]) -> nn.Module:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("c", torch.ones(2, 3))

        def forward(self, x: Tensor) -> Tensor:
            before = self.c.sin()
            write(self.c)
            return x + before + self.c.t().reshape(2, 3)

    return Stateful()


@pytest.mark.parametrize(
    "write",
    [
        lambda c: c.copy_(c * 2),
        lambda c: c[0].add_(1),
        lambda c: c.t()[1:].mul_(3),
        lambda c: c.view(-1)[2:4].zero_(),
    ],
)
def test_written_buffers_are_no_constants(write: Callable[[Tensor], object]) -> None:
    x = torch.randn(2, 3)
    expected_module = _stateful(write)
    folded = fold_constants(_exported(_stateful(write), x), x, everything=True)
    for _ in range(3):
        assert torch.equal(folded(x), expected_module(x))


def test_the_given_module_is_not_edited() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    x = torch.randn(2, 4)
    gm = _exported(module, x)
    before, state = str(gm.graph), {name: id(t) for name, t in gm.named_parameters()}
    folded = fold_constants(gm, x, everything=True)
    assert str(gm.graph) == before
    assert {name: id(t) for name, t in gm.named_parameters()} == state
    assert torch.equal(folded(x), gm(x))


def test_symbolic_sizes() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(64, 8))
            self.proj = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            hidden: Tensor = x + (self.table * 2)[: x.shape[1]]
            out: Tensor = hidden @ self.proj.weight.t()
            return out

    x = torch.randn(2, 16, 8)
    gm = _exported(Positions(), x, dynamic_shapes=({1: torch.export.Dim("s", min=2, max=64)},))
    folded = fold_constants(gm)
    assert len([n for n in folded.graph.nodes if n.op == "call_function"]) < len(
        [n for n in gm.graph.nodes if n.op == "call_function"]
    )
    for size in (16, 2, 64, 33):
        y = torch.randn(2, size, 8)
        assert torch.equal(folded(y), gm(y))


def test_a_frozen_trace_folds_again_to_the_same() -> None:
    w = torch.randn(4, 4)
    gm = make_fx(lambda x: x @ (w.t().contiguous() * 2))(torch.randn(2, 4))
    x = torch.randn(2, 4)
    once = fold_constants(gm, x)
    twice = fold_constants(once, x)
    assert str(once.graph) == str(twice.graph)
    assert torch.equal(once(x), gm(x))
    assert torch.equal(twice(x), gm(x))


def _conjugates() -> fx.GraphModule:
    """What is made of a lazy conjugate of a constant, read at each call."""
    root, graph = nn.Module(), fx.Graph()
    root.register_buffer("w", torch.randn(4, 4, dtype=torch.complex64))
    x, w = graph.placeholder("x"), graph.get_attr("w")
    lazy = graph.call_function(aten._conj.default, (w,))
    real = graph.call_function(aten.view_as_real.default, (graph.call_function(aten.resolve_conj.default, (lazy,)),))
    made = [
        lazy,
        graph.call_function(aten.t.default, (lazy,)),
        graph.call_function(aten.mul.Tensor, (lazy, 2)),
        graph.call_function(aten.clone.default, (lazy,)),
        graph.call_function(aten._conj.default, (graph.call_function(aten.sin.default, (lazy,)),)),
        graph.call_function(aten.sum.default, (real,)),
    ]
    graph.output(tuple(graph.call_function(aten.mul.Tensor, (m, x)) for m in made))
    return fx.GraphModule(root, graph)


@pytest.mark.parametrize("everything", [False, True])
def test_lazy_conjugates_are_taken_at_each_call(everything: bool) -> None:
    x = torch.randn(4, 4)
    gm = _conjugates()
    folded = fold_constants(gm, x, everything=everything)
    assert not any(t.is_conj() or t.is_neg() for t in (*folded.buffers(), *folded.parameters()))
    for expected, found in zip(gm(x), folded(x), strict=True):
        assert torch.equal(expected, found)
    assert _reasons(plan_fold_constants(gm, x, everything=everything))["_conj_default"] == "LAZY-BITS"
    assert aten._conj.default in [node.target for node in folded.graph.nodes]
    assert (aten.clone.default in [node.target for node in folded.graph.nodes]) is not everything


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("is_decomposed", [False, True])
def test_models(everything: bool, is_decomposed: bool) -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False
    )
    convolutions = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(), nn.Conv2d(8, 4, 3))
    for module, x in ((encoder, torch.randn(2, 5, 16)), (convolutions, torch.randn(2, 3, 9, 9))):
        module.eval()
        program = torch.export.export(module, (x,))
        gm = (program.run_decompositions() if is_decomposed else program).module(check_guards=False)
        folded = fold_constants(gm, x, everything=everything)
        with torch.no_grad():
            assert torch.equal(folded(x), gm(x))
        if not everything:
            assert _megabytes(folded) <= _megabytes(gm)
