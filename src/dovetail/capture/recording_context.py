"""What holds while code is recorded on fakes: modes, stand-ins for what would leave a trace, and errors with names."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from dovetail.capture.eager_choices import eager_choices
from dovetail.capture.exclusive import recording_is_active
from dovetail.capture.generator import RecordedGenerator
from dovetail.capture.origins import OriginTracker
from dovetail.capture.packed_sequences import PackedSequences
from dovetail.capture.recorder import Recorder
from dovetail.capture.warned import warnings_noted
from dovetail.errors import (
    CaptureFailed,
    DataDependentControlFlow,
    DovetailError,
    GeneratorMadeInside,
    NoFakeKernel,
    UnsupportedHigherOrderOperator,
    UnsupportedTensor,
)
from dovetail.torch_compat.autograd import without_saved_tensor_hooks
from dovetail.torch_compat.control_flow import sub_programs_by_dynamo, traced_apart
from dovetail.torch_compat.data_parallel import forward_replaced
from dovetail.torch_compat.dynamo import compiled_functions_run_plainly
from dovetail.torch_compat.fakes import (
    DATA_DEPENDENT_ERRORS,
    FakeMode,
    allow_real_inputs,
    failures_not_logged,
    reads_data,
)
from dovetail.torch_compat.modes import kernel_switches
from dovetail.torch_compat.optimizers import lists_of_fakes
from dovetail.torch_compat.recurrent import runs_packed
from dovetail.torch_compat.rng import refused_generators, replaced_default_generators
from dovetail.torch_compat.symbols import data_dependent_sizes
from dovetail.torch_compat.traced_numbers import as_plain
from dovetail.torch_compat.zero_tensors import views_of_zero_fakes

_STACK_OF_CPP = "\nException raised from "
_WITHOUT_SYMBOLS = re.compile(
    r"on tensor with symbolic sizes|expected to contain only concrete integers|does not support symbolic shapes"
)
_NO_FAKE = re.compile(r"no fake impl registered for <CustomOpDef\((\S+)\)>")


@contextlib.contextmanager
def recording_on_fakes(
    recorder: Recorder,
    mode: FakeMode,
    origins: OriginTracker,
    around: AbstractContextManager[None],
    taken_apart: AbstractContextManager[Any],
) -> Iterator[None]:
    """While active, operators of this thread run on fakes and are recorded.

    around: entered once all but the recorder is active. taken_apart: entered last.
    Raises: DovetailError for whatever goes wrong, with the user's line.
    """

    def refuse_generator() -> None:
        raise GeneratorMadeInside(origin=origins.here())

    torch.clear_autocast_cache()
    recorder.switches = kernel_switches()
    try:
        with (
            named_errors(origins),
            failures_not_logged(),
            allow_real_inputs(mode),
            _autograd_of_fakes(),
            data_dependent_sizes(mode.shape_env),
            compiled_functions_run_plainly(),
            recording_is_active(),
            traced_apart(),
            sub_programs_by_dynamo(lambda graph, inputs: torch.fx.Interpreter(graph).run(*inputs)),
            mode,
            replaced_default_generators(partial(RecordedGenerator, recorder)),
            refused_generators(refuse_generator),
            PackedSequences(recorder.packed).recorded(),
            forward_replaced(recorder.data_parallel),
            eager_choices(),
            warnings_noted(),
            around,
            recorder,
            taken_apart,
        ):
            yield
            recorder.lent.check()
    finally:
        torch.clear_autocast_cache()


@contextlib.contextmanager
def _autograd_of_fakes() -> Iterator[None]:
    with (
        torch.autograd.set_multithreading_enabled(False),
        torch.autograd.set_detect_anomaly(False),  # it looks for NaN among numbers, which are not there
        lists_of_fakes(),
        views_of_zero_fakes(),
        without_saved_tensor_hooks(),  # they are for real tensors: a call's residuals go through them
    ):
        yield


@contextlib.contextmanager
def named_errors(origins: OriginTracker) -> Iterator[None]:
    """While active, whatever is raised is raised as an error of dovetail's, with the user's line."""
    try:
        yield
    except DovetailError:
        raise
    except DATA_DEPENDENT_ERRORS as error:
        raise DataDependentControlFlow(origin=origins.of_error(error)) from error
    except Exception as error:
        if reads_data(error):
            raise DataDependentControlFlow(origin=origins.of_error(error)) from error
        is_refusal = isinstance(error, AssertionError | NotImplementedError)
        operator = origins.higher_order_operator(error) if is_refusal else ""
        if operator:
            raise UnsupportedHigherOrderOperator(operator=operator, origin=origins.of_error(error)) from error
        if runs_packed(error):
            raise UnsupportedTensor(
                name="the input of a recurrent layer",
                kind="a packed sequence",
                hint="give the layer the padded batch, and mask what lies behind the lengths; or compile the model by "
                "torch.compile(model, backend='dovetail'), which leaves the layer to eager mode",
                origin=origins.of_error(error),
            ) from error
        told = _told(error)
        unregistered = _NO_FAKE.search(told)
        if unregistered is not None:
            raise NoFakeKernel(operator=unregistered[1], origin=origins.of_error(error)) from error
        if "NestedTensorImpl" in told:
            raise UnsupportedTensor(
                name="a batch with its padding left out",
                kind="a nested tensor",
                hint="make the encoder with nn.TransformerEncoder(..., enable_nested_tensor=False), or set its "
                "use_nested_tensor = False; or make nested tensors outside the compiled function",
                origin=origins.of_error(error),
            ) from error
        raise CaptureFailed(error=told, origin=origins.of_error(error)) from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | GeneratorExit):  # somebody else's, who waits for no recording
            raise
        raise CaptureFailed(error=_told(error), origin=origins.of_error(error)) from error


def _told(error: BaseException) -> str:
    """What an error says. Numbers and tensors in it are not asked: it is not the code that turns them into text."""
    parts = [type(x).__name__ if isinstance(x, torch.Tensor) else as_plain(x) for x in error.args]
    is_plain = all(part is x for part, x in zip(parts, error.args, strict=True))
    text = str(error).partition(_STACK_OF_CPP)[0] if is_plain else ", ".join(map(str, parts))
    return f"{type(error).__name__}: {text}"


class TakenOtherwise(Exception):
    """The code cannot do with what it was given: whoever records the call is to take it otherwise."""


def wants_known_sizes(error: BaseException | None) -> bool:
    """Whether code of torch's raised because sizes are symbols: eager mode, which knows them, would not."""
    return isinstance(error, RuntimeError) and _WITHOUT_SYMBOLS.search(str(error)) is not None
