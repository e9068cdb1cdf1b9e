"""Attention and its masks, function transforms, and Fourier transforms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.doors import Door
from tests.semantics.check import Case, Make, assert_like_eager, cases_of, leaf

pytestmark = pytest.mark.usefixtures("alone")


# --- attention ----------------------------------------------------------------------------------------------------


def _attention(length: int = 5, groups: int = 1, dtype: torch.dtype = torch.float32, **options: Any) -> Case:
    def f(q: Tensor, k: Tensor, v: Tensor, **masks: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, **masks, **options)

    keys = [leaf(2, 2, 6, 4, dtype=dtype) for _ in range(2)]
    return Case(f, (leaf(2, 2 * groups, length, 4, dtype=dtype), *keys))


def _masked(mask: Tensor) -> Case:
    case = _attention()
    return Case(case.function, case.args, {"attn_mask": mask})


def case_attention() -> Case:
    return _attention(scale=0.3)


def case_causal_attention() -> Case:
    return _attention(length=6, is_causal=True)


def case_causal_attention_of_fewer_queries() -> Case:
    return _attention(is_causal=True)


def case_attention_with_a_boolean_mask() -> Case:
    return _masked(torch.rand(5, 6) > 0.4)


def case_attention_with_a_mask_of_numbers() -> Case:
    return _masked(torch.randn(5, 6))


def case_attention_with_a_learned_mask() -> Case:
    return _masked(leaf(2, 2, 5, 6))


def case_attention_with_dropout() -> Case:
    return _attention(dropout_p=0.3)


def case_grouped_queries() -> Case:
    return _attention(groups=2, enable_gqa=True)


def case_attention_in_bfloat16() -> Case:
    return _attention(dtype=torch.bfloat16)


def case_attention_written_out() -> Case:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))

    return Case(f, (leaf(2, 5, 2, 4), leaf(2, 5, 2, 4), leaf(2, 5, 2, 4)))


def case_multi_head_attention() -> Case:
    layer = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
    return Case(lambda x: layer(x, x, x), (leaf(2, 5, 8),), module=layer)


def case_the_fast_path_of_inference() -> Case:
    return Case(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (torch.randn(2, 5, 8),))


# --- transforms of functions --------------------------------------------------------------------------------------


def case_vmap() -> Case:
    def one(row: Tensor) -> Tensor:
        made = row.clone()
        made.mul_(2)
        made[0] = 1
        return made * torch.rand(3)

    return Case(lambda x, w: vmap(one, randomness="different")(x) @ w.sin(), (leaf(5, 3), leaf(3, 2)))


def case_grad() -> Case:
    return Case(lambda x: grad(lambda a: (a * torch.rand(3)).sin().sum())(x) * x, (leaf(3),))


def case_gradients_per_sample() -> Case:
    def loss(w: Tensor, row: Tensor) -> Tensor:
        return (row @ w).sin().sum()

    return Case(lambda x, w: vmap(grad(loss), (None, 0))(w, x), (leaf(5, 3), leaf(3, 2)))


def case_products_with_jacobians() -> Case:
    def f(x: Tensor, t: Tensor) -> Any:
        value, pull = vjp(lambda a: a.sin() * 2, x)
        return jvp(lambda a: a.sin() * 2, (x,), (t,)), value, pull(t)[0]

    return Case(f, (leaf(3), leaf(3)))


def case_jacobians() -> Case:
    def cubes(x: Tensor) -> Tensor:
        return (x**3).cumsum(0)

    return Case(lambda x: (jacrev(cubes)(x), jacfwd(cubes)(x), hessian(lambda a: cubes(a).sum())(x)), (leaf(3),))


# --- Fourier ------------------------------------------------------------------------------------------------------


def case_fourier() -> Case:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        spectrum = torch.fft.rfft(x)
        plane = torch.fft.ifftn(torch.fft.fft2(x)).real * 2
        return torch.fft.fft(x).abs(), torch.fft.irfft(spectrum * 2, n=8), plane, torch.fft.fftshift(x.sin())

    return Case(f, (leaf(4, 8),))


def case_short_time_fourier() -> Case:
    return Case(lambda x: torch.stft(x, 16, window=torch.hann_window(16), return_complex=True).abs(), (leaf(2, 64),))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch.func does, by itself
@cases_of(globals(), of=3)
def test_like_eager(make: Make, door: Door) -> None:
    assert_like_eager(make, door)
