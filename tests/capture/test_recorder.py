"""What the recorder notes: the operators that eager runs, views, writes and backward included, in eager's order."""

from __future__ import annotations

import pytest

import dovetail
from tests.capture.programs import FUNCTIONS, lines_of, programs_of

TEXTS = {
    "view written": """
mul_1 = mul.Tensor(arg_0, 2)
select_2 = select.int(mul_1, 0, 0)
add_.Tensor(select_2, 1)
return (mul_1,)
""",
    "view of view written": """
mul_1 = mul.Tensor(arg_0, 2)
select_2 = select.int(mul_1, 0, 0)
slice_3 = slice.Tensor(select_2, 0, 1, 9223372036854775807)
mul_.Tensor(slice_3, 3)
return (mul_1,)
""",
    "base of view written": """
clone_1 = clone.default(arg_0)
t_2 = t.default(clone_1)
add_.Tensor(clone_1, 1)
mul_3 = mul.Tensor(t_2, 2)
return (mul_3,)
""",
    "transposed in place": """
mul_1 = mul.Tensor(arg_0, 2)
t_2 = t.default(mul_1)
add_3 = add.Tensor(t_2, 1)
return (add_3,)
""",
    "out": """
empty_1 = empty.memory_format([2, 3], device=_cpu, pin_memory=False)
add.out(arg_0, 1, out=empty_1)
return (empty_1,)
""",
    "lists": """
_foreach_add_.Scalar([arg_0, arg_1], 1.0)
mul_1 = mul.Tensor(arg_0, arg_1)
return (mul_1, arg_0, arg_1)
""",
    "draws": """
rand_like_1 = rand_like.default(arg_0, pin_memory=False)
clone_2 = clone.default(arg_0)
normal_.default(clone_2)
add_3 = add.Tensor(rand_like_1, clone_2)
return (add_3,)
""",
    "closed over": """
add_1 = add.Tensor(arg_0, constant_0)
return (add_1,)
""",
    "made in each call": """
lift_fresh_copy_1 = lift_fresh_copy.default(constant_0)
mul_2 = mul.Tensor(arg_0, lift_fresh_copy_1)
return (mul_2,)
""",
    "mask": """
clone_1 = clone.default(arg_0)
gt_2 = gt.Scalar(clone_1, 0)
lift_fresh_copy_3 = lift_fresh_copy.default(constant_0)
index_put_.default(clone_1, [gt_2], lift_fresh_copy_3)
return (clone_1,)
""",
    "argument written": """
add_.Tensor(arg_0, 1)
mul_1 = mul.Tensor(arg_0, arg_0)
return (mul_1, arg_0)
""",
    "by addresses": """
clone_1 = clone.default(arg_0)
as_strided_2 = as_strided.default(clone_1, [2], [2], 1)
zero_.default(as_strided_2)
return (clone_1,)
""",
    "part of an argument": """
select_1 = select.int(arg_0, 0, 1)
copy_.default(select_1, arg_1)
sum_2 = sum.default(arg_0)
return (sum_2, arg_0)
""",
    "parameter updated": """
mul_.Tensor(arg_0, 0.5)
mul_1 = mul.Tensor(arg_0, 2)
mul_2 = mul.Tensor(tangent_0, 2)
return (mul_1, arg_0, mul_2)
""",
    "backward": """
mul_.Tensor(arg_0, 2)
mm_1 = mm.default(arg_0, arg_1)
relu_.default(mm_1)
sum_2 = sum.default(mm_1)
expand_3 = expand.default(tangent_0, [2, 3])
threshold_backward_4 = threshold_backward.default(expand_3, mm_1, 0)
t_5 = t.default(arg_0)
mm_6 = mm.default(t_5, threshold_backward_4)
return (sum_2, arg_0, mm_6)
""",
    "saved twice": """
exp_1 = exp.default(arg_0)
mul_2 = mul.Tensor(exp_1, exp_1)
mul_3 = mul.Tensor(tangent_0, exp_1)
mul_4 = mul.Tensor(tangent_0, exp_1)
add_5 = add.Tensor(mul_4, mul_3)
mul_6 = mul.Tensor(add_5, exp_1)
return (mul_2, mul_6)
""",
    "hidden write": """
mul_.Tensor(arg_0, 2)
add_1 = add.Tensor(arg_0, 1)
return (add_1, arg_0)
""",
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_program(name: str) -> None:
    assert lines_of(programs_of(name).recorded) == TEXTS[name].strip()


def test_programs_of_a_recording_do_not_disturb_each_other() -> None:
    function, inputs = FUNCTIONS["backward"]
    recording, _ = dovetail.compile(function).record(*inputs())
    nodes = list(recording.recorder.nodes)
    full = recording.full_pattern()
    first, nothing, second = (recording.programs("f", p) for p in (full, tuple(None for _ in full), full))
    assert recording.recorder.nodes == nodes
    assert len(nothing.recorded.nodes) == len(nodes) < len(first.recorded.nodes)
    assert [node.target for node in first.recorded.nodes] == [node.target for node in second.recorded.nodes]
    assert lines_of(first.functional) == lines_of(second.functional)
