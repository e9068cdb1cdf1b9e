"""Caches and other large buffers that a step writes a small part of."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.passes.patterns.pattern import CONTIGUOUS, SYMBOLIC, Pattern


def _cache() -> tuple[Tensor, ...]:
    """A cache (batch, heads, places, width), one place of it, and where that is."""
    return torch.randn(2, 2, 12, 4), torch.randn(2, 2, 4), torch.tensor([5])


def _two_places() -> tuple[Tensor, ...]:
    return torch.randn(2, 2, 12, 4), torch.randn(2, 2, 2, 4)


def index_the_flat_view(buffer: Tensor, value: Tensor, index: Tensor) -> None:
    buffer.view(-1)[index] = value


def select_a_place(cache: Tensor, key: Tensor, place: Tensor) -> None:
    cache[:, :, 5] = key


def index_put_a_place(cache: Tensor, key: Tensor, place: Tensor) -> None:
    cache[:, :, place] = key.unsqueeze(2)


def index_copy_a_place(cache: Tensor, key: Tensor, place: Tensor) -> None:
    cache.index_copy_(2, place, key.unsqueeze(2))


def index_copy_into_one_layer(cache: Tensor, key: Tensor, place: Tensor) -> None:
    cache[0].index_copy_(1, place, key[0].unsqueeze(1))


def write_through_a_transpose(cache: Tensor, key: Tensor, place: Tensor) -> None:
    cache.transpose(1, 2)[:, 5] = key


def write_a_range(cache: Tensor, keys: Tensor) -> None:
    cache[:, :, 3:5] = keys


def write_through_unflatten_and_flatten(buffer: Tensor, value: Tensor) -> None:
    buffer.unflatten(0, (2, 3)).flatten(1)[:, :2] = value


def narrow_and_copy(cache: Tensor, keys: Tensor) -> None:
    cache.narrow(2, 3, 2).copy_(keys)


def scatter_a_place(cache: Tensor, key: Tensor, place: Tensor) -> None:
    cache.scatter_(2, place.view(1, 1, 1, 1).expand(2, 2, 1, 4), key.unsqueeze(2))


def write_and_attend(cache: Tensor, key: Tensor, place: Tensor) -> Tensor:
    cache.index_copy_(2, place, key.unsqueeze(2))
    return (cache @ key.unsqueeze(3)).softmax(2)


def write_keys_and_values(keys: Tensor, values: Tensor, key: Tensor, place: Tensor) -> Tensor:
    keys[:, :, place] = key.unsqueeze(2)
    values[:, :, place] = 2 * key.unsqueeze(2)
    return (keys * values).sum((2, 3))


def roll_and_append(cache: Tensor, key: Tensor, place: Tensor) -> None:
    cache[:, :, :-1] = cache[:, :, 1:].clone()
    cache[:, :, -1] = key


def page_of_a_pool(pool: Tensor, key: Tensor, slots: Tensor) -> None:
    pool.view(24, 4)[slots] = key.view(-1, 4)[:2]


def rotary_in_place(query: Tensor, cos: Tensor, sin: Tensor) -> None:
    half = query.shape[-1] // 2
    turned = torch.cat([-query[..., half:], query[..., :half]], -1)
    query.copy_(query * cos + turned * sin)


def decode_many_steps(cache: Tensor, keys: Tensor) -> Tensor:
    total = keys.new_zeros(2, 2, 4)
    for place in range(4):
        cache[:, :, place] = keys[:, :, place % 2] + total
        total = cache[:, :, : place + 1].sum(2)
    return total


def ring_buffer(buffer: Tensor, value: Tensor, count: Tensor) -> None:
    buffer[(count % buffer.shape[0]).view(1)] = value
    count.add_(1)


def last_token_of_a_batch(logits: Tensor, banned: Tensor) -> Tensor:
    logits[:, banned] = -1.0
    return logits.argmax(-1)


def two_layers_of_one_cache(caches: Tensor, key: Tensor) -> Tensor:
    first, second = caches.unbind(0)
    first[:, 3] = key
    second[:, 4] = key * first.sum(1)
    return second.sum()


PATTERNS = (
    Pattern(
        "index the flat view",
        index_the_flat_view,
        lambda: (torch.randn(8, 6), torch.randn(2), torch.tensor([3, 7])),
        SYMBOLIC,
    ),
    Pattern("cache: select a place", select_a_place, _cache, SYMBOLIC),
    Pattern("cache: index_put a place", index_put_a_place, _cache, SYMBOLIC, report="pytorch#184542"),
    Pattern("cache: index_copy_ a place", index_copy_a_place, _cache, SYMBOLIC, report="pytorch#131192"),
    Pattern("cache: index_copy_ into one layer", index_copy_into_one_layer, _cache, report="pytorch#184542"),
    Pattern(
        "cache: through a transpose",
        write_through_a_transpose,
        _cache,
        more={"mutations_and_views": 2},
        weakness=CONTIGUOUS,
    ),
    Pattern("cache: a range", write_a_range, _two_places, SYMBOLIC),
    Pattern(
        "cache: through unflatten and flatten",
        write_through_unflatten_and_flatten,
        lambda: (torch.randn(6, 4), torch.randn(2, 2)),
    ),
    Pattern("cache: narrow and copy_", narrow_and_copy, _two_places),
    Pattern("cache: scatter_ a place", scatter_a_place, _cache),
    Pattern("cache: write and attend", write_and_attend, _cache, SYMBOLIC),
    Pattern("cache: keys and values", write_keys_and_values, lambda: (torch.randn(2, 2, 12, 4), *_cache())),
    Pattern(
        "cache: roll and append",
        roll_and_append,
        _cache,
        copies=2,
        why="each place is read after its neighbour is written: the old contents are copied first",
    ),
    Pattern(
        "cache: a page of a pool",
        page_of_a_pool,
        lambda: (torch.randn(2, 12, 4), torch.randn(2, 2, 4), torch.tensor([3, 17])),
        report="vllm#8480",
    ),
    Pattern(
        "cache: rotary in place",
        rotary_in_place,
        lambda: (torch.randn(3, 8), torch.randn(3, 8), torch.randn(3, 8)),
        more={"mutations_and_views": 1},
        weakness=CONTIGUOUS,
    ),
    Pattern("cache: many steps", decode_many_steps, _two_places, more={"mutations_and_views": 2}, weakness=CONTIGUOUS),
    Pattern("ring buffer", ring_buffer, lambda: (torch.randn(16, 4), torch.randn(4), torch.tensor(17))),
    Pattern("logits: ban tokens", last_token_of_a_batch, lambda: (torch.randn(3, 16), torch.tensor([2, 5]))),
    Pattern("cache: layers by unbind", two_layers_of_one_cache, lambda: (torch.randn(2, 2, 12, 4), torch.randn(2, 4))),
)
