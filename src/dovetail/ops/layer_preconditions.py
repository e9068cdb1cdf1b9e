"""What must hold of operands of operators that compute a whole layer, or pack sequences: see `ops.preconditions`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


class Refused(Exception):
    """Operands are not what a kernel trusts them to be."""


def require(holds: bool, reason: str) -> None:
    """Raises: Refused, with the reason, unless something holds."""
    if not holds:
        raise Refused(reason)


def within(indices: torch.Tensor, count: int, what: str) -> None:
    """Every index is one of `count`."""
    if indices.numel():
        lowest, highest = torch.aminmax(indices)
        require(int(lowest) >= 0 and int(highest) < count, f"an index in {what} is not within {count}")


def of_length(given: Mapping[str, Any], names: Sequence[str], length: int) -> None:
    """Operands that are there have so many elements."""
    for name in names:
        is_unread = name.startswith("save_") and given.get("train") is False  # then the running ones are read
        if given.get(name) is not None and not (is_unread and not given[name].numel()):
            require(given[name].numel() == length, f"{name} does not have {length} elements")


def encoder_layer(given: Mapping[str, Any]) -> None:
    """A layer of `nn.TransformerEncoder`."""
    width, source = given["embed_dim"], given["src"]
    _attends(given, source, given["num_heads"])
    inner = given["ffn_bias_1"].numel()
    wanted: dict[str, tuple[int, ...]] = {
        **{"ffn_weight_1": (inner, width), "ffn_bias_1": (inner,), "ffn_weight_2": (width, inner)},
        **dict.fromkeys(("norm_weight_1", "norm_bias_1", "norm_weight_2", "norm_bias_2", "ffn_bias_2"), (width,)),
    }
    _are_shaped(given, wanted, source)


def attention_layer(given: Mapping[str, Any]) -> None:
    """`nn.MultiheadAttention` of a tensor over itself, or over others of its form."""
    query = given["query"]
    _attends(given, query, given["num_head"])
    for name in ("key", "value"):
        require(given[name].shape == query.shape, f"{name} has another shape than the query")
        require(given[name].dtype == query.dtype, f"{name} has another dtype than the query")
    if given.get("mask") is not None:
        batch, length = query.shape[:2]
        kinds: dict[Any, tuple[int, ...]] = {
            0: (length, length),
            1: (batch, length),
            2: (batch, given["num_head"], length, length),
        }
        # of any dtype: the kernel makes booleans of it, and `nn.MultiheadAttention` gives it numbers (0 and -inf)
        require(kinds.get(given.get("mask_type")) == tuple(given["mask"].shape), "the mask is of another kind")


def one_of_each(given: Mapping[str, Any]) -> None:
    """One scale, one zero point, and whether to quantize, each a tensor of one number."""
    wanted = {"scale": torch.float32, "zero_point": torch.int32, "fake_quant_enabled": torch.int64}
    for name, dtype in wanted.items():
        require(given[name].numel() == 1, f"{name} is not one number")
        require(given[name].dtype == dtype, f"{name} is not of {dtype}")


def _attends(given: Mapping[str, Any], source: torch.Tensor, heads: int) -> None:
    width = given["embed_dim"]
    require(
        source.dim() == 3 and source.shape[2] == width and heads > 0 and width % heads == 0,
        "the input has another width",
    )
    wanted: dict[str, tuple[int, ...]] = {
        **{"qkv_weight": (3 * width, width), "qkv_bias": (3 * width,)},
        **{"proj_weight": (width, width), "proj_bias": (width,)},
    }
    _are_shaped(given, wanted, source)
    mask, size = given.get("mask"), source.shape[:2]
    if mask is not None:
        shapes = {(size[1], size[1]), tuple(size), (size[0], heads, size[1], size[1])}
        require(tuple(mask.shape) in shapes, "the mask does not fit")


def _are_shaped(given: Mapping[str, Any], wanted: Mapping[str, tuple[int, ...]], source: torch.Tensor) -> None:
    for name, shape in wanted.items():
        require(tuple(given[name].shape) == shape, f"{name} has another shape")
        require(given[name].dtype == source.dtype, f"{name} has another dtype")


# --- recurrent layers, and packed sequences ---------------------------------------------------------------------------

GATES = {"gru": 3, "lstm": 4, "rnn_tanh": 1, "rnn_relu": 1}


def rnn_layer(given: Mapping[str, Any]) -> None:
    """One layer of an LSTM or GRU, as oneDNN has it."""
    source, hidden = given["input"], given["hidden_size"]
    require(source.dim() == 3 and hidden > 0, "the input does not have three dimensions")
    require(given["mode"] in (2, 3), "there is no such cell")
    rows = hidden * (4 if given["mode"] == 2 else 3)
    batch = source.shape[1]  # time comes first here, whatever the module was given
    wanted = {"weight0": (rows, source.shape[2]), "weight1": (rows, hidden)}
    for name, shape in wanted.items():
        require(tuple(given[name].shape) == shape, f"{name} has another shape")
    if given["has_biases"]:
        of_length(given, ("weight2", "weight3"), rows)
    of_length(given, ("hx_", "cx_"), batch * hidden)
    floats = [given[name] for name in ("input", "weight0", "weight1", "weight2", "weight3", "hx_", "cx_")]
    require(len({item.dtype for item in floats if item is not None}) == 1, "the dtypes differ")
    require(not given["batch_sizes"], "sequences are packed")


def _recurrent_layer(given: Mapping[str, Any]) -> None:
    """As `torch.nn` has them: two or four weights for each layer and direction, and one more with projections."""
    source, states, weights = given["input"], given["hx"], given["params"]
    hx = [states] if isinstance(states, torch.Tensor) else list(states)
    directions = 2 if given["bidirectional"] else 1
    count = given["num_layers"] * directions
    each = 4 if given["has_biases"] else 2
    require(source.dim() == 3 and source.numel() > 0, "the input does not have three dimensions, or is empty")
    require(0 < count <= len(weights) and len(weights) in (each * count, (each + 1) * count), "weights are missing")
    require(not (given["train"] and given["dropout"] > 0), "it has dropout")
    is_projected = len(weights) == (each + 1) * count
    batch, width = source.shape[0 if given["batch_first"] else 1], weights[1].shape[-1]
    rows = weights[0].shape[0]
    require(hx[-1].shape[-1] > 0, "a state is empty")
    gates, odd = divmod(rows, hx[-1].shape[-1])
    require(all(state.dim() == 3 and state.shape[:2] == (count, batch) for state in hx), "a state has another shape")
    require(hx[0].shape[2] == width and odd == 0, "a state has another width")
    require(gates == given["gates"] and len(hx) == (2 if gates == 4 else 1), "the weights have other rows")
    require(not is_projected or gates == 4, "only an LSTM projects")
    for place in range(count):
        own = weights[place * (each + is_projected) : (place + 1) * (each + is_projected)]
        below = source.shape[2] if place < directions else width * directions
        wanted: list[tuple[int, ...]] = [(rows, below), (rows, width)]
        wanted += [(rows,), (rows,)] if each == 4 else []
        wanted += [(width, hx[-1].shape[2])] if is_projected else []
        require([tuple(weight.shape) for weight in own] == wanted, f"weights of layer {place} have other shapes")
    floats = [source, *hx, *weights]
    require(len({item.dtype for item in floats}) == 1 and source.dtype.is_floating_point, "the dtypes differ")
    require(len({item.device for item in floats}) == 1, "the devices differ")


def _batch_of(data: torch.Tensor, sizes: torch.Tensor) -> int:
    """How many sequences are packed. sizes: how many of them are left at each time."""
    require(sizes.dim() == 1 and sizes.dtype == torch.int64 and sizes.device.type == "cpu", "there are no sizes")
    require(data.dim() > 0 and sizes.numel() > 0 and int(sizes[-1]) > 0, "nothing is packed")
    require(bool((sizes.diff() <= 0).all()), "more sequences are left than before")
    require(int(sizes.sum()) == data.shape[0], "there is not one row for each time of each sequence")
    return int(sizes[0])


def pack(given: Mapping[str, Any]) -> None:
    """Each length is that of a sequence of the batch."""
    source, lengths = given["x"], given["lengths"]
    require(source.dim() >= 2 and lengths.dim() == 1 and lengths.dtype == torch.int64, "an operand has another rank")
    batch, time = source.shape[:2] if given["batch_first"] else source.shape[1::-1]
    require(lengths.numel() == batch > 0, "there is not one length for each sequence")
    within(lengths - 1, time, "the lengths")


def padded(given: Mapping[str, Any]) -> None:
    """The sizes are those of the rows, and the result is as large as they say."""
    batch = _batch_of(given["data"], given["sizes"])
    require(given["batch"] == batch and given["time"] >= given["sizes"].numel(), "the result has another size")


def packed_layer(given: Mapping[str, Any]) -> None:
    """The sizes are those of the rows, and the weights those of one layer."""
    data, kind = given["data"], given["kind"]
    require(data.dim() == 2 and kind in GATES, "there is no such layer over packed rows")
    batch = _batch_of(data, given["sizes"])
    layer = {"num_layers": 1, "batch_first": False, "train": False, "dropout": 0.0, "gates": GATES[kind]}
    states = {"hx": given["states"], "params": given["weights"], "bidirectional": given["both_ways"]}
    _recurrent_layer({**layer, **states, "input": data[:batch].unsqueeze(0), "has_biases": given["has_biases"]})


def cells(gates: int) -> Callable[[Mapping[str, Any]], None]:
    """The check of a layer whose cells have so many gates."""
    return lambda given: _recurrent_layer({**given, "gates": gates})
