"""Checks of `torch_compat.fakes`."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator

import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic

from dovetail.torch_compat import dispatch, fakes, symbols
from dovetail.torch_compat.checks.difference import first_difference


def check_new_fake_mode() -> str | None:
    """A fake mode gives shapes, strides and dtypes of results, and takes real tensors as fakes."""
    with fakes.new_fake_mode():
        result = torch.ones(2, 3).t() @ torch.ones(2, 4, dtype=torch.float32)
    real = torch.ones(3, 3)
    with fakes.new_fake_mode():
        mixed = real.t().double()
    return first_difference(
        ("the shape of a product", tuple(result.shape), (3, 4)),
        ("a real tensor's double", (fakes.is_fake(mixed), mixed.dtype), (True, torch.float64)),
    )


def check_new_symbolic_fake_mode() -> str | None:
    """The number of elements that data tells is a symbol; dtype and rank are known."""
    with fakes.new_symbolic_fake_mode():
        places = torch.ops.aten.nonzero.default(torch.ones(2, 3))
    return first_difference(("the places of what is not 0", (places.dtype, places.dim()), (torch.int64, 2)))


def check_writes_fake() -> str | None:
    """The text of a tensor without numbers is known from that of another one, as a part of a text as well."""
    real = torch.ones(2)
    made = fakes.fake_of(fakes.new_fake_mode(), real)
    texts = [str(made), f"loss {made.sum()}", str(torch.nn.Parameter(made)), str(real)]
    return first_difference(("texts", [fakes.writes_fake(text) for text in texts], [True, True, True, False]))


def check_is_fake() -> str | None:
    """Fake and real tensors are told apart, through Parameter as well."""
    mode = fakes.new_fake_mode()
    real = torch.nn.Parameter(torch.ones(2))
    found = (fakes.is_fake(real), fakes.is_fake(fakes.fake_of(mode, real)))
    return first_difference(("a real and a fake parameter", found, (False, True)))


def check_fake_of() -> str | None:
    """The twin has equal sizes, strides, offset and requires_grad; twins share storage where the originals do."""
    mode = fakes.new_fake_mode()
    x = torch.zeros(4, 6)
    view = x.t()[1:]
    twin, view_twin = fakes.fake_of(mode, x), fakes.fake_of(mode, view)
    leaf = fakes.fake_of(mode, torch.zeros(2, requires_grad=True))
    return first_difference(
        ("the layout", (view_twin.stride(), view_twin.storage_offset()), (view.stride(), view.storage_offset())),
        ("the sizes", tuple(map(type, view_twin.shape)), (int, int)),
        ("shared storage", dispatch.storage_key(twin) == dispatch.storage_key(view_twin), True),
        ("requires_grad", leaf.requires_grad, True),
    )


def check_number_behind() -> str | None:
    """What `torch.tensor(2)` makes under a fake mode has its number."""
    with fakes.new_fake_mode():
        known, other = torch.tensor(2), torch.ones(1)
    found = fakes.number_behind(known)
    return first_difference(
        ("the number", found is not None and int(found), 2), ("of others", fakes.number_behind(other), None)
    )


def check_has_no_numbers() -> str | None:
    """Twins of tensors on device meta seem to be where the mode says, and share memory where the originals do."""
    mode = fakes.new_fake_mode(meta_stands_for=torch.device("cpu"))
    x = torch.zeros(4, 6, device="meta", requires_grad=True)
    twin, part = fakes.fake_of(mode, x), fakes.fake_of(mode, x.detach()[1:])
    apart = fakes.fake_apart(mode, fakes.fake_of(fakes.new_fake_mode(), torch.zeros(3)))
    return first_difference(
        ("the device", (twin.device.type, part.device.type, apart.device.type), ("cpu", "cpu", "cpu")),
        ("the layout", (tuple(part.shape), part.storage_offset(), tuple(apart.shape)), ((3, 6), 6, (3,))),
        ("shared storage", dispatch.storage_key(twin) == dispatch.storage_key(part), True),
        ("requires_grad", twin.requires_grad, True),
        ("numbers", [fakes.has_no_numbers(t) for t in (x, twin, torch.ones(1))], [True, True, False]),
    )


def check_data_dependent_errors() -> str | None:
    """Asking a fake for its numbers raises one of the known errors."""
    with fakes.new_fake_mode():
        try:
            torch.ones(1).item()
        except fakes.DATA_DEPENDENT_ERRORS:
            return None
    return "item() of a fake tensor gave a number"


def check_unknown_number() -> str | None:
    """What is raised for a number that only data tell is among what torch raises."""
    known = fakes.DATA_DEPENDENT_ERRORS
    return first_difference(("whether it is", isinstance(fakes.unknown_number(), known), True))


def check_allow_real_inputs() -> str | None:
    """Real tensors can be allowed for a while."""
    mode = fakes.new_fake_mode()
    mode.allow_non_fake_inputs = False
    real = torch.ones(2)
    with fakes.allow_real_inputs(mode), mode:
        allowed = fakes.is_fake(real + 1)
    return first_difference(
        ("the sum of a real tensor", allowed, True),
        ("the setting afterwards", mode.allow_non_fake_inputs, False),
    )


def check_keep_number() -> str | None:
    """The number of a fake that stands for a Python float is kept by its twin."""
    env = symbols.new_shape_env()
    mode = fakes.new_fake_mode(env)
    source = torch._dynamo.source.ConstantSource("number")
    number = mode.from_tensor(torch.tensor(0.5, dtype=torch.float64), source=source)
    known = env.create_unspecified_symbol(0.5, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    number.item_memo = env.create_symfloatnode(known, hint=0.5, source=source)
    twin = fakes.keep_number(number, number.detach())
    with mode:
        found = twin.item()
    assert isinstance(found, torch.SymFloat), "the number is known by a symbol"
    return first_difference(("the number's hint", symbols.hint_of(found), 0.5))


def check_graph_fake_mode() -> str | None:
    """The mode of the first fake among example values is found; without a fake there is none."""
    mode = fakes.new_fake_mode()
    fake = fakes.fake_of(mode, torch.ones(2))
    found = fakes.graph_fake_mode([1, torch.ones(1), fake])
    return first_difference(
        ("the claim that the mode is found", found is mode, True),
        ("the mode without fakes", fakes.graph_fake_mode([torch.ones(1), 2]), None),
    )


def check_symbolic_fake_of() -> str | None:
    """Sizes above 1 become symbols with the size as hint, equal sizes the same symbol; 1 stays a number."""
    mode = fakes.new_fake_mode(symbols.new_shape_env())
    twin = fakes.symbolic_fake_of(mode, torch.empty(5, 1, 5), "x")
    rows, one, columns = twin.shape
    return first_difference(
        ("the type of a size", type(rows), torch.SymInt),
        ("the size 1", one, 1),
        ("the claim that equal sizes are one symbol", str(rows) == str(columns), True),
    )


def check_fake_apart() -> str | None:
    """Twins of two views of one tensor look like them and lie apart."""
    mode = fakes.new_fake_mode()
    real = torch.ones(2, 6)
    twins = [fakes.fake_apart(mode, view) for view in (real[:, 1::2], real[1])]
    described = [(tuple(t.shape), t.stride(), t.storage_offset()) for t in twins]
    return first_difference(
        ("shapes, strides and offsets", described, [((2, 3), (6, 2), 1), ((6,), (1,), 6)]),
        ("a storage in common", dispatch.storage_key(twins[0]) == dispatch.storage_key(twins[1]), False),
    )


def check_fakes_apart() -> str | None:
    """Twins are what torch makes, views and numbers among them, also while modes are active."""
    mode = fakes.new_fake_mode()
    real = [torch.ones(2, 6)[:, 1::2], torch.nn.Parameter(torch.ones(3)), torch.ones((), dtype=torch.int8)]
    real += [torch.ones(0, 2), torch.ones(2, 1).expand(2, 3), torch.ones(2, dtype=torch.complex64).conj()]
    with mode:
        inside = fakes.fakes_apart(mode, real)
    twins, known = fakes.fakes_apart(mode, real), [fakes.fake_of(mode, tensor).detach() for tensor in real]
    described = [
        [(t.shape, t.stride(), t.storage_offset(), t.dtype, t.device, t.is_conj()) for t in found]
        for found in (twins, inside, known)
    ]
    keys = [torch._C._dispatch_keys(found[1]) for found in (twins, known)]
    return first_difference(
        ("what twins look like", described[0], described[2]),
        ("what twins made under a mode look like", described[1], described[2]),
        ("dispatch keys", keys[0], keys[1]),
        ("their mode", {fakes.mode_of(twin) for twin in twins}, {mode}),
        ("their storages", len({dispatch.storage_key(twin) for twin in twins}), len(twins)),
        ("what requires a gradient", any(twin.requires_grad for twin in twins), False),
    )


def check_reads_data() -> str | None:
    """C++ that reads a fake says so; another error is another one."""
    mode = fakes.new_fake_mode()
    try:
        torch.tensor_split(fakes.fake_of(mode, torch.ones(3)), fakes.fake_of(mode, torch.tensor([1, 2])))
    except RuntimeError as error:
        found = (fakes.reads_data(error), fakes.reads_data(RuntimeError("shapes differ")))
        return first_difference(("what the errors are", found, (True, False)))
    return "fakes are not read any more"


def check_sparse_fake() -> str | None:
    """The fake has the layout and size of the matrix, also while modes are active; transposed, CSR is CSC."""
    mode = fakes.new_fake_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layouts in beta
        matrices = [torch.ones(2, 3).to_sparse(), torch.ones(2, 3).to_sparse_csr()]
        with mode:
            found = [fakes.sparse_fake(mode, matrix) for matrix in matrices]
        described = [(fakes.is_fake(x), x.layout, tuple(x.shape), x.t().layout, tuple(x.t().shape)) for x in found]
    turned = (torch.sparse_coo, torch.sparse_csc)
    known = [(True, x.layout, (2, 3), layout, (3, 2)) for x, layout in zip(matrices, turned, strict=True)]
    return first_difference(("what the fakes are", described, known))


def check_parameter_of_fake() -> str | None:
    """The fake is a parameter from then on, and stays a fake."""
    mode = fakes.new_fake_mode()
    fake = fakes.parameter_of_fake(fakes.fake_apart(mode, torch.ones(2)))
    known = torch.nn.Parameter(fakes.fake_apart(mode, torch.ones(2)))
    kinds = [(isinstance(x, torch.nn.Parameter), fakes.is_fake(x), type(x), x.is_leaf) for x in (fake, known)]
    return first_difference(("what it is", kinds[0], kinds[1]))


def check_device_of_fake() -> str | None:
    """The device is that of the tensor that the fake stands for."""
    fake = fakes.fake_apart(fakes.new_fake_mode(), torch.ones(2))
    return first_difference(("the device", fakes.device_of_fake(fake), torch.device("cpu")))


def check_has_plain_bytes() -> str | None:
    """A fake of numbers that somebody knows, of complex ones, or with a gradient is not plain."""
    mode = fakes.new_fake_mode()
    plain = fakes.fake_apart(mode, torch.ones(2))
    others = [fakes.fake_apart(mode, torch.ones(2, dtype=torch.complex64)), torch.ones(2)]
    others += [fakes.fake_apart(mode, torch.ones(2)).requires_grad_()]
    found = [fakes.has_plain_bytes(tensor) for tensor in (plain, *others)]
    return first_difference(("answers", found, [True, False, False, False]))


def check_holds_numbers() -> str | None:
    """What is made of a literal holds its numbers, and an empty tensor none."""
    with fakes.new_fake_mode():
        found = (fakes.holds_numbers(torch.tensor(1)), fakes.holds_numbers(torch.empty(2)))
    return first_difference(("answers", found, (True, False)))


def check_hold_number() -> str | None:
    """A fake gives the number that it was told, and none any more once it was written."""
    with fakes.new_fake_mode(symbols.new_shape_env()):
        fake = torch.empty((), dtype=torch.int64)
        fakes.hold_number(fake, 3)
        found: list[object] = [fake.item(), int(fake)]
        fake.add_(1)
        try:
            found.append(type(fake.item()) is int)
        except fakes.DATA_DEPENDENT_ERRORS:
            found.append(False)
    return first_difference(("the numbers, and whether it is known later", found, [3, 3, False]))


def check_blank_fake() -> str | None:
    """New fakes look as they are told to, lie apart, and fill their memory."""
    mode = fakes.new_fake_mode()
    known = fakes.fake_apart(mode, torch.ones(2, 3).t())
    layout = fakes.Layout.of(known)
    made = [fakes.blank_fake(mode, layout) for _ in range(2)]
    return first_difference(
        ("the layouts", [fakes.Layout.of(fake) for fake in made], [layout, layout]),
        ("memory that is filled", [layout.fills(fake) for fake in made], [True, True]),
        ("dispatch keys", torch._C._dispatch_keys(made[0]), torch._C._dispatch_keys(known)),
        ("one storage", dispatch.storage_key(made[0]) == dispatch.storage_key(made[1]), False),
    )


def check_view_of_fake() -> str | None:
    """A view shares the storage of its base, and is another object of the same mode."""
    mode = fakes.new_fake_mode()
    base = fakes.fake_apart(mode, torch.ones(2, 3))
    layout = fakes.Layout((3,), (2,), 1, torch.float32, torch.device("cpu"))
    view = fakes.view_of_fake(mode, base, layout)
    return first_difference(
        ("the layout", fakes.Layout.of(view), layout),
        ("one storage", dispatch.storage_key(view) == dispatch.storage_key(base), True),
        ("the mode", fakes.mode_of(view), mode),
        ("the base", tuple(base.shape), (2, 3)),
    )


def check_kernels_for_symbolic_sizes() -> str | None:
    """Padding by a symbolic amount has a fake result."""
    mode = fakes.new_fake_mode(symbols.new_shape_env())
    twin = fakes.symbolic_fake_of(mode, torch.empty(5, 3), "x")
    with mode, fakes.kernels_for_symbolic_sizes():
        padded = torch.ops.aten.constant_pad_nd.default(twin, [0, twin.shape[0] % 4])
    return first_difference(("the padded size", int(padded.shape[1]), 4))


def check_attributes_set_on() -> str | None:
    """Torch sets no attributes on fakes but those of every fake, also on results and on parameters."""
    with fakes.new_fake_mode():
        made = torch.ones(3) * 2
        made.item_memo = None
        parameter = torch.nn.Parameter(made)
        before = [*fakes.attributes_set_on(made), *fakes.attributes_set_on(parameter)]
        made.name_of_mine = 1
    return first_difference(("before", before, []), ("after", fakes.attributes_set_on(made), ["name_of_mine"]))


def check_mode_of() -> str | None:
    """A fake knows its mode; a real tensor has none."""
    mode = fakes.new_fake_mode()
    found = [fakes.mode_of(tensor) is mode for tensor in (fakes.fake_of(mode, torch.ones(2)), torch.ones(2))]
    return first_difference(("the claims that it is the mode", found, [True, False]))


def check_fake_like() -> str | None:
    """Twins of two views of one tensor without numbers share a storage, at the views' offsets."""
    mode = fakes.new_fake_mode()
    base, made = torch.empty(2, 6, device="meta"), dict[int, torch.UntypedStorage]()
    twins = [fakes.fake_like(mode, view, torch.device("cpu"), made) for view in (base[:, 1::2], base[1])]
    described = [(tuple(t.shape), t.stride(), t.storage_offset(), t.device.type) for t in twins]
    return first_difference(
        ("what the twins are like", described, [((2, 3), (6, 2), 1, "cpu"), ((6,), (1,), 6, "cpu")]),
        ("a storage in common", dispatch.storage_key(twins[0]) == dispatch.storage_key(twins[1]), True),
    )


def check_failures_not_logged() -> str | None:
    """Torch logs operators that fail on fakes, unless it is told not to."""
    told: list[logging.LogRecord] = []
    counts = []
    with _only_handled_by(logging.getLogger("torch._subclasses.fake_tensor"), told.append):
        for quiet in (contextlib.nullcontext(), fakes.failures_not_logged()):
            with quiet, fakes.new_fake_mode(), contextlib.suppress(RuntimeError):
                torch.mm(torch.ones(2, 3), torch.ones(2, 3))
            counts.append(len(told))
    return first_difference(("logged", counts, [1, 1]))


@contextlib.contextmanager
def _only_handled_by(logger: logging.Logger, handle: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    """While active, errors of a logger go to `handle`, whatever the program has asked of its logs."""
    handler = logging.Handler()
    handler.emit = handle  # type: ignore[assignment, method-assign]
    settings = {"handlers": [handler], "propagate": False, "disabled": False}
    before, level, bound = {name: getattr(logger, name) for name in settings}, logger.level, logger.manager.disable
    vars(logger).update(settings)
    logger.setLevel(logging.ERROR)
    logging.disable(logging.NOTSET)
    try:
        yield
    finally:
        vars(logger).update(before)
        logger.setLevel(level)
        logging.disable(bound)


CHECKS = (
    check_failures_not_logged,
    check_attributes_set_on,
    check_mode_of,
    check_fake_like,
    check_kernels_for_symbolic_sizes,
    check_fake_apart,
    check_reads_data,
    check_sparse_fake,
    check_holds_numbers,
    check_hold_number,
    check_has_plain_bytes,
    check_blank_fake,
    check_view_of_fake,
    check_fakes_apart,
    check_parameter_of_fake,
    check_device_of_fake,
    check_symbolic_fake_of,
    check_new_fake_mode,
    check_new_symbolic_fake_mode,
    check_is_fake,
    check_writes_fake,
    check_fake_of,
    check_has_no_numbers,
    check_number_behind,
    check_data_dependent_errors,
    check_unknown_number,
    check_allow_real_inputs,
    check_keep_number,
    check_graph_fake_mode,
)
