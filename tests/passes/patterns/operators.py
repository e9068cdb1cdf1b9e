"""One writing operator each, on inputs and on temporaries."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.passes.patterns.pattern import BOTH, CONTIGUOUS, SYMBOLIC, Pattern


def _rows() -> tuple[Tensor, ...]:
    return torch.randn(8, 4), torch.randn(2, 4), torch.tensor([5, 1])


def index_add(x: Tensor, rows: Tensor, index: Tensor) -> None:
    x.index_add_(0, index, rows, alpha=2)


def scatter_reduce(x: Tensor, rows: Tensor, index: Tensor) -> None:
    x.scatter_reduce_(0, index.view(2, 1).expand(2, 4), rows, "amax")


def scatter_add(x: Tensor, rows: Tensor, index: Tensor) -> None:
    x.scatter_add_(0, index.view(2, 1).expand(2, 4), rows)


def accumulate(x: Tensor, rows: Tensor, index: Tensor) -> None:
    x.index_put_((index,), rows, accumulate=True)


def masked_fill(x: Tensor, mask: Tensor) -> None:
    x.masked_fill_(mask, -1.0)


def masked_scatter(x: Tensor, mask: Tensor) -> None:
    x.masked_scatter_(mask, torch.arange(32.0).view(8, 4))


def put_by_a_mask(x: Tensor, mask: Tensor) -> None:
    x[mask] = 7.0


def where_back(x: Tensor, mask: Tensor) -> None:
    x.copy_(torch.where(mask, x, -x))


def two_halves(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty(8, 4)
    out[:4] = a + 1
    out[4:] = b * 2
    return out


def two_halves_of_inputs(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty(8, 4)
    out[:4] = a
    out[4:] = b
    return out


def matrix_products_in_columns(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty(4, 8)
    out[:, :4] = a @ b
    out[:, 4:] = b @ a
    return out


def add_small_and_big(x: Tensor, small: Tensor) -> Tensor:
    y = x * 2
    return torch.add(small, y)


def add_small_to_an_input(x: Tensor, small: Tensor) -> None:
    x.copy_(small + x)


def comparison_cast_back(x: Tensor) -> Tensor:
    y = x * 2
    y.gt_(0)
    return y


def comparison_of_an_input(x: Tensor) -> None:
    x.ge_(0.5)


def clone_that_protects_nothing(x: Tensor) -> Tensor:
    y = x.sin().clone()
    y.add_(1)
    return y.contiguous().exp()


def clone_that_protects(x: Tensor) -> Tensor:
    kept = x.clone()
    x.add_(1)
    return kept


def clone_that_is_read_first(x: Tensor) -> Tensor:
    kept = x.clone()
    total = kept.sum()
    x.add_(1)
    return total


def contiguous_of_a_transpose(x: Tensor) -> Tensor:
    y = x.t().contiguous()
    y.add_(1)
    return y


def residual(x: Tensor, y: Tensor) -> Tensor:
    kept = x.clone()
    y = torch.relu_(y * 2)
    y += kept
    return y


def parts_by_unbind(x: Tensor) -> Tensor:
    a, _, c = x.unbind(0)
    a.add_(1)
    c.mul_(2)
    return (a * c).sum()


def parts_by_split(x: Tensor) -> None:
    a, b = x.split(4)
    a.mul_(2)
    b.add_(a)


def parts_by_chunk_of_a_temporary(x: Tensor) -> Tensor:
    y = x * 2
    a, b = y.chunk(2, 1)
    a.sigmoid_()
    b.mul_(a)
    return y


def write_the_diagonal(x: Tensor) -> None:
    x.diagonal().add_(1)


def fill_the_diagonal(x: Tensor) -> Tensor:
    y = x * 2
    y.diagonal().fill_(1)
    return y


def write_by_as_strided(x: Tensor) -> None:
    x.as_strided((3, 2), (8, 1), 4).mul_(2)


def windows_of_a_temporary(x: Tensor) -> Tensor:
    y = x * 2
    y.as_strided((8,), (5,), 0).zero_()
    return y


def real_part(x: Tensor) -> None:
    torch.view_as_real(x)[..., 0].mul_(2)


def conjugate(x: Tensor) -> None:
    x.conj().add_(1j)


def negative_of_the_imaginary_part(x: Tensor) -> None:
    x.conj().imag.add_(1)


def random_in_place(x: Tensor) -> None:
    x.normal_()


def random_twice(x: Tensor, y: Tensor) -> None:
    x.uniform_()
    y.bernoulli_(0.5)


def dropout_in_place(x: Tensor) -> Tensor:
    y = x * 2
    return torch.nn.functional.dropout(y, 0.5, training=True, inplace=True) + 1


def read_as_integers(x: Tensor) -> None:
    x.view(torch.int32).bitwise_and_(0x7FFFFFFF)


def bytes_of_a_temporary(x: Tensor) -> Tensor:
    y = x * 2
    y.view(torch.int32).add_(1)
    return y.sum()


def cumulative_sum(x: Tensor) -> None:
    x.cumsum_(0)


def triangle(x: Tensor) -> None:
    x.tril_()


def squeeze_and_resize(x: Tensor) -> Tensor:
    y = x * 2
    y.unsqueeze_(0).transpose_(1, 2)
    y.add_(1)
    return y


def chain_of_activations(x: Tensor, weight: Tensor) -> Tensor:
    for _ in range(3):
        x = torch.tanh(x @ weight) * 2 + 1
    return x


def round_trip_of_types(x: Tensor) -> None:
    x.copy_((x.double() * 2).float())


def add_of_other_type(x: Tensor, y: Tensor) -> None:
    x.add_(y)


def power_and_remainder(x: Tensor) -> None:
    x.pow_(2).remainder_(0.7).clamp_(min=0.1)


def zero_then_accumulate(x: Tensor, rows: Tensor, index: Tensor) -> None:
    x.zero_()
    x.index_add_(0, index, rows)


def sort_back(x: Tensor) -> None:
    x.copy_(x.sort(0).values)


def _square() -> tuple[Tensor, ...]:
    return (torch.randn(6, 6),)


def _masked() -> tuple[Tensor, ...]:
    return torch.randn(8, 4), torch.rand(8, 4) > 0.5


def _halves() -> tuple[Tensor, ...]:
    return torch.randn(4, 4), torch.randn(4, 4)


def _complex() -> tuple[Tensor, ...]:
    return (torch.randn(6, 4, dtype=torch.complex64),)


PATTERNS = (
    Pattern("index_add_", index_add, _rows, SYMBOLIC),
    Pattern("scatter_reduce_", scatter_reduce, _rows),
    Pattern("scatter_add_", scatter_add, _rows),
    Pattern("index_put_ accumulates", accumulate, _rows, SYMBOLIC),
    Pattern("masked_fill_", masked_fill, _masked, SYMBOLIC),
    Pattern("masked_scatter_", masked_scatter, _masked),
    Pattern("index_put_ by a mask", put_by_a_mask, _masked),
    Pattern("where, back", where_back, _masked),
    Pattern("two halves", two_halves, _halves, SYMBOLIC),
    Pattern(
        "two halves of inputs", two_halves_of_inputs, _halves, BOTH, 1, "the result holds the contents of two inputs"
    ),
    Pattern(
        "two products in columns",
        matrix_products_in_columns,
        _halves,
        copies=1,
        why="a product of matrices is contiguous, and its columns are not",
    ),
    Pattern("add(small, big)", add_small_and_big, lambda: (torch.randn(8, 4), torch.randn(4))),
    Pattern("small + input", add_small_to_an_input, lambda: (torch.randn(8, 4), torch.randn(4)), SYMBOLIC),
    Pattern("comparison cast back", comparison_cast_back, _square),
    Pattern("comparison of an input", comparison_of_an_input, _square),
    Pattern("clone that protects nothing", clone_that_protects_nothing, _square, SYMBOLIC),
    Pattern("clone that protects", clone_that_protects, _square, SYMBOLIC, 1, "old and new contents are both kept"),
    Pattern("clone that is read first", clone_that_is_read_first, _square, SYMBOLIC),
    Pattern(
        "contiguous of a transpose",
        contiguous_of_a_transpose,
        _square,
        ("mutations",),  # in the other way, torch takes the result for a view
        1,
        "the result is laid out differently from the input",
    ),
    Pattern("residual", residual, lambda: (torch.randn(8, 4), torch.randn(8, 4))),
    Pattern("parts by unbind", parts_by_unbind, lambda: (torch.randn(3, 8),), SYMBOLIC),
    Pattern("parts by split", parts_by_split, lambda: (torch.randn(8, 4),), SYMBOLIC),
    Pattern(
        "parts by chunk, of a temporary",
        parts_by_chunk_of_a_temporary,
        lambda: (torch.randn(8, 4),),
        more={"mutations_and_views": 2},
        weakness="a result is contiguous where the part it replaces is not",
    ),
    Pattern("the diagonal", write_the_diagonal, _square),
    Pattern("fill the diagonal", fill_the_diagonal, _square),
    Pattern("as_strided", write_by_as_strided, lambda: (torch.randn(8, 4),)),
    Pattern("as_strided of a temporary", windows_of_a_temporary, _square),
    Pattern("real part", real_part, _complex, more={"mutations_and_views": 1}, weakness=CONTIGUOUS),
    Pattern(
        "conjugate",
        conjugate,
        _complex,
        copies=2,
        why="complex numbers may round differently in place",
        more={"mutations_and_views": 1},
        weakness=CONTIGUOUS,
        unproved=("mutations",),
    ),
    Pattern(
        "imaginary part of the conjugate",
        negative_of_the_imaginary_part,
        _complex,
        copies=1,
        why="complex numbers may round differently in place",
        more={"mutations": 3, "mutations_and_views": 5},
        weakness="nothing is done in memory that is read as conjugate",
    ),
    Pattern("normal_", random_in_place, _square),
    Pattern(
        "uniform_ and bernoulli_",
        random_twice,
        lambda: (*_square(), *_square()),
        more={"mutations": 1, "mutations_and_views": 1},
        weakness="bernoulli draws otherwise in place, where memory is not contiguous",
    ),
    Pattern("dropout in place", dropout_in_place, _square, more={"mutations_and_views": 1}, weakness=CONTIGUOUS),
    Pattern("floats as integers", read_as_integers, _square),
    Pattern("a temporary as integers", bytes_of_a_temporary, _square),
    Pattern("cumsum_", cumulative_sum, _square),
    Pattern("tril_", triangle, _square),
    Pattern(
        "transpose_ of a temporary",
        squeeze_and_resize,
        lambda: (torch.randn(8, 4),),
        more={"mutations_and_views": 3},
        weakness=CONTIGUOUS,
    ),
    Pattern("chain of activations", chain_of_activations, lambda: (torch.randn(8, 4), torch.randn(4, 4))),
    Pattern(
        "round trip of types",
        round_trip_of_types,
        _square,
        more={"mutations": 1, "mutations_and_views": 1},
        weakness="a conversion makes a new tensor",
    ),
    Pattern(
        "add_ of another type",
        add_of_other_type,
        lambda: (*_square(), torch.randn(6, 6, dtype=torch.float64)),
        more={"mutations": 1, "mutations_and_views": 1},
        weakness="a sum is converted after it was made",
    ),
    Pattern("pow_, remainder_, clamp_", power_and_remainder, _square, SYMBOLIC),
    Pattern("zero_, then accumulate", zero_then_accumulate, _rows, SYMBOLIC),
    Pattern("sort back", sort_back, _square, copies=1, why="sorting has no form in place", unproved=BOTH),
)
