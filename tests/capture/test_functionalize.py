"""What functionalizing makes of recorded programs: every write is a new value, and views of it are made anew."""

from __future__ import annotations

import pytest

from tests.capture.programs import FUNCTIONS, lines_of, programs_of

TEXTS = {
    "view written": """
mul = mul.Tensor(arg_0, 2)
select = select.int(mul, 0, 0)
add = add.Tensor(select, 1)
select_scatter = select_scatter.default(mul, add, 0, 0)
return (select_scatter,)
""",
    "view of view written": """
mul = mul.Tensor(arg_0, 2)
select = select.int(mul, 0, 0)
slice_ = slice.Tensor(select, 0, 1, 9223372036854775807)
mul_1 = mul.Tensor(slice_, 3)
slice_scatter = slice_scatter.default(select, mul_1, 0, 1, 9223372036854775807)
select_scatter = select_scatter.default(mul, slice_scatter, 0, 0)
return (select_scatter,)
""",
    "base of view written": """
clone = clone.default(arg_0)
t = t.default(clone)
add = add.Tensor(clone, 1)
t_1 = t.default(add)
mul = mul.Tensor(t_1, 2)
return (mul,)
""",
    "transposed in place": """
mul = mul.Tensor(arg_0, 2)
t = t.default(mul)
add = add.Tensor(t, 1)
return (add,)
""",
    "out": """
empty = empty.memory_format([2, 3], device=_cpu, pin_memory=False)
add = add.Tensor(arg_0, 1)
return (add,)
""",
    "lists": """
foreach_add, foreach_add_1 = _foreach_add.Scalar([arg_0, arg_1], 1.0)
mul = mul.Tensor(foreach_add, foreach_add_1)
return (mul, foreach_add, foreach_add_1)
""",
    "draws": """
rand_like = rand_like.default(arg_0, pin_memory=False)
clone = clone.default(arg_0)
functional_aten_normal, = prims.functional_form(normal_.default, (0,))(clone)
add = add.Tensor(rand_like, functional_aten_normal)
return (add,)
""",
    "closed over": """
add = add.Tensor(arg_0, constant_0)
return (add,)
""",
    "made in each call": """
lift_fresh_copy = lift_fresh_copy.default(constant_0)
mul = mul.Tensor(arg_0, lift_fresh_copy)
return (mul,)
""",
    "mask": """
clone = clone.default(arg_0)
gt = gt.Scalar(clone, 0)
lift_fresh_copy = lift_fresh_copy.default(constant_0)
index_put = index_put.default(clone, [gt], lift_fresh_copy)
return (index_put,)
""",
    "argument written": """
add = add.Tensor(arg_0, 1)
mul = mul.Tensor(add, add)
return (mul, add)
""",
    "by addresses": """
clone = clone.default(arg_0)
as_strided = as_strided.default(clone, [2], [2], 1)
functional_aten_zero, = prims.functional_form(zero_.default, (0,))(as_strided)
as_strided_scatter = as_strided_scatter.default(clone, functional_aten_zero, [2], [2], 1)
return (as_strided_scatter,)
""",
    "part of an argument": """
select = select.int(arg_0, 0, 1)
copy_to_layout = prims.COPY_TO_LAYOUT(arg_1, [3], [1], torch.float32, _cpu)
scatter_select_int = prims.view_scatter(select.int, None)(arg_0, copy_to_layout, 0, 1)
sum_ = sum.default(scatter_select_int)
return (sum_, scatter_select_int)
""",
    "parameter updated": """
mul = mul.Tensor(arg_0, 0.5)
mul_1 = mul.Tensor(mul, 2)
mul_2 = mul.Tensor(tangent_0, 2)
return (mul_1, mul, mul_2)
""",
    "backward": """
mul = mul.Tensor(arg_0, 2)
mm = mm.default(mul, arg_1)
relu = relu.default(mm)
sum_ = sum.default(relu)
expand = expand.default(tangent_0, [2, 3])
threshold_backward = threshold_backward.default(expand, relu, 0)
t = t.default(mul)
mm_1 = mm.default(t, threshold_backward)
return (sum_, mul, mm_1)
""",
    "saved twice": """
exp = exp.default(arg_0)
mul = mul.Tensor(exp, exp)
mul_1 = mul.Tensor(tangent_0, exp)
mul_2 = mul.Tensor(tangent_0, exp)
add = add.Tensor(mul_2, mul_1)
mul_3 = mul.Tensor(add, exp)
return (mul, mul_3)
""",
    "hidden write": """
mul = mul.Tensor(arg_0, 2)
add = add.Tensor(mul, 1)
return (add, mul)
""",
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_program(name: str) -> None:
    assert lines_of(programs_of(name).functional) == TEXTS[name].strip()
