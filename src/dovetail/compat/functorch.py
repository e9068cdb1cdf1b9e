"""The names of `functorch.compile`, with its signatures, on top of dovetail.

    from dovetail.compat.functorch import aot_function, ts_compile, min_cut_rematerialization_partition

Compilers are called with `(gm, example_inputs)`; what they return is boxed or plain. The partitioners are names here:
they say which split dovetail is to make. What has no meaning any more raises an error that says what to call instead.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import fx, nn

from dovetail.compat.described import get_inputs
from dovetail.compat.dumper import graph_dumper_aot
from dovetail.compat.script import write_script
from dovetail.compat.torchscript import simple_ts_compile, ts_compile
from dovetail.errors import CompilerUnavailable, NotYetSupported
from dovetail.frontends import aot
from dovetail.frontends.aot import make_boxed_compiler
from dovetail.frontends.function import CompiledFunction
from dovetail.inspect.draw import draw
from dovetail.inspect.graph_check import GraphChecker
from dovetail.inspect.minify import minify_module
from dovetail.torch_compat.boxed import boxed as make_boxed_func
from dovetail.torch_compat.decompositions import decompositions_of

__all__ = [
    "aot_function",
    "aot_module",
    "aot_module_simplified",
    "debug_compile",
    "debug_nop",
    "default_decompositions",
    "default_partition",
    "draw_graph_compile",
    "get_inputs",
    "graph_dumper_aot",
    "make_boxed_compiler",
    "make_boxed_func",
    "memory_efficient_fusion",
    "min_cut_rematerialization_partition",
    "minifier",
    "nnc_jit",
    "nop",
    "print_compile",
    "simple_ts_compile",
    "ts_compile",
]

Compiler = Callable[..., Any]

_aten = torch.ops.aten
_TAKEN_APART = """
    cudnn_batch_norm cudnn_batch_norm_backward elu elu_backward gelu_backward hardsigmoid hardsigmoid_backward hardswish
    hardswish_backward hardtanh hardtanh_backward leaky_relu leaky_relu_backward masked_fill sigmoid_backward
    silu_backward tanh_backward threshold_backward conj_physical detach is_same_size
"""
# Torch's own rules for operators that small backends do not know.
default_decompositions = decompositions_of(getattr(_aten, name) for name in _TAKEN_APART.split())


# --- partitions: names ------------------------------------------------------------------------------------------------


def default_partition(joint_module: fx.GraphModule, *args: Any, **kwargs: Any) -> NoReturn:
    """The split that saves what backward reads; pass it as `partition_fn`. Raises: CompilerUnavailable when called."""
    raise _only_a_name("default_partition", "default")


def min_cut_rematerialization_partition(joint_module: fx.GraphModule, *args: Any, **kwargs: Any) -> NoReturn:
    """The split that recomputes what is cheap; pass it as `partition_fn`. Raises: CompilerUnavailable when called."""
    raise _only_a_name("min_cut_rematerialization_partition", "min_cut")


_PARTITIONS: dict[object, str] = {default_partition: "default", min_cut_rematerialization_partition: "min_cut"}


def _partition_named(function: object) -> str | None:
    """The split that a partition function names: one of these, or functorch's own, with arguments given or not.

    Arguments choose the compiler for which functorch prepares its graphs, and how it searches: they change no result.
    """
    while isinstance(function, functools.partial):
        function = function.func
    if function in _PARTITIONS:
        return _PARTITIONS[function]
    is_functorchs = getattr(function, "__module__", "") == "torch._functorch.partitioners"
    known = {"default_partition": "default", "min_cut_rematerialization_partition": "min_cut"}
    return known.get(getattr(function, "__name__", "")) if is_functorchs else None


def _only_a_name(name: str, option: str) -> CompilerUnavailable:
    return CompilerUnavailable(
        name=f"{name}(joint_module, ...)",
        reason="it only names a split, and is not called",
        because="dovetail splits programs, not graph modules",
        hint=f'dovetail.aot_function(fn, fw_compiler, partition="{option}")',
    )


# --- entry points -----------------------------------------------------------------------------------------------------


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Callable[..., Any] = default_partition,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    num_params_buffers: int = 0,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    **others: Any,
) -> CompiledFunction:
    """`dovetail.aot_function` with functorch's signature.

    num_params_buffers and keep_inference_input_mutations change nothing: dovetail sees what is a parameter, and carries
    out writes by itself. others: `dynamic`; `enable_log`, which changes nothing. Raises: as `dovetail.aot_function`.
    """
    chosen = _chosen(partition_fn, decompositions, inference_compiler, others)
    return aot.aot_function(fn, fw_compiler, bw_compiler, **chosen)


def aot_module(mod: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """`dovetail.aot_module`; arguments as for `aot_function` here."""
    return aot.AotModule(mod, aot_function(mod, *args, **kwargs))


def aot_module_simplified(
    mod: nn.Module,
    args: Sequence[Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Callable[..., Any] = default_partition,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    **others: Any,
) -> Callable[..., Any]:
    """`dovetail.aot_module_simplified` with functorch's signature."""
    chosen = _chosen(partition_fn, decompositions, inference_compiler, others)
    return aot.aot_module_simplified(mod, args, fw_compiler, bw_compiler, **chosen)


def _chosen(
    partition_fn: Callable[..., Any],
    decompositions: Mapping[Any, Callable[..., Any]] | None,
    inference_compiler: Compiler | None,
    others: dict[str, Any],
) -> dict[str, Any]:
    others = dict(others)
    others.pop("enable_log", None)
    if others.pop("disable_functionalization", False):
        raise NotYetSupported(
            feature="disable_functionalization=True",
            reason="compilers are given functional graphs",
            hint="leave it out; dovetail.passes.reinplace(gm) in your compiler works in place again",
        )
    partition = _partition_named(partition_fn)
    if partition is None:
        raise NotYetSupported(
            feature="a partition function of functorch's kind",
            reason="dovetail splits programs, not graph modules",
            hint="pass default_partition or min_cut_rematerialization_partition, or a function of what to save as "
            "partition= of dovetail.aot_function",
        )
    return {
        "partition": partition,
        "decompositions": decompositions,
        "inference_compiler": inference_compiler,
        **others,
    }


def memory_efficient_fusion(fn: Callable[..., Any] | nn.Module, **kwargs: Any) -> Callable[..., Any]:
    """Compile with the split that recomputes what is cheap, and with torch's own kernels.

    kwargs: as for `aot_function`, over what is chosen here. Nothing is taken for granted about batch sizes.
    """
    chosen: dict[str, Any] = {
        "fw_compiler": nop,
        "partition_fn": min_cut_rematerialization_partition,
        **kwargs,
    }
    return aot_module(fn, **chosen) if isinstance(fn, nn.Module) else aot_function(fn, **chosen)


def nnc_jit(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled by `simple_ts_compile`."""
    return aot_function(f, simple_ts_compile)


# --- compilers --------------------------------------------------------------------------------------------------------


@make_boxed_compiler
def nop(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the graph as it is."""
    return gm


@make_boxed_compiler
def debug_nop(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the graph node by node, and hold each result against the node's `meta["val"]`.

    What it returns raises GraphMismatch, with the node and the user's line, where they differ.
    """
    return GraphChecker(gm).run


@make_boxed_compiler
def print_compile(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Print the code of the graph, and run it as it is."""
    sys.stdout.write(gm.code + "\n")
    return gm


def draw_graph_compile(name: str) -> Compiler:
    """A compiler that draws each graph and runs it as it is.

    name: the file, without its ending: `name.svg` and `name.dot` are written; the next graph's are `name_1.svg`, ...
    """
    count = 0

    @make_boxed_compiler
    def drawn(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        nonlocal count
        stem = Path(name if count == 0 else f"{name}_{count}")
        count += 1
        stem.parent.mkdir(parents=True, exist_ok=True)
        for ending in ("svg", "dot"):
            draw(gm, *inputs, to=stem.with_name(f"{stem.name}.{ending}"))
        return gm

    return drawn


@make_boxed_compiler
def debug_compile(
    gm: fx.GraphModule, inputs: Sequence[Any], *, folder: str | Path = "dovetail_debug"
) -> Callable[..., Any]:
    """Write a script that runs the graph by itself, say where, and run the graph as `debug_nop` does."""
    path = write_script(gm, inputs, folder, "graph", "A graph, as a compiler was given it.")
    sys.stdout.write(f"to run only this graph: python {path}\n")
    return GraphChecker(gm).run


# --- finding a small graph that fails ---------------------------------------------------------------------------------


def minifier(
    fail_f: fx.GraphModule,
    inps: Sequence[Any],
    module_fails: Callable[[fx.GraphModule, Sequence[Any]], bool],
    dump_state: Callable[[fx.GraphModule, Sequence[Any]], object] | None = None,
    **others: Any,
) -> tuple[fx.GraphModule, Sequence[Any]]:
    """The smallest part that is found of a graph module for which the checker says True, and its inputs.

    dump_state: called with the result. others: how functorch searches and what it keeps on disk; they change nothing.
    Raises: DoesNotFail when the checker does not say so of the whole; and as `dovetail.inspect.minify.minify_module`.
    """

    def check(module: fx.GraphModule, inputs: list[Any]) -> None:
        if module_fails(module, inputs):
            raise AssertionError("the checker says that it fails")

    found = minify_module(fail_f, inps, check)
    if dump_state is not None:
        dump_state(found.module, found.inputs)
    return found.module, found.inputs
