"""Kernels that trust their operands get only operands that were looked at; and honest ones give what torch gives."""

from __future__ import annotations

import pytest
import torch

from dovetail.errors import RefusedOperands
from dovetail.ops.packed_sequences import PACK, PACKED_LAYER, PADDED
from dovetail.ops.preconditions import checked

aten = torch.ops.aten


def test_kernels_that_trust_indices_are_checked() -> None:
    far = torch.full((1, 1, 2, 2), 1 << 40)
    pool = checked(aten.max_pool2d_with_indices_backward.default)
    assert pool is not None
    given = (torch.ones(1, 1, 2, 2), torch.ones(1, 1, 4, 4), [2, 2], [2, 2], [0, 0], [1, 1], False)
    with pytest.raises(RefusedOperands, match="not within 16"):
        pool(*given, far)
    _, indices = aten.max_pool2d_with_indices.default(given[1], [2, 2])
    assert torch.equal(pool(*given, indices), aten.max_pool2d_with_indices_backward.default(*given, indices))
    embedding = checked(aten.embedding_dense_backward.default)
    assert embedding is not None
    with pytest.raises(RefusedOperands, match="not within 5"):
        embedding(torch.ones(2, 3), torch.tensor([0, 1 << 40]), 5, -1, False)
    assert embedding(torch.ones(2, 3), torch.tensor([0, 4]), 5, -1, False).shape == (5, 3)


def test_embedding_bags_are_checked() -> None:
    bag = checked(aten._embedding_bag.default)
    assert bag is not None
    weight, indices = torch.rand(5, 3), torch.tensor([0, 4, 2])
    for offsets, last in (([0, 1], False), ([0, 3, 3], True), ([0, 0, 3], False)):
        found = bag(weight, indices, torch.tensor(offsets), False, 0, False, None, last)
        assert torch.equal(
            found[0], aten._embedding_bag(weight, indices, torch.tensor(offsets), False, 0, False, None, last)[0]
        )
    assert bag(weight, indices[:0], torch.tensor([0]), False, 0, False, None, True)[0].shape == (0, 3)
    for wrong in (torch.tensor([0, 1 << 40, 2]), torch.tensor([0, -1, 2]), indices[None], indices.float()):
        with pytest.raises(RefusedOperands):
            bag(weight, wrong, torch.tensor([0]))
    for offsets, last in (([], False), ([0], True), ([1], False), ([0, 4], False), ([0, 2, 1], False), ([0, -5], True)):
        with pytest.raises(RefusedOperands, match="bag"):
            bag(weight, indices, torch.tensor(offsets, dtype=torch.int64), False, 0, False, None, last)
    with pytest.raises(RefusedOperands, match="one weight for each index"):
        bag(weight, indices, torch.tensor([0]), False, 0, False, torch.ones(2))


def test_grouped_products_are_checked() -> None:
    product = checked(aten._grouped_mm.default)
    assert product is not None
    rows, stack = torch.rand(8, 16), torch.rand(2, 16, 4)
    ends = torch.tensor([3, 8], dtype=torch.int32)
    for left, right in ((rows, stack), (torch.rand(2, 4, 16), rows.mT), (rows.mT, rows)):
        assert torch.equal(product(left, right, ends), aten._grouped_mm(left, right, ends))
    assert torch.equal(product(stack.mT, stack), aten._grouped_mm(stack.mT, stack))
    for wrong in ([3, 9], [-1, 8], [5, 3], [3, 1 << 30]):
        with pytest.raises(RefusedOperands, match="offset"):
            product(rows, stack, torch.tensor(wrong, dtype=torch.int32))
    for offsets in (None, ends.long(), ends[None]):
        with pytest.raises(RefusedOperands, match="offsets"):
            product(rows, stack, offsets)


def test_heads_of_queries_may_share_keys() -> None:
    attend = checked(aten._scaled_dot_product_flash_attention_for_cpu.default)
    assert attend is not None
    query, key = torch.rand(2, 4, 3, 8), torch.rand(2, 2, 3, 8)
    found = attend(query, key, key, 0.0, True)[0]
    each = key.repeat_interleave(2, 1)
    assert torch.equal(found, attend(query, each, each, 0.0, True)[0])
    for keys, values in ((query[:, :3], query[:, :3]), (key, key[:, :1]), (key[:, :0], key[:, :0]), (key[:1], key[:1])):
        with pytest.raises(RefusedOperands, match="numbers of heads"):
            attend(query, keys, values, 0.0, True)


@pytest.mark.parametrize("kind", ["gru", "lstm", "rnn_tanh"])
def test_recurrent_layers_are_checked(kind: str) -> None:
    layer = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM, "rnn_tanh": torch.nn.RNN}[kind](4, 3, 2, bidirectional=True)
    op = getattr(aten, kind).input
    run = checked(op)
    assert run is not None
    x, state = torch.rand(5, 2, 4), torch.rand(4, 2, 3)
    hidden = [state, state.clone()] if kind == "lstm" else state
    weights = [parameter.detach() for parameter in layer.parameters()]
    flags = (True, 2, 0.0, False, True, False)
    for a, b in zip(run(x, hidden, weights, *flags), op(x, hidden, weights, *flags), strict=True):
        assert torch.equal(a, b)
    short = [state[:1]] * 2 if kind == "lstm" else state[:1]
    for given in (
        (x, hidden, [weights[0][:1], *weights[1:]], *flags),
        (x, hidden, weights[:-1], *flags),
        (x, hidden, [w.double() for w in weights], *flags),
        (x[..., :3], hidden, weights, *flags),
        (x[0], hidden, weights, *flags),
        (x, short, weights, *flags),
        (x, hidden, weights, True, 1 << 40, *flags[2:]),
        (x, hidden, [], *flags),
    ):
        with pytest.raises(RefusedOperands):
            run(*given)


def test_kernels_that_trust_shapes_are_checked() -> None:
    norm = checked(aten.native_layer_norm_backward.default)
    softmax = checked(aten._log_softmax_backward_data.default)
    fourier = checked(aten._fft_c2r.default)
    assert norm is not None
    assert softmax is not None
    assert fourier is not None
    x = torch.ones(4, 3)
    with pytest.raises(RefusedOperands, match="mean does not have 4"):
        norm(x, x, [3], torch.ones(1), torch.ones(4, 1), None, None, [True, False, False])
    with pytest.raises(RefusedOperands, match="other shapes"):
        softmax(torch.ones(1000, 1000), x, 1, torch.float32)
    with pytest.raises(RefusedOperands, match="another size"):
        fourier(torch.ones(4, 3, dtype=torch.complex64), [1], 0, 1 << 20)
    assert fourier(torch.ones(4, 3, dtype=torch.complex64), [1], 0, 4).shape == (4, 4)


def test_attention_is_checked() -> None:
    attend = checked(aten._native_multi_head_attention.default)
    assert attend is not None
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.rand(3, 5, 8)
    hidden = torch.rand(3, 5) > 0.5
    hidden[:, 0] = False
    weights = [w.detach() for w in (layer.in_proj_weight, layer.in_proj_bias, *layer.out_proj.parameters())]
    numbers = torch.zeros(3, 5).masked_fill(hidden, -torch.inf)  # what the module makes of booleans
    later = torch.ones(5, 5).triu(1)
    for mask, kind in ((None, None), (hidden, 1), (numbers, 1), (later.bool(), 0), (later.double(), 0)):
        call = (x, x, x, 8, 2, *weights, mask, True, True, kind)
        for found, expected in zip(attend(*call), aten._native_multi_head_attention(*call), strict=True):
            assert torch.equal(found, expected)
    wrong = {
        "another width": (x[..., :4], x, x, 8, 2, *weights),
        "key has another shape": (x, x[:, :2], x, 8, 2, *weights),
        "value has another shape": (x, x, x[:1], 8, 2, *weights),
        "qkv_weight has another shape": (x, x, x, 8, 2, weights[0][:9], *weights[1:]),
        "proj_bias has another shape": (x, x, x, 8, 2, *weights[:3], weights[3][:1]),
        "qkv_bias has another dtype": (x, x, x, 8, 2, weights[0], weights[1].double(), *weights[2:]),
        "mask does not fit": (x, x, x, 8, 2, *weights, hidden[:1], True, True, 1),
        "mask is of another kind": (x, x, x, 8, 2, *weights, hidden, True, True, 2),
    }
    for reason, call in wrong.items():
        with pytest.raises(RefusedOperands, match=reason):
            attend(*call)


def test_fake_quantization_is_checked() -> None:
    quantize = checked(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
    assert quantize is not None
    x, scale, zero, is_on = torch.rand(4), torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32), torch.tensor([1])
    found = quantize(x, scale, zero, is_on, 0, 255)[0]
    assert torch.equal(found, torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255))
    for wrong in ((scale[:0], zero, is_on), (scale, zero[:0], is_on), (scale, zero, is_on[:0]), (scale, is_on, is_on)):
        with pytest.raises(RefusedOperands, match="not"):
            quantize(x, *wrong, 0, 255)


def test_packed_sequences_are_checked() -> None:
    x, lengths = torch.rand(3, 5, 4), torch.tensor([5, 2, 1])
    pack, pad, layer = map(checked, (PACK, PADDED, PACKED_LAYER))
    assert pack is not None
    assert pad is not None
    assert layer is not None
    data, sizes = pack(x, lengths, True)
    for wrong in ([6, 2, 1], [5, 2, 0], [5, 2], [5.0, 2.0, 1.0]):
        with pytest.raises(RefusedOperands):
            pack(x, torch.tensor(wrong), True)
    assert torch.equal(pad(data, sizes, 0.0, 5, 3)[1], lengths)
    cell = torch.nn.LSTM(4, 2)
    weights, states = list(cell.parameters()), [torch.zeros(1, 3, 2)] * 2
    how = ("lstm", True, False, False)
    expected = cell(torch.nn.utils.rnn.PackedSequence(data, sizes))[0].data
    assert torch.equal(layer(data, sizes, states, weights, *how)[0], expected)
    for wrong in ([1 << 40], [3, 2, 1, 1], [3, 2, 1, 1, 2], [1, 3, 2, 1, 1], [8, 0], []):
        false = torch.tensor(wrong, dtype=torch.int64)
        with pytest.raises(RefusedOperands):
            pad(data, false, 0.0, 8, 3)
        with pytest.raises(RefusedOperands):
            layer(data, false, states, weights, *how)
    with pytest.raises(RefusedOperands, match="other shapes"):
        layer(data, sizes, states, [weights[0][:, :1], *weights[1:]], *how)
    with pytest.raises(RefusedOperands, match="another size"):
        pad(data, sizes, 0.0, 4, 3)
