"""Attention over few keys, or of few queries, as rows: its error is like that of torch's kernel, for vectors of both
sizes and two threads; and which programs run it.
"""

from __future__ import annotations

import math
import struct
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from dovetail.execute.native.attention_text import attention_function
from dovetail.execute.native.clusters import clusters_of
from dovetail.execute.native.few_queries_text import few_queries_function
from dovetail.execute.native.machine import driver, has_vectors
from dovetail.execute.native.panels import multiplies_panels
from dovetail.execute.native.rows import table_row
from dovetail.execute.native.tile_text import NARROW, WIDE, Tile
from dovetail.ops.attention import ATTENTION
from tests.rotation import rotated

pytestmark = pytest.mark.skipif(not multiplies_panels(), reason="no machine code can be made here")

_INF = math.inf
_MOST_WORSE = 4.0  # than the error of torch's kernel
_WIDTH = 384  # of layers that read panels
_SIZES = [
    *(
        (1, 1, 1, 1, 1),
        (2, 3, 16, 16, 32),
        (1, 2, 5, 7, 3),
        (1, 1, 70, 70, 40),
        (1, 3, 33, 256, 64),
        (2, 1, 3, 130, 125),
    ),
    *((1, 2, 197, 197, 16), (3, 2, 1, 40, 64), (1, 1, 25, 31, 128), (2, 2, 12, 17, 8), (1, 1, 48, 33, 1)),
]


_FEW = [
    *((1, 1, 1, 1, 1), (2, 3, 1, 512, 32), (1, 2, 2, 130, 125), (1, 8, 1, 63, 3), (3, 2, 1, 700, 64)),
    *((1, 1, 2, 257, 128), (1, 1, 1, 5, 200), (2, 1, 2, 3, 17), (1, 2, 1, 66, 256), (1, 2, 7, 150, 40)),
]


def _heads(*sizes: int) -> Tensor:
    """f32[batch, heads, rows, size], as a projection gives it."""
    batch, heads, rows, size = sizes
    return torch.randn(batch, rows, 3, heads, size)[:, :, 1].transpose(1, 2)


def _mask(kind: str, batch: int, heads: int, queries: int, keys: int) -> Tensor | None:
    shapes = {"all": (batch, heads, queries, keys), "keys": (batch, 1, 1, keys), "two": (queries, keys)}
    if kind not in shapes:
        return None
    mask = torch.where(torch.rand(shapes[kind]) < 0.3, -_INF, torch.randn(shapes[kind]))
    mask.view(-1, keys)[0] = -_INF  # sees no key
    return mask


def _found(
    tile: Tile,
    given: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    numbers: tuple[bool, float],
    *,
    is_few: bool = False,
) -> Tensor:
    """What a row gives, with one thread and with two. is_few: of the function for few queries."""
    (batch, heads, queries, size), keys = given[0].shape, given[1].shape[2]
    made = [torch.full((batch, queries, heads, size), 7.0).transpose(1, 2) for _ in range(2)]
    seen = made[0] if mask is None else mask.expand(batch, heads, queries, keys)
    function = few_queries_function(tile, size) if is_few else attention_function(tile)
    for threads, result in enumerate(made, 1):
        steps = [step for each in (result, *given, seen) for step in each.stride()[:3]]
        more = struct.pack("22qf4x", batch, heads, queries, keys, size, *steps, mask is not None, *numbers)
        pointers = [each.data_ptr() for each in (result, *given, seen)]
        assert not driver()(table_row(function, 1 << 16, pointers, (), more), 1, threads, 0)
    assert torch.equal(made[0].nan_to_num(3.0), made[1].nan_to_num(3.0))
    return made[0]


def _exact(given: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    query, key, value = (each.double() for each in given)
    scores = query @ key.transpose(-1, -2) * scale
    if mask is not None:
        scores = scores + mask
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -_INF)
    return scores.softmax(-1).nan_to_num(0.0) @ value


def _eagers(given: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    made: Tensor = ATTENTION(*given, mask, is_causal, scale)  # type: ignore[assignment]
    return made


@pytest.mark.parametrize("tile", [WIDE, NARROW])
@pytest.mark.parametrize(
    ("sizes", "kind", "scale"),
    rotated([*product(_SIZES + _FEW, ["none", "all", "keys", "two", "causal"], [None, 0.7, -0.3, 0.0])], 36),
)
def test_error_is_like_torchs(
    tile: Tile, sizes: tuple[int, int, int, int, int], kind: str, scale: float | None
) -> None:
    if not has_vectors(tile.lanes):
        pytest.skip("the processor has no such vectors")
    batch, heads, queries, keys, size = sizes
    given = _heads(batch, heads, queries, size), _heads(batch, heads, keys, size), _heads(batch, heads, keys, size)
    factor = 1 / math.sqrt(size) if scale is None else scale
    mask, is_causal = _mask(kind, batch, heads, queries, keys), kind == "causal"
    found = _found(tile, given, mask, (is_causal, factor), is_few=sizes in _FEW)
    exact, eagers = _exact(given, mask, is_causal, factor), _eagers(given, mask, is_causal, factor)
    least = 1e-6 * max(1.0, abs(factor) * math.sqrt(size))  # of a few numbers torch's kernel may be exact
    theirs = (
        (eagers - exact).abs().nan_to_num(0.0)
    )  # hidden scores times a factor that is not positive are NaN in torch
    assert (found - exact).abs().max() <= max(_MOST_WORSE * theirs.max(), least)


@pytest.mark.parametrize("tile", [WIDE, NARROW])
@pytest.mark.parametrize("number", [math.nan, _INF, -_INF, 3e38, -3e38])
@pytest.mark.parametrize("place", ["query", "key", "value", "mask"])
@pytest.mark.parametrize("queries", [9, 4])
def test_numbers_that_are_special(tile: Tile, number: float, place: str, queries: int) -> None:
    if not has_vectors(tile.lanes):
        pytest.skip("the processor has no such vectors")
    given = _heads(1, 2, queries, 33), _heads(1, 2, 19, 33), _heads(1, 2, 19, 33)
    mask = torch.randn(1, 1, queries, 19)
    written = {"query": given[0], "key": given[1], "value": given[2], "mask": mask}[place]
    written[0, 0, 1, 7] = number
    found = _found(tile, given, mask, (False, 0.2), is_few=queries == 4)
    eagers = _eagers(given, mask, False, 0.2)
    torch.testing.assert_close(found, eagers, equal_nan=True)


@pytest.mark.parametrize("tile", [WIDE, NARROW])
def test_keys_that_are_masked_do_not_count(tile: Tile) -> None:
    if not has_vectors(tile.lanes):
        pytest.skip("the processor has no such vectors")
    given, mask = (_heads(1, 1, 6, 8), _heads(1, 1, 40, 8), _heads(1, 1, 40, 8)), torch.zeros(1, 1, 6, 40)
    mask[..., 20:] = -_INF
    given[2][:, :, 20:] = 3e38
    found = _found(tile, given, mask, (False, 0.2))
    short = given[0], given[1][:, :, :20], given[2][:, :, :20]
    torch.testing.assert_close(found, _eagers(short, None, False, 0.2))


class _Decodes(nn.Module):
    """One token of a text: its keys go into a cache."""

    def __init__(self, heads: int, length: int) -> None:
        super().__init__()
        self.joint, self.out, self.heads = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH), heads
        self.register_buffer("keys", torch.randn(1, heads, length, _WIDTH // heads))
        self.register_buffer("values", torch.randn(1, heads, length, _WIDTH // heads))

    def forward(self, x: Tensor, place: Tensor, seen: Tensor) -> Tensor:
        shape = *x.shape[:2], self.heads, _WIDTH // self.heads
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.joint(x).chunk(3, -1))
        keys, values = self.keys.index_copy_(2, place, key), self.values.index_copy_(2, place, value)
        made = F.scaled_dot_product_attention(query, keys, values, seen)
        return x + self.out(made.transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize(("heads", "length"), [(6, 300), (3, 1000)])
def test_a_token_of_a_text_is_one_call(heads: int, length: int) -> None:
    x, place, seen = torch.randn(1, 1, _WIDTH), torch.tensor([7]), torch.rand(1, length) < 0.7
    model = _Decodes(heads, length).eval()
    frozen: Any = dovetail.freeze(
        model, (x, place, seen), passes="fast", dynamic_shapes="static", executors=("native", "aten")
    )
    with torch.no_grad():
        wanted = model(x, place, seen)
    torch.testing.assert_close(frozen(x, place, seen), wanted)
    ((variant,),) = (method.variants for method in frozen._running.methods.values())
    program = variant.runner.graph.forward.program
    (cluster,) = clusters_of(program, lambda _: True, frozenset(), rounds=True)
    assert {node.target for node in cluster.nodes} >= {ATTENTION, torch.ops.aten.index_copy_.default}
    with pytest.raises(IndexError):
        frozen(x, place + length, seen)


class _Attends(nn.Module):
    def __init__(self, heads: int, kind: str) -> None:
        super().__init__()
        self.joint, self.out, self.heads, self.kind = (
            nn.Linear(_WIDTH, 3 * _WIDTH),
            nn.Linear(_WIDTH, _WIDTH),
            heads,
            kind,
        )

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        shape = *x.shape[:2], self.heads, _WIDTH // self.heads
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.joint(x).chunk(3, -1))
        mask = seen if self.kind == "mask" else None
        made = F.scaled_dot_product_attention(query, key, value, mask, is_causal=self.kind == "causal")
        return x + self.out(made.transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("kind", ["none", "mask", "causal"])
@pytest.mark.parametrize(("batch", "length", "heads"), [(1, 16, 3), (2, 40, 4), (1, 300, 2), (1, 1, 6)])
def test_programs(kind: str, batch: int, length: int, heads: int) -> None:
    model, x = _Attends(heads, kind).eval(), torch.randn(batch, length, _WIDTH)
    seen = torch.rand(batch, 1, length, length) < 0.7
    exact = _Attends(heads, kind).double().eval()
    exact.load_state_dict(model.state_dict())
    wanted, eagers = exact(x.double(), seen), model(x, seen)
    for executors in (("auto", "aten"), ("native", "aten"), ("aten",)):
        frozen: Any = dovetail.freeze(model, (x, seen), passes="fast", dynamic_shapes="static", executors=executors)
        found = frozen(x, seen)
        error, usual = (found - wanted).abs().max(), (eagers - wanted).abs().max()
        least = 1e-5 if executors == ("aten",) else 1e-6  # oneDNN rounds more where there is one row
        assert error <= max(_MOST_WORSE * usual, least)
        ((variant,),) = (method.variants for method in frozen._running.methods.values())
        nodes = variant.runner.graph.forward.program.nodes
        is_short = length <= 256
        assert any(node.target is ATTENTION for node in nodes) == (is_short and executors != ("aten",))
    assert torch.equal(dovetail.freeze(model, (x, seen))(x, seen), eagers)


class _Encoder(nn.Module):
    """Three layers behind an operator that is not claimed: what that gives stays with the caller during a cluster."""

    def __init__(self) -> None:
        super().__init__()
        self.attends = nn.ModuleList(_Attends(12, "none") for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(_WIDTH, 3 * _WIDTH) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(3 * _WIDTH, _WIDTH) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(_WIDTH) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = x.sort(-1)[0]
        for number, (attends, up, down) in enumerate(zip(self.attends, self.up, self.down, strict=True)):
            x = self.norms[2 * number](attends(x, x))
            x = self.norms[2 * number + 1](x + down(F.gelu(up(x))))
        return x


def test_attention_is_a_cluster_where_its_neighbours_take_too_much_memory() -> None:
    model, x = _Encoder().eval(), torch.randn(1, 16, _WIDTH)
    frozen: Any = dovetail.freeze(model, (x,), passes="fast", dynamic_shapes="static", executors=("native", "aten"))
    ((variant,),) = (method.variants for method in frozen._running.methods.values())
    program = variant.runner.graph.forward.program
    inside = {node for cluster in clusters_of(program, lambda _: True, frozenset()) for node in cluster.nodes}
    attentions = [node for node in program.nodes if node.target is ATTENTION]
    assert len(attentions) == 3
    assert inside.issuperset(attentions)
