"""What a node calls, as text and back: `torch.ops.aten.add.Tensor`, `operator.mul`, `prims.view_scatter(...)`.

Reading executes nothing: of Python's expressions, only names of operators, functions of numbers, primitives and what
makes those from operators and literals are understood.
"""

from __future__ import annotations

import ast
import builtins
import math
import operator
from typing import Any

import torch

from dovetail.ir.prim import Prim
from dovetail.ir.program import Target
from dovetail.ir.text import operator_text
from dovetail.ops import prims
from dovetail.torch_compat.dispatch import HigherOrder, Overload, Packet, schema_of
from dovetail.torch_compat.symbols import number_function_text

# What makes primitives from operators; `Prim.python` calls these.
_MAKERS = frozenset({"functional_form", "view_scatter", "in_grad_mode", "flat_results", "packed_linear", "packed_conv"})
_MAX_TEXT = 20_000
_FILE = "filename"  # what operators call a file that they read or write


def target_text(target: Target) -> str:
    """Text for `read_target`. Raises: ValueError for a target that has none."""
    python = getattr(target, "python", None)
    text = python if isinstance(python, str) else None
    if isinstance(target, HigherOrder) or (text or "").startswith("torch.ops.higher_order."):
        raise ValueError(f"{text or operator_text(target)} calls sub-programs")
    if text is None and (isinstance(target, Overload) or number_function_text(target) is not None):
        text = operator_text(target)
    if text is None:
        raise ValueError(f"{target!r} is no operator with a name")
    read_target(text)
    return text


def read_target(text: str) -> Any:
    """What `target_text` wrote.

    Raises: ValueError for other text, a name that this torch does not have, and operators that read or write files.
    """
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise ValueError("what names an operator is a short text")
    try:
        tree = ast.parse(text, mode="eval").body
        found = _read(tree)
    except ValueError:
        raise
    except Exception as error:  # the makers of primitives are called with whatever the text says
        raise ValueError(f"{text!r} names no operator: {type(error).__name__}: {error}") from error
    if isinstance(found, Overload) and any(argument.name == _FILE for argument in schema_of(found).arguments):
        raise ValueError(f"{text!r} is no operator that a file may name: it reads or writes files")
    is_function = callable(found) and number_function_text(found) is not None
    if not isinstance(found, Overload | Prim) and not is_function:
        raise ValueError(f"{text!r} names no operator")
    return found


def _read(tree: ast.expr) -> Any:
    if isinstance(tree, ast.Name):
        return _named(tree.id)
    if isinstance(tree, ast.Attribute):
        return _attribute(_read(tree.value), tree.attr)
    if isinstance(tree, ast.Call) and not tree.keywords:
        return _called(tree)
    if isinstance(tree, ast.Tuple | ast.List | ast.Constant | ast.UnaryOp):
        return _literal(tree)
    raise ValueError(f"{ast.unparse(tree)!r} is no name of an operator")


def _named(name: str) -> Any:
    spaces = {"torch": torch, "operator": operator, "math": math, "prims": prims}
    if name in spaces:
        return spaces[name]
    found = getattr(builtins, name, None)
    if callable(found) and number_function_text(found) == name:
        return found
    raise ValueError(f"{name!r} is not known")


def _attribute(space: Any, name: str) -> Any:
    """One step of a dotted name, from namespaces of operators and from modules of functions of numbers only."""
    if space is torch and name == "ops":
        return torch.ops
    is_namespace = space is torch.ops or isinstance(space, Packet) or type(space).__module__ == "torch._ops"
    if is_namespace and not isinstance(space, Overload | HigherOrder):
        return getattr(space, name)
    if space is prims:
        found = getattr(prims, name)
        if isinstance(found, Prim) or name in _MAKERS:
            return found
    elif space in (torch, operator, math):
        found = getattr(space, name)
        if callable(found) and number_function_text(found) is not None:
            return found
    raise ValueError(f"{name!r} is no operator")


def _called(tree: ast.Call) -> Any:
    if isinstance(tree.func, ast.Name) and tree.func.id == "getattr" and len(tree.args) == 2:
        space, name = tree.args  # an overload whose name is a word of Python's
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            return _attribute(_read(space), name.value)
    maker = tree.func
    if isinstance(maker, ast.Attribute) and maker.attr in _MAKERS:
        return _read(maker)(*map(_read, tree.args))
    raise ValueError(f"{ast.unparse(tree)!r} is no primitive")


def _literal(tree: ast.expr) -> Any:
    if isinstance(tree, ast.Tuple):
        return tuple(map(_read, tree.elts))
    if isinstance(tree, ast.List):
        return list(map(_read, tree.elts))
    return ast.literal_eval(tree)
