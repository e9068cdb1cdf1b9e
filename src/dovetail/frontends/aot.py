"""Bring your own compiler: dovetail records, functionalizes, splits and wraps; the generated code is yours.

    def compiler(gm, example_inputs):       # fakes and numbers; gm is functional, over ATen operators
        return gm                           # or anything that is called like it

    compiled = dovetail.aot_function(fn, compiler)

Callers see the same as with `dovetail.compile`: writes to inputs, aliases, gradients and random numbers as in
eager mode. See docs/backends.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from dovetail.errors import BadOptionValue, UnsupportedTensor
from dovetail.execute.foreign import Compiler, Compilers
from dovetail.frontends.backend import compile_graph
from dovetail.frontends.function import CompiledFunction
from dovetail.frontends.function import compile as compile_function
from dovetail.frontends.targets import arguments_of_call
from dovetail.partition.problem import Problem
from dovetail.pipeline.doors import AOT
from dovetail.pipeline.driver import PASS_NAMES
from dovetail.pipeline.options import resolve_options
from dovetail.torch_compat.boxed import boxed
from dovetail.torch_compat.decompositions import by_overload
from dovetail.torch_compat.fakes import new_fake_mode
from dovetail.torch_compat.symbols import concrete_layout

Partition = str | Callable[[Problem], Collection[int]]
_COMPILER = "a function (gm, example_inputs) -> callable"


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    *,
    partition: Partition = "default",
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    inference_compiler: Compiler | None = None,
    donate: str | int | Iterable[str | int] = (),
    **options: Any,
) -> CompiledFunction:
    """Compile a function with your own compilers.

    Args:
        fn: as for `dovetail.compile`.
        fw_compiler: called with the forward half, an `fx.GraphModule` of functional ATen operators, and a list of fake
            tensors and numbers that describe its inputs. Returns a callable with the same inputs and outputs; a boxed
            one (see `make_boxed_compiler`) takes a list, which it may empty. If it has a keyword-only parameter
            `signature`, it also receives the `GraphSignature` of the half.
        bw_compiler: the same for the backward half, called when backward first runs. Default: `fw_compiler`.
        partition: "default" saves everything that backward reads; "min_cut" recomputes what is cheap, "auto" what is
            cheap relative to the step. A function receives the `partition.problem.Problem` and returns the numbers of
            the items to save.
        decompositions: rules that replace operators, by overload or packet; results are then those of the rules.
        inference_compiler: for calls without gradients. Default: `fw_compiler`.
        donate: names or positions of arguments (for a module, of its `forward`) whose tensors each call may overwrite
            with results. A compiler finds them in `signature.donated`, and may write those.
        options: as for `dovetail.compile`; and `joint`, which is called with (gm, example_inputs) of each program
            before its split.

    Returns:
        A callable with the function's arguments.

    Raises:
        BadOptionValue, BadDonation: an option is wrong.
        BadCompiler, BadCompiledResult: in a call, a compiler or its code misbehaves.
        UnusableDonation: in a call, a donated tensor is passed twice, or shares its storage with another argument.
    """
    joint = options.pop("joint", None)
    resolve_options(options, PASS_NAMES, AOT)
    chosen = _options(fw_compiler, bw_compiler, inference_compiler, partition, decompositions, donate, joint)
    return compile_function(fn, **{**options, **chosen})


def aot_module(mod: nn.Module, fw_compiler: Compiler, *args: Any, **kwargs: Any) -> AotModule:
    """Compile a module with your own compilers.

    Args:
        mod: the module.
        fw_compiler: this and the other arguments are those of `aot_function`.

    Returns:
        A module that holds `mod` as `orig_module`, and shares its parameters.

    Raises:
        BadOptionValue: `mod` is not a module.
        DovetailError: as for `aot_function`.
    """
    if not isinstance(mod, nn.Module):
        raise BadOptionValue(option="mod", value=mod, reason="it is called as a module", expected="a torch.nn.Module")
    return AotModule(mod, aot_function(mod, fw_compiler, *args, **kwargs))


class AotModule(nn.Module):
    """A module that calls the compiled one; see `aot_module`."""

    def __init__(self, mod: nn.Module, compiled: CompiledFunction) -> None:
        super().__init__()
        self.orig_module = mod
        self._compiled = compiled
        self.train(mod.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled module."""
        return self._compiled(*args, **kwargs)


def aot_module_simplified(
    mod: nn.Module,
    args: Sequence[Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    *,
    partition: Partition = "default",
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    inference_compiler: Compiler | None = None,
    donate: str | int | Iterable[str | int] = (),
    **options: Any,
) -> Callable[..., Any]:
    """Compile a module for these arguments at once: the last line of a backend for `torch.compile`.

    Args:
        mod: a Dynamo graph module, or any module.
        args: arguments of a call. Tensors may be fake and numbers symbolic, if Dynamo's are.
        fw_compiler: this and the other arguments are those of `aot_function`.

    Returns:
        A callable with the module's arguments.

    Raises:
        DovetailError: as for `aot_function`.
    """
    joint = options.pop("joint", None)
    resolve_options(options, PASS_NAMES, AOT)
    chosen = _options(fw_compiler, bw_compiler, inference_compiler, partition, decompositions, donate, joint)
    args = arguments_of_call("args", args)
    is_bare = isinstance(mod, fx.GraphModule) and not [*mod.parameters(), *mod.buffers()]
    if isinstance(mod, fx.GraphModule) and is_bare:  # what Dynamo makes: everything is an argument
        return compile_graph(mod, args, resolve_options({**options, **chosen}, PASS_NAMES))
    if any(map(_is_symbolic, args)):
        args = [_as_first_seen(item) if _is_symbolic(item) else item for item in args]
        options.setdefault("dynamic", True)
    return compile_function(mod, args, **{**options, **chosen})


def _is_symbolic(item: object) -> bool:
    return isinstance(item, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in (*item.shape, *item.stride()))


def _as_first_seen(tensor: torch.Tensor) -> torch.Tensor:
    """A fake of the sizes that one of symbolic sizes was made with. Raises: UnsupportedTensor where there are none."""
    shape, stride = concrete_layout(tensor)
    if any(number is None for number in (*shape, *stride)):
        hint = "pass an example of the sizes that it may have"
        raise UnsupportedTensor(name="an argument", kind="a tensor whose sizes depend on data", hint=hint)
    with new_fake_mode():
        made = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)  # type: ignore[arg-type]
    return made.requires_grad_(tensor.requires_grad)


def make_boxed_compiler(compiler: Compiler) -> Compiler:
    """A compiler whose code takes its arguments as one list, and empties it.

    Code that takes a list by itself, and frees what it has read, is marked by `_boxed_call = True` and left unchanged:
    only such code can free an input at its last use. Arguments of other code live until it returns.

    Raises: BadOptionValue where it is no function.
    """
    if not callable(compiler):
        raise BadOptionValue(option="compiler", value=compiler, reason="it is called", expected=_COMPILER)

    @functools.wraps(compiler)
    def compile_boxed(*args: Any, **kwargs: Any) -> Any:
        made = compiler(*args, **kwargs)
        return boxed(made) if callable(made) else made

    return compile_boxed


def _options(
    fw_compiler: Compiler,
    bw_compiler: Compiler | None,
    inference_compiler: Compiler | None,
    partition: Partition,
    decompositions: Mapping[Any, Callable[..., Any]] | None,
    donate: str | int | Iterable[str | int],
    joint: Any,
) -> dict[str, object]:
    given = {"bw_compiler": bw_compiler, "inference_compiler": inference_compiler, "joint": joint}
    for name, compiler in (("fw_compiler", fw_compiler), *((n, c) for n, c in given.items() if c is not None)):
        if not callable(compiler):
            raise BadOptionValue(option=name, value=compiler, reason="it is called", expected=_COMPILER)
    compilers = Compilers(
        forward=fw_compiler,
        backward=bw_compiler or fw_compiler,
        inference=inference_compiler or fw_compiler,
        joint=joint,
        decompositions=by_overload(decompositions) if decompositions else None,
    )
    return {"compilers": compilers, "partition": partition, "donate": donate}
