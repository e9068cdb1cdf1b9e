"""Bring your own compiler: dovetail records, functionalizes, splits and wraps; the code is somebody else's.

    def compiler(gm, example_inputs):       # fakes and numbers; gm is functional, over ATen operators
        return gm                           # or anything that is called like it

    compiled = dovetail.aot_function(fn, compiler)

What the caller sees is what `dovetail.compile` gives: writes to inputs, aliases, gradients and random numbers as in
eager mode. See docs/backends.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import fx, nn

from dovetail.errors import BadOptionValue
from dovetail.execute.foreign import Compiler, Compilers
from dovetail.frontends.backend import compile_graph
from dovetail.frontends.function import CompiledFunction
from dovetail.frontends.function import compile as compile_function
from dovetail.partition.problem import Problem
from dovetail.pipeline.driver import PASS_NAMES
from dovetail.pipeline.options import resolve_options
from dovetail.torch_compat.boxed import boxed
from dovetail.torch_compat.decompositions import by_overload

Partition = str | Callable[[Problem], Collection[int]]


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
    """Compile a function with compilers of your own.

    Args:
        fn: as for `dovetail.compile`.
        fw_compiler: called with the forward half, an `fx.GraphModule` of functional ATen operators, and a list of fakes
            and numbers that describe its inputs. Returns a callable for the same inputs that gives the same outputs;
            one that is boxed (see `make_boxed_compiler`) takes a list, which it may empty. With a keyword-only
            parameter `signature`, it is also given the `GraphSignature` of the half.
        bw_compiler: the same for the backward half, when backward first runs; `fw_compiler` by default.
        partition: "default" saves what backward reads; "min_cut" recomputes what is cheap, "auto" what is cheap beside
            the step; a function is given the
            `partition.problem.Problem` and returns the numbers of the items to save.
        decompositions: rules by which operators are taken apart, by overload or packet; results are then the rules'.
        inference_compiler: for calls without gradients; `fw_compiler` by default.
        donate: names or positions of arguments (of a module: of its `forward`), all tensors of which each call gives
            away: contents are lost, and results may lie there. A compiler finds them in `signature.donated`, and may
            write those.
        options: as for `dovetail.compile`; and `joint`, shown (gm, example_inputs) of programs before their split.
    Returns: a callable with the function's arguments.
    Raises: BadOptionValue, BadDonation; when it is called, BadCompiler, BadCompiledResult, and UnusableDonation where
        a donated tensor is passed twice, or lies in the same storage as another one of the call.
    """
    joint = options.pop("joint", None)
    chosen = _options(fw_compiler, bw_compiler, inference_compiler, partition, decompositions, donate, joint)
    return compile_function(fn, **{**options, **chosen})


def aot_module(mod: nn.Module, fw_compiler: Compiler, *args: Any, **kwargs: Any) -> AotModule:
    """Compile a module with compilers of your own.

    Args: as for `aot_function`. Returns: a module with `mod` inside, as `orig_module`, whose parameters it shares.
    Raises: as `aot_function`, and BadOptionValue for what is no module.
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
    """Compile a module for these arguments at once: the last line of a back end for `torch.compile`.

    Args:
        mod: one of Dynamo's graph modules, or any module.
        args: arguments of a call; tensors may be fake, and numbers symbolic, where Dynamo's are.
        the others: as for `aot_function`.
    Returns: a callable with the module's arguments.
    Raises: as `aot_function`.
    """
    joint = options.pop("joint", None)
    chosen = _options(fw_compiler, bw_compiler, inference_compiler, partition, decompositions, donate, joint)
    is_bare = isinstance(mod, fx.GraphModule) and not [*mod.parameters(), *mod.buffers()]
    if isinstance(mod, fx.GraphModule) and is_bare:  # what Dynamo makes: everything is an argument
        return compile_graph(mod, args, resolve_options({**options, **chosen}, PASS_NAMES))
    return compile_function(mod, args, **{**options, **chosen})


def make_boxed_compiler(compiler: Compiler) -> Compiler:
    """A compiler whose code takes its arguments as one list, and empties it.

    Code that takes a list by itself, and lets go of what it has read, is marked by `_boxed_call = True` and stays as it
    is: only there an input can die at its last use. Arguments of other code live until it returns.
    """

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
            expected = "a function (gm, example_inputs) -> callable"
            raise BadOptionValue(option=name, value=compiler, reason="it is called", expected=expected)
    compilers = Compilers(
        forward=fw_compiler,
        backward=bw_compiler or fw_compiler,
        inference=inference_compiler or fw_compiler,
        joint=joint,
        decompositions=by_overload(decompositions) if decompositions else None,
    )
    return {"compilers": compilers, "partition": partition, "donate": donate}
