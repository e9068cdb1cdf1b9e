"""The checker of in-place programs: what it must let pass, and one program for each thing that it must not."""

from __future__ import annotations

import ast
import copy
import importlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.analysis.value_numbers import call_of
from dovetail.analysis.verify_inplace import verify_inplace
from dovetail.errors import InplaceMismatch
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Origin, Program, ScalarMeta, Stage, Value
from dovetail.ir.sizes import SizeExpr, symbol
from dovetail.ir.sub_programs import WithSubPrograms
from dovetail.ops import prims
from dovetail.ops.facts import draws_otherwise_in_place, rounds_otherwise_in_place
from dovetail.passes.inplace import work_in_place
from dovetail.torch_compat.dispatch import schema_of
from tests.analysis.inplace_pairs import PAIRS, Pair
from tests.analysis.written_programs import broken, difference, written
from tests.counting import LINEAR, growth
from tests.ops.operators import aten_overloads
from tests.passes.programs import Builder

aten = torch.ops.aten


def _vectors() -> dict[str, Any]:
    return {"x": torch.randn(4), "y": torch.randn(4)}


def _matrices() -> dict[str, Any]:
    return {"x": torch.randn(4, 4), "y": torch.randn(4, 4)}


def _verify(functional: str, inplace: str, inputs: Mapping[str, Any] | None = None, **options: Any) -> None:
    inputs = _vectors() if inputs is None else inputs
    verify_inplace(written(functional, inputs), written(inplace, inputs), **options)


def _refused(
    message: str, functional: str, inplace: str, inputs: Mapping[str, Any] | None = None, **options: Any
) -> None:
    with pytest.raises(InplaceMismatch, match=re.escape(message)):
        _verify(functional, inplace, inputs, **options)


# --- programs written by hand, and what becomes of them ---------------------------------------------------------------


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_correct_programs_pass(pair: Pair) -> None:
    inputs = pair.inputs()
    functional, inplace = (written(text, inputs) for text in (pair.functional, pair.inplace))
    assert difference(functional, inplace, inputs, pair.donated) == ""
    verify_inplace(functional, functional)
    verify_inplace(functional, inplace, donated=pair.donated)


def test_broken_programs_are_caught() -> None:
    """Programs with one thing changed, where running them on real tensors shows that they are wrong."""
    counts: Counter[str] = Counter()
    torch.manual_seed(0)
    for name, pair in PAIRS.items():
        inputs = pair.inputs()
        functional = written(pair.functional, inputs)
        for text, kind in {text: kind for kind, text in broken(pair.inplace)}.items():
            try:
                program = written(text, inputs)
            except Exception:
                continue  # no program: torch refuses it, or a name is read before it is computed
            wrong = difference(functional, program, inputs, pair.donated)
            if not wrong:
                continue
            counts[kind] += 1
            try:
                verify_inplace(functional, program, donated=pair.donated)
            except InplaceMismatch:
                continue
            pytest.fail(f"{name}: {wrong}, and nobody noticed\n{text}")
    assert sum(counts.values()) >= 500, counts
    kinds = ("move", "drop", "repeat", "other operand", "other number", "in place or not", "return another")
    assert all(counts[kind] > 20 for kind in kinds), counts


def _long_programs(count: int) -> tuple[Program, Program]:
    build, other = Builder("x"), Builder("x")
    value = build.inputs[0]
    written_value = other.call("v0", aten.mul.Tensor, other.inputs[0], 2)
    for index in range(count):
        value = build.call(f"v{index}", (aten.mul.Tensor, aten.add.Tensor)[index % 2], value, 2)
    for index in range(1, count):
        target = (aten.mul_.Tensor, aten.add_.Tensor)[index % 2]
        written_value = other.call(f"v{index}", target, written_value, 2, view_of=written_value)
    return build.program(value), other.program(written_value)


def test_work_grows_with_the_number_of_nodes() -> None:
    assert growth(lambda count: partial(verify_inplace, *_long_programs(count)), 300) < LINEAR


def test_five_thousand_nodes() -> None:
    verify_inplace(*_long_programs(5000))


# --- what an operator reads -------------------------------------------------------------------------------------------

_BOTH = "a = aten.exp.default(x)\nb = aten.sin.default(a)\nc = aten.cos.default(a)\nreturn b, c"


def test_a_layout_that_is_read() -> None:
    functional = "v = aten.slice.Tensor(x, 0, 0, 4, 2)\na = aten.exp.default(v)\nb = aten.sum.default(a)\nreturn b"
    message = "operand 'self' (a) is not what b = aten.sum.default meant: it looks like (((2,), (2,)"
    _refused(message, functional, functional.replace("exp", "exp_"), donated=(0,))


def test_a_write_before_a_later_read() -> None:
    text = _BOTH.replace("sin", "sin_")
    message = (
        "c = aten.cos.default does not read what it read before.\n"
        "  node      c = aten.cos.default\n"
        "  because   operand 'self' (a) is not what c = aten.cos.default meant; "
        "its memory was last written by b = aten.sin_.default\n"
    )
    _refused(message, _BOTH, text)


def test_the_message_says_where_the_node_comes_from() -> None:
    inputs = _vectors()
    program = written(_BOTH.replace("sin", "sin_"), inputs)
    nodes = tuple(replace(node, origin=Origin("train.py", 7, "forward")) for node in program.nodes)
    with pytest.raises(InplaceMismatch, match=r"from      train.py:7 in forward"):
        verify_inplace(written(_BOTH, inputs), program.replace_nodes(nodes))


def test_an_application_that_was_never_made() -> None:
    _refused("b = aten.tan.default is applied, which it never was", _BOTH, _BOTH.replace("sin", "tan"))


def test_another_number() -> None:
    functional = "a = aten.add.Tensor(x, y, alpha=2)\nreturn a"
    _refused("operand 'alpha' (3) is not what", functional, functional.replace("2", "3"))


def test_arguments_are_compared_by_what_they_say_not_how() -> None:
    _verify("a = aten.add.Tensor(x, y)\nreturn a", "a = aten.add.Tensor(self=x, other=y, alpha=1)\nreturn a")


def test_a_dead_application_may_go() -> None:
    _verify(_BOTH.replace("return b, c", "return b"), "a = aten.exp.default(x)\nb = aten.sin_.default(a)\nreturn b")


def test_equal_applications_are_one() -> None:
    twice = "a = aten.exp.default(x)\nb = aten.exp.default(x)\nc = aten.sin.default(b)\nreturn a, c"
    _verify(twice, twice.replace("sin", "sin_"))


# --- what an operator writes ------------------------------------------------------------------------------------------


def test_an_elementwise_operator_may_read_what_it_writes_at_the_same_place() -> None:
    functional = "a = aten.exp.default(x)\nb = aten.mul.Tensor(a, a)\nreturn b"
    _verify(functional, functional.replace("mul", "mul_"))


def test_other_operators_may_not() -> None:
    functional = "a = aten.exp.default(x)\nb = aten.mm.default(a, y)\nreturn b"
    inplace = "a = aten.exp.default(x)\nb = aten.mm.out(a, y, out=a)\nreturn b"
    _refused("it writes bytes that it reads through operand 'self', a", functional, inplace, _matrices())


def test_a_copy_of_a_copy_that_begins_elsewhere() -> None:
    functional = """
a = aten.add.Tensor(x, 1)
b = aten.select_scatter.default(a, y, 0, 1)
c = aten.select_scatter.default(b, y, 0, 2)
d = aten.as_strided.default(c, [2], [1], 3)
e = aten.neg.default(d)
return e"""
    base = torch.randn(20)
    inputs = {"x": base[4:].view(4, 4), "y": torch.randn(4)}
    program = written(functional, inputs)
    first, *others = program.nodes
    old, new = first.outputs[0], Value("a", program.inputs[0].meta)
    nodes = [node.with_operands(lambda v: new if v is old else v) for node in others]
    in_place = replace(program, nodes=(replace(first, target=aten.add_.Tensor, outputs=(new,)), *nodes))
    with pytest.raises(InplaceMismatch, match="which begins elsewhere"):
        verify_inplace(program, in_place, donated=(0,))


def test_torch_refuses_one_tensor_as_two_operands_though_it_be_empty() -> None:
    def program(target: Any, in_place: bool) -> Program:
        build = Builder()
        build.inputs = [build.value("x", shape=(0,)), build.value("n", shape=(0,), dtype=torch.int64)]
        new = build.call("a", aten.mul.Tensor, build.inputs[0], 2, shape=(0,))
        place = {"view_of": new} if in_place else {}
        return build.program(build.call("b", target, new, 0, build.inputs[1], new, shape=(0,), **place))

    message = "it writes bytes that it reads through operand 'source', a"
    with pytest.raises(InplaceMismatch, match=message):
        verify_inplace(program(aten.index_add.default, False), program(aten.index_add_.default, True))


def test_bytes_that_are_shared_in_part() -> None:
    functional = """
a = aten.exp.default(x)
s = aten.slice.Tensor(a, 0, 0, 3)
t = aten.slice.Tensor(a, 0, 1, 4)
b = aten.add.Tensor(s, t)
c = aten.slice_scatter.default(a, b, 0, 0, 3)
return c"""
    build = Builder("x")
    exp = build.call("a", aten.exp.default, build.inputs[0])
    left = build.call("s", aten.slice.Tensor, exp, 0, 0, 3, view_of=exp, shape=(3,))
    right = build.call("t", aten.slice.Tensor, exp, 0, 1, 4, view_of=exp, shape=(3,), offset=1)
    build.call("b", aten.add_.Tensor, left, right, view_of=exp, shape=(3,))
    with pytest.raises(InplaceMismatch, match="it writes bytes that it reads through operand 'other', t"):
        verify_inplace(written(functional, {"x": torch.randn(4)}), build.program(exp))


def test_a_tensor_on_itself() -> None:
    functional = "v = aten.expand.default(x, [3, 4])\na = aten.exp.default(v)\nreturn a"
    build = Builder("x")
    wide = build.call(
        "v", aten.expand.default, build.inputs[0], [3, 4], view_of=build.inputs[0], shape=(3, 4), stride=(0, 1)
    )
    exp = build.call("a", aten.exp_.default, wide, view_of=wide, shape=(3, 4), stride=(0, 1))
    with pytest.raises(InplaceMismatch, match="it writes a tensor whose elements share bytes"):
        verify_inplace(written(functional, {"x": torch.randn(4)}), build.program(exp), donated=(0,))


def test_an_epilogue_that_writes_a_tensor_on_itself_stays() -> None:
    build = Builder("y")
    wide = build.value("x", shape=(3, 4), stride=(0, 1))
    build.inputs.append(wide)
    build.call("done", aten.copy_.default, wide, build.inputs[0], view_of=wide, shape=(3, 4), stride=(0, 1))
    program = build.program()
    verify_inplace(program, program)


def test_a_tensor_on_itself_receives_what_it_received() -> None:
    build = Builder()
    wide = build.value("x", shape=(3, 4), stride=(2, 1))
    build.inputs = [wide, build.value("z", shape=(3, 4)), build.value("w", shape=(3, 4))]
    build.call("done", aten.copy_.default, wide, build.inputs[1], view_of=wide, shape=(3, 4), stride=(2, 1))
    functional = build.program()
    verify_inplace(functional, functional)
    build.nodes[0] = replace(build.nodes[0], args=(wide, build.inputs[2]))
    with pytest.raises(InplaceMismatch, match="it writes a tensor whose elements share bytes"):
        verify_inplace(functional, build.program())


def test_a_primitive_keeps_the_strides_of_its_operand() -> None:
    functional = """
a = aten.clone.default(x, memory_format=torch.contiguous_format)
b = prims.view_scatter(aten.split.Tensor, 0)(a, y, 2, 1)
return b"""
    inputs = {"x": torch.randn(4, 1).expand(4, 4), "y": torch.randn(4, 2)}
    program = written(functional, inputs)
    first, second = program.nodes
    short = replace(second, args=(program.inputs[0], *second.args[1:]))
    message = "b: it is described with shape [4, 4], stride [4, 1], torch.float32 and has"
    with pytest.raises(InplaceMismatch, match=re.escape(message)):
        verify_inplace(program, replace(program, nodes=(short,)))
    verify_inplace(program, replace(program, nodes=(first, second)))


def test_two_written_tensors_on_each_other() -> None:
    functional = "a = aten.exp.default(x)\nb, c = aten._foreach_mul.Scalar([a, a], 2)\nreturn b"
    inplace = "a = aten.exp.default(x)\naten._foreach_mul_.Scalar([a, a], 2)\nreturn a"
    _refused("it writes two tensors that share bytes", functional, inplace)


@pytest.mark.parametrize("operator", ["mm.default(x, y)", "add.Tensor(x, y)", "bitwise_or.Tensor(x, y)"])
def test_a_result_that_is_laid_out_otherwise_may_round_otherwise(operator: str) -> None:
    inputs: dict[str, Any] = _matrices()
    if operator.startswith("bitwise"):
        inputs = {name: torch.randint(0, 9, (4, 4)) for name in inputs}
    functional = (
        f"t = aten.abs.default(x)\nv = aten.t.default(t)\na = aten.{operator}\nb = aten.clone.default(a)\nreturn b"
    )
    into = re.sub(r"\.\w+\((.*)\)", r".out(\1, out={})", operator)
    if operator.startswith("bitwise"):
        into = into.replace(".out", ".Tensor_out")
    inplace = functional.replace(operator, into)
    _verify(functional, inplace.format("t"), inputs)
    if operator.startswith("bitwise"):
        copied = "b = aten.copy_.default(c, a)"
        fresh = "c = aten.empty_like.default(x)\n"
        _verify(functional, fresh + inplace.format("v").replace("b = aten.clone.default(a)", copied), inputs)
    else:
        _refused("it may round differently, or draw in another order", functional, inplace.format("v"), inputs)


def test_an_out_argument_of_another_shape() -> None:
    functional = "o = aten.empty.memory_format([0])\na = aten.exp.default(x)\nreturn a"
    inplace = "o = aten.empty.memory_format([4])\na = aten.exp.out(x, out=o)\nreturn a"
    _verify(functional, inplace)
    build = Builder("x")
    small = build.call("o", aten.empty.memory_format, [3], shape=(3,))
    build.nodes.append(replace(build.nodes[0], target=aten.exp.out, args=(build.inputs[0],), kwargs=(("out", small),)))
    with pytest.raises(InplaceMismatch, match=r"it writes a result that was \(\(4,\), .* into \(\(3,\), "):
        verify_inplace(written(functional, {"x": torch.randn(4)}), build.program(small))


@pytest.mark.parametrize(
    ("functional", "dtype"),
    [("a = aten.mul.Tensor(x, y)\nreturn a", torch.complex64), ("a = aten.mul.Scalar(x, 3)\nreturn a", torch.bfloat16)],
)
def test_operators_that_round_otherwise_in_place(functional: str, dtype: torch.dtype) -> None:
    functional = "x = aten.clone.default(w)\n" + functional
    inputs = {"w": torch.randn(4, dtype=dtype), "y": torch.randn(4, dtype=dtype)}
    _refused("a = aten.mul_", functional, functional.replace("mul", "mul_"), inputs)
    own_form = functional.replace("a = aten.mul.", "(a,) = prims.functional_form(aten.mul_.").replace("(x", ", (0,))(x")
    _verify(own_form, functional.replace("mul", "mul_"), inputs)


def test_operators_that_change_what_a_tensor_is() -> None:
    inputs = _matrices()
    functional = "a = aten.exp.default(x)\nv = aten.t.default(a)\nreturn v"
    _refused("it changes its operand's shape", functional, functional.replace("aten.t.", "aten.t_."), inputs)


# --- draws and effects ------------------------------------------------------------------------------------------------

_DRAWS = """
a = aten.rand.default([4])
b = aten.randn.default([4])
checks.note.default(x)
checks.note.default(y)
return a, b""".strip()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("b = aten.randn.default([4])\n", "", "it has 1 draws, and had 2"),
        ("return", "c = aten.rand.default([4])\nreturn", "c = aten.rand.default is applied at this turn"),
        ("checks.note.default(y)\n", "", "it has 1 effects, and had 2"),
        ("checks.note.default(x)\n", "", "checks.note.default"),
        ("return", "checks.note.default(y)\nreturn", "checks.note.default"),
    ],
)
def test_draws_and_effects_that_come_or_go(old: str, new: str, message: str) -> None:
    text = _DRAWS.replace(old, new)
    if "b =" not in text:
        text = text.replace("return a, b", "return a, a")
    with pytest.raises(InplaceMismatch, match=re.escape(message.replace("checks.", "dovetail_checks."))):
        _verify(_DRAWS, text)


def test_draws_and_effects_in_another_order() -> None:
    lines = _DRAWS.splitlines()
    _refused("b = aten.randn.default is applied at this turn", _DRAWS, "\n".join([lines[1], lines[0], *lines[2:]]))
    swapped = "\n".join([*lines[:2], lines[3], lines[2], lines[4]])
    _refused("dovetail_checks.note.default does not read what it read before", _DRAWS, swapped)


def test_the_state_of_the_generator_is_read_at_its_turn() -> None:
    functional = "s = prims.GET_RNG_STATE()\na = aten.rand.default([4])\nreturn s, a"
    _refused("get_rng_state", functional, "a = aten.rand.default([4])\ns = prims.GET_RNG_STATE()\nreturn s, a")


def test_what_nobody_wrote_differs_from_call_to_call() -> None:
    functional = (
        "a = aten.empty.memory_format([4])\nb = aten.empty.memory_format([4])\nc = aten.exp.default(a)\nreturn c"
    )
    _verify(functional, functional.replace("exp", "exp_"))
    _refused("operand 'self' (b)", functional, functional.replace("exp.default(a)", "exp.default(b)"))


def test_a_draw_into_another_layout_draws_other_numbers() -> None:
    functional = "a = aten.exp.default(x)\n(b,) = prims.functional_form(aten.normal_.default, (0,))(a)\nreturn b"
    inplace = "a = aten.exp.default(x)\nv = aten.t.default(a)\nb = aten.normal_.default(v)\nreturn b"
    _verify(functional, "a = aten.exp.default(x)\nb = aten.normal_.default(a)\nreturn b", _matrices())
    _refused("b = aten.normal_.default does not read what it read before", functional, inplace, _matrices())


# --- what is left -----------------------------------------------------------------------------------------------------

_RETURNS = "a = aten.exp.default(x)\nv = aten.view.default(a, [2, 2])\nb = aten.sin.default(a)\nreturn {}"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("a", "b", "output 0 (b) does not hold what it held before"),
        ("v", "a", "output 0 (a) has layout ((4,), (1,), torch.float32), and had ((2, 2), (2, 1), torch.float32)"),
        ("a, b", "a", "it has 1 outputs, and had 2"),
        ("a, None", "a, 2", "output 1 is 2, and was None"),
        ("a, None", "a, b", "output 1 is b, and was None"),
        ("x", "y", "output 0 (y) does not hold"),
    ],
)
def test_outputs(before: str, after: str, message: str) -> None:
    _refused(message, _RETURNS.format(before), _RETURNS.format(after))


def test_outputs_that_share_memory() -> None:
    apart = "a = aten.exp.default(x)\nb = aten.clone.default(a)\nv = aten.view.default(a, [2, 2])\nreturn {}"
    _refused("output 1 and output 0 share bytes", apart.format("a, b"), apart.format("a, a"))
    _refused("output 1 and output 0 do not share bytes", apart.format("a, v"), apart.format("b, v"))
    _refused("output 0 and input 0 share bytes", "a = aten.clone.default(x)\nreturn a", "return x")
    _refused("output 0 and input 0 do not share bytes", "return x", "a = aten.clone.default(x)\nreturn a")
    _verify("a = aten.clone.default(x)\nreturn a", "return x", donated=(0,))
    parts = "a = aten.exp.default(x)\ns = aten.slice.Tensor(a, 0, 0, 2)\nt = aten.slice.Tensor(a, 0, 2, 4)\nreturn s, t"
    copies = parts.replace("return s, t", "b = aten.clone.default(s)\nreturn b, t")
    _verify(copies, parts)


def test_inputs_are_left_as_they_were() -> None:
    functional = "a = aten.exp.default(x)\nreturn a"
    inplace = "a = aten.exp_.default(x)\nb = aten.clone.default(a)\nreturn b"
    message = "input 0 is left with other contents.\n  because   its memory was last written by a = aten.exp_.default"
    _refused(message, functional, inplace)
    _verify(functional, inplace, donated=(0,))


def test_memory_that_is_donated_in_part() -> None:
    base = torch.randn(8)
    inputs = {"x": base[:4], "y": base[4:]}
    functional = "a = aten.exp.default(x)\nreturn a"
    _verify(functional, functional.replace("exp", "exp_"), inputs, donated=(0,))
    both = "a = aten.exp.default(x)\nb = aten.sin.default(y)\nreturn a, b"
    _refused("input 1 is left", both, both.replace("sin", "sin_"), inputs, donated=(0,))


def test_what_lies_between_the_elements_of_an_input_is_left_as_it_was() -> None:
    inputs = {"x": torch.randn(8)[::2]}
    build = Builder()
    build.inputs = [build.value("x", shape=(4,), stride=(2,))]
    build.call("b", aten.as_strided.default, build.inputs[0], [8], [1], view_of=build.inputs[0], shape=(8,))
    build.call("c", aten.zero_.default, build.nodes[0].outputs[0], view_of=build.inputs[0], shape=(8,))
    functional = """
b = aten.as_strided.default(x, [8], [1])
c = aten.zero.default(b)
d = aten.slice.Tensor(c, 0, 0, 8, 2)
aten.copy_.default(x, d)
return None"""
    with pytest.raises(InplaceMismatch, match="input 0 is left with other contents"):
        verify_inplace(written(functional, inputs), build.program(None))


# --- a single point of commitment -------------------------------------------------------------------------------------


def test_nothing_fails_after_the_first_write_to_an_input() -> None:
    functional = """
a = aten.exp.default(x)
m = aten.sum.default(a)
aten._assert_async.msg(m, "positive")
aten.copy_.default(x, a)
return m"""
    early = """
m0 = aten.exp.default(x)
m = aten.sum.default(m0)
aten.copy_.default(x, m0)
aten._assert_async.msg(m, "positive")
return m"""
    inputs = {"x": torch.rand(4)}
    _verify(functional, early, inputs)
    _verify(functional, functional, inputs, commit=True)
    message = "aten._assert_async.msg can fail after an input was written"
    _refused(message, functional, early, inputs, commit=True)
    _refused(message, functional, early, inputs, commit=True, donated=(0,))


def test_an_expectation_can_fail() -> None:
    build, other = Builder("x"), Builder("x")
    fact = (SizeExpr("eq", (symbol("n"), 4)), "n == 4")
    for builder, order in ((build, "expect first"), (other, "write first")):
        exp = builder.call("a", aten.exp.default, builder.inputs[0])
        expect = replace(builder.nodes[0], target=prims.EXPECT, args=fact, outputs=())
        write = replace(builder.nodes[0], target=aten.copy_.default, args=(builder.inputs[0], exp), outputs=())
        builder.nodes += [expect, write] if order == "expect first" else [write, expect]
    verify_inplace(build.program(), other.program())
    with pytest.raises(InplaceMismatch, match="expect can fail after an input was written"):
        verify_inplace(build.program(), other.program(), commit=True)


# --- descriptions -----------------------------------------------------------------------------------------------------


def _with_description(program: Program, name: str, **changes: Any) -> Program:
    """The program with another description of one value."""
    (old,) = [value for node in program.nodes for value in node.results() if value.name == name]
    new = Value(name, replace(old.tensor, **changes))

    def swap(value: Value) -> Value:
        return new if value is old else value

    nodes = tuple(
        replace(node.with_operands(swap), outputs=tuple(v and swap(v) for v in node.outputs)) for node in program.nodes
    )
    return replace(program, nodes=nodes, outputs=tuple(swap(o) if isinstance(o, Value) else o for o in program.outputs))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("v", {"shape": (3,)}, r"v: it is described with shape \[3\], stride \[1\], .* and has shape \[2\]"),
        ("v", {"stride": (2,)}, r"v: it is described with shape \[2\], stride \[2\]"),
        ("v", {"offset": 0}, "v: it is described at offset 0, and lies at offset 1 of its storage"),
        ("v", {"storage": 9}, r"v: it is described on storage 9, and lies on the memory of storage \d"),
        ("b", {"storage": 0}, "b: it is described on storage 0, and lies on other memory"),
        ("b", {"shape": (5,)}, r"b is described as \(\(5,\), .*, and was \(\(2,\), "),
        ("c", {"stride": (2,)}, "c is described as .*, and is "),
        ("b", {"dtype": torch.int32}, "b is described as "),
    ],
)
def test_descriptions_are_true(name: str, changes: dict[str, Any], message: str) -> None:
    text = "v = aten.slice.Tensor(x, 0, 1, 3)\nb = aten.exp.default(v)\nc = aten.clone.default(v)\nreturn b, c"
    program = written(text, {"x": torch.randn(4)})
    with pytest.raises(InplaceMismatch, match=message):
        verify_inplace(program, _with_description(program, name, **changes))


def test_a_description_that_was_wrong_before_is_no_news() -> None:
    text = "v = aten.slice.Tensor(x, 0, 1, 3)\nb = aten.exp.default(v)\nreturn b"
    program = _with_description(written(text, {"x": torch.randn(4)}), "v", offset=0)
    verify_inplace(program, program)


def test_both_programs_take_the_same_inputs() -> None:
    base = torch.randn(8)
    text = "a = aten.exp.default(x)\nreturn a"
    with pytest.raises(InplaceMismatch, match="it has 1 inputs, and had 2"):
        verify_inplace(written(text, _vectors()), written(text, {"x": torch.randn(4)}))
    with pytest.raises(InplaceMismatch, match=r"input 0 is f32\[5\], and was f32\[4\]"):
        verify_inplace(written(text, {"x": torch.randn(4)}), written(text, {"x": torch.randn(5)}))
    shared, apart = {"x": base[:4], "y": base[4:]}, {"x": base[:4], "y": torch.randn(8)[4:]}
    with pytest.raises(InplaceMismatch, match="its inputs share memory differently than before"):
        verify_inplace(written(text, shared), written(text, apart))


def test_a_view_that_torch_refuses() -> None:
    text = "a = aten.exp.default(x)\nv = aten.view.default(a, [2, 2])\nreturn v"
    program = written(text, {"x": torch.randn(4)})
    last = program.nodes[-1]
    broken_view = program.replace_nodes((*program.nodes[:-1], replace(last, args=(last.args[0], [3, 2]))))
    with pytest.raises(InplaceMismatch, match=r"v = aten\.view\.default cannot be followed"):
        verify_inplace(program, broken_view)


# --- sizes and numbers that are symbols -------------------------------------------------------------------------------


def _flattened(last: Any, in_place: bool, size: Callable[[Any], Any] = lambda n: SizeExpr("mul", (n, 3))) -> Program:
    n = symbol("n")
    build = Builder()
    build.inputs = [build.value("x", shape=(n, 3), stride=(3, 1))]
    exp = build.call("exp", aten.exp.default, build.inputs[0], shape=(n, 3), stride=(3, 1))
    flat = build.call("flat", aten.view.default, exp, [size(n)], view_of=exp, shape=(SizeExpr("mul", (n, 3)),))
    place = {"view_of": exp} if in_place else {}
    return build.program(build.call("sin", last, flat, shape=flat.tensor.shape, **place))


def test_symbolic_sizes() -> None:
    functional, inplace = _flattened(aten.sin.default, False), _flattened(aten.sin_.default, True)
    verify_inplace(functional, inplace)
    verify_inplace(functional, inplace, hints={"n": 6})
    wrong = _flattened(aten.sin_.default, True, lambda n: SizeExpr("add", (n, 6)))
    verify_inplace(functional, wrong, hints={"n": 3})
    with pytest.raises(InplaceMismatch, match=r"flat = aten\.view\.default cannot be followed"):
        verify_inplace(functional, wrong, hints={"n": 5})


def test_sizes_may_be_asked_for() -> None:
    n = symbol("n")

    def program(*asked: int) -> Program:
        build = Builder()
        build.inputs = [build.value("x", shape=(n, 3), stride=(3, 1))]
        for dim in asked:
            number = Value(f"size_{dim}", ScalarMeta(build.inputs[0].tensor.shape[dim]))
            build.nodes.append(Node(aten.sym_size.int, (build.inputs[0], dim), outputs=(number,)))
        return build.program(build.call("exp", aten.exp.default, build.inputs[0], shape=(n, 3), stride=(3, 1)))

    verify_inplace(program(), program(0, 1), hints={"n": 5})
    verify_inplace(program(1), program(0), hints={"n": 5})


def test_numbers_read_from_tensors() -> None:
    functional = (
        "a = aten.exp.default(x)\nn = aten._local_scalar_dense.default(a)\nb = aten.add.Tensor(y, n)\nreturn b, n"
    )
    inputs = {"x": torch.randn(1), "y": torch.randn(4)}
    _verify(functional, functional, inputs)
    late = functional.replace("\nn =", "\nc = aten.sin_.default(a)\nn =")
    _refused("c = aten.sin_.default is applied", functional, late, inputs)
    twice = "n = aten._local_scalar_dense.default(x)\nm = aten._local_scalar_dense.default(y)\nreturn n"
    _refused(
        "output 0 is m, and was n",
        twice,
        twice.replace("return n", "return m"),
        {"x": torch.randn(1), "y": torch.randn(1)},
    )


# --- other things that hold tensors -----------------------------------------------------------------------------------


def test_conjugate_views_hold_other_numbers() -> None:
    inputs = {"x": torch.randn(4, dtype=torch.complex64)}
    functional = "a = aten.clone.default(x)\nc = aten._conj.default(a)\nd = aten.clone.default(c)\nreturn d"
    _verify(
        functional,
        "d = aten.empty_like.default(x)\nc = aten._conj.default(d)\ne = aten.copy_.default(c, x)\nreturn d",
        inputs,
    )
    _refused(
        "output 0 (d) does not hold", functional, functional.replace("clone.default(c)", "clone.default(a)"), inputs
    )
    _verify(
        functional.replace("clone.default(c)", "clone.default(a)"),
        functional.replace("_conj.default(a)\n", "_conj.default(a)\ne = aten._conj.default(c)\n").replace(
            "clone.default(c)", "clone.default(e)"
        ),
        inputs,
    )


def test_a_copy_of_the_wrong_part() -> None:
    functional = "a = aten.exp.default(x)\nb = aten.slice_scatter.default(a, y, 0, 1, 3)\nreturn b"
    inplace = "a = aten.exp.default(x)\nv = aten.slice.Tensor(a, 0, 1, 3)\nc = aten.copy_.default(v, y)\nreturn a"
    inputs = {"x": torch.randn(4), "y": torch.randn(2)}
    _verify(functional, inplace, inputs)
    _refused("output 0 (a) does not hold", functional, inplace.replace("1, 3", "2, 4"), inputs)


def _looping(body: torch.fx.GraphModule) -> Program:
    run = WithSubPrograms(torch.ops.higher_order.map_impl, (body, None), (1,), None)  # type: ignore[arg-type]
    build = Builder("x")
    loop = Prim("map_impl", run, "torch.ops.higher_order.map_impl")
    return build.program(build.call("a", loop, build.inputs[0]))


def test_sub_programs_are_what_they_consist_of() -> None:
    sin, cos = torch.fx.symbolic_trace(lambda x: torch.sin(x) + 1), torch.fx.symbolic_trace(lambda x: torch.cos(x) + 1)
    verify_inplace(_looping(sin), _looping(sin))
    verify_inplace(_looping(sin), _looping(copy.deepcopy(sin)))
    with pytest.raises(InplaceMismatch, match="a = map_impl is applied, which it never was"):
        verify_inplace(_looping(sin), _looping(cos))


def test_reused_buffers() -> None:
    inputs = {"x": torch.randn(64, 64), "y": torch.randn(64, 64)}
    text = "a = aten.mul.Tensor(x, 2)\nb = aten.add.Tensor(a, y)\nc = aten.relu.default(b)\nreturn c"
    functional = written(text, inputs, Stage.FUNCTIONAL)
    reused, report = work_in_place(functional)
    assert report.in_place == 2
    verify_inplace(functional, reused)
    last = reused.nodes[-1]
    early = reused.replace_nodes((*reused.nodes[:1], replace(last, args=reused.nodes[0].outputs), reused.nodes[1]))
    with pytest.raises(InplaceMismatch, match="does not read what it read before"):
        verify_inplace(functional, early)


# --- order ------------------------------------------------------------------------------------------------------------


def test_values_are_made_before_they_are_read() -> None:
    program = written(_BOTH, _vectors())
    first, second, third = program.nodes
    with pytest.raises(InplaceMismatch, match="it reads a, which is not there"):
        verify_inplace(program, program.replace_nodes((second, first, third)))
    with pytest.raises(InplaceMismatch, match="c is not there"):
        verify_inplace(program, program.replace_nodes((first, second)))


def test_sizes_are_found_out_before_they_are_read() -> None:
    build = Builder("x")
    found = build.call("i", aten.nonzero.default, build.inputs[0], shape=(symbol("u"), 1), dtype=torch.int64)
    build.call("z", aten.full.default, [symbol("u")], 1, shape=(symbol("u"),))
    program = build.program(found)
    verify_inplace(program, program)
    with pytest.raises(InplaceMismatch, match="it reads the size u before the node that computes it"):
        verify_inplace(program, program.replace_nodes(program.nodes[::-1]))


def test_sizes_that_are_made_sure_to_be_equal() -> None:
    u, v = symbol("u"), symbol("v")
    build = Builder("x", "y")
    rows = [
        build.call(name, aten.masked_select.default, x, x, shape=(size,))
        for name, x, size in zip("ab", build.inputs, (u, v), strict=True)
    ]
    stacked = build.call("s", aten.stack.default, rows, shape=(2, u))
    flat = build.call(
        "f", aten.view.default, stacked, [SizeExpr("add", (u, v))], shape=(SizeExpr("add", (u, v)),), view_of=stacked
    )
    fact = (SizeExpr("eq", (u, v)), "u == v")
    build.nodes.append(replace(build.nodes[0], target=prims.EXPECT, args=fact, outputs=()))
    program = build.program(flat)
    verify_inplace(program, program)


# --- independence -----------------------------------------------------------------------------------------------------


def _imported(module: str, found: set[str]) -> set[str]:
    """A module and what it imports of the layers that decide and check, directly or through others."""
    if module not in found:
        found.add(module)
        tree = ast.parse(Path(importlib.import_module(module).__file__ or "").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and re.match(r"dovetail\.(analysis|passes)\.", node.module or ""):
                _imported(node.module or "", found)
    return found


def test_the_checker_imports_no_analysis_of_the_pass() -> None:
    checker = _imported("dovetail.analysis.verify_inplace", set())
    assert len(checker) > 5
    assert checker.isdisjoint(_imported("dovetail.passes.inplace", set()))


def test_checker_and_pass_agree_on_where_bits_depend_on_the_place_of_the_result() -> None:
    """Two derivations of one fact, over every overload of torch's own."""
    for op in aten_overloads():
        schema = schema_of(op)
        call = call_of(Node(op, tuple(a.default for a in schema.arguments)))
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.int16):
            assert call.rounds_by_place(dtype) == rounds_otherwise_in_place(op, dtype), (op, dtype)
        if call.draws and not call.outs:
            reads_more = any("Tensor" in a.type for a in schema.arguments[1:])
            assert reads_more or call.is_fill != draws_otherwise_in_place(op), op
