"""The syntax of the code that runs: which expression an instruction was made of, and what is around it."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType, ModuleType
from typing import Any

Span = tuple[int, int, int, int]
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module, ast.ClassDef)
FORM = re.compile(r"%(?:\((?P<key>[^)]*)\))?[#0\- +]*(?P<width>\*|\d+)?(?:\.(?:\*|\d+))?[hlL]?(?P<kind>[a-zA-Z%])")
ANYWHERE: Span = (0, 0, 0, 0)


class Tree:
    """The syntax of a file. parents: of each node."""

    def __init__(self, root: ast.Module, file: str) -> None:
        self.root = root
        self.file = file
        self.parents: dict[ast.AST, ast.AST] = {}
        self._by_span: dict[Span, ast.AST] = {}
        self._calls: dict[tuple[int, int], ast.Call] = {}
        for node in ast.walk(root):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            if isinstance(node, ast.expr):
                self._by_span.setdefault(span_of(node), node)
                if isinstance(node, ast.Call):
                    self._calls[node.end_lineno or 0, node.end_col_offset or 0] = node

    def at(self, span: Span) -> ast.AST | None:
        """The outermost expression that is written there."""
        return self._by_span.get(span) or self._calls.get((span[1], span[3]))

    def is_host(self, call: ast.Call, hosts: set[tuple[CodeType, Span]]) -> bool:
        """Whether a call was one of those that host calls were noted in."""
        return any(self.at(span) is call and code.co_filename == self.file for code, span in hosts)

    def scope_of(self, code: CodeType) -> ast.AST | None:
        """The function that code is of."""
        for node in ast.walk(self.root):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                if first == code.co_firstlineno:
                    return node
            if isinstance(node, ast.Lambda) and code.co_name == "<lambda>" and node.lineno == code.co_firstlineno:
                return node
        return None

    def scope_around(self, node: ast.AST) -> ast.AST:
        """The function, class or file that a node is in."""
        at = self.parents[node]
        while not isinstance(at, SCOPES):
            at = self.parents[at]
        return at


def span_at(code: CodeType, at: int) -> Span:
    """Where an instruction is written: lines, columns."""
    line, end, column, end_column = next(islice(code.co_positions(), at // 2, None))
    if line is None or end is None or column is None or end_column is None:
        return ANYWHERE
    return line, end, column, end_column


def span_of(node: ast.AST) -> Span:
    at: Any = node
    return at.lineno, at.end_lineno, at.col_offset, at.end_col_offset


def tree_of(code: CodeType) -> Tree | None:
    """The syntax of the file that code is from; None where it cannot be had, or is not the code's any more."""
    found = _parsed(code.co_filename, "".join(linecache.getlines(code.co_filename)))
    if found is None:
        return None
    tree, codes = found
    same = codes.get((code.co_name, code.co_firstlineno), ())
    return tree if code.co_code in same else None


@lru_cache(maxsize=32)
def _parsed(file: str, source: str) -> tuple[Tree, Mapping[tuple[str, int], Sequence[bytes]]] | None:
    try:
        root = ast.parse(source, file)
        whole = compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    codes: dict[tuple[str, int], list[bytes]] = {}
    for code in _codes(whole):
        codes.setdefault((code.co_name, code.co_firstlineno), []).append(code.co_code)
    return (Tree(root, file), codes) if source else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def percent_formats(frame: FrameType) -> list[str]:
    """The formats of the `%` that a frame is in the middle of; none where that is another instruction."""
    code = frame.f_code
    tree = tree_of(code)
    node = None if tree is None else tree.at(span_at(code, frame.f_lasti))
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mod):
        return []
    text = _held(node.left, frame)
    if not isinstance(text, str) or "*" in text:
        return []
    return list(dict.fromkeys(re.sub(r"\([^)]*\)", "", m[0]) for m in FORM.finditer(text) if m["kind"] != "%"))


def is_calling(frame: FrameType, function: Any) -> bool:
    """Whether what a frame is in the middle of is written as a call of this function.

    It may be in code of C instead, which the frame has called, and which calls the function.
    """
    tree = tree_of(frame.f_code)
    node = None if tree is None else tree.at(span_at(frame.f_code, frame.f_lasti))
    return isinstance(node, ast.Call) and _held(node.func, frame) is function


def _held(node: ast.AST, frame: FrameType) -> Any:
    """What an expression is: a constant, a variable, an attribute or an item of one. None where that runs code."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        holder = _held(node.value, frame)
        if isinstance(holder, ModuleType):
            return vars(holder).get(node.attr)
        found = inspect.getattr_static(holder, node.attr, None)
        return found if type(found) is str or not hasattr(type(found), "__get__") else None
    if isinstance(node, ast.Subscript):
        holder, key = _held(node.value, frame), _held(node.slice, frame)
        if type(holder) in (dict, list, tuple) and type(key) in (str, int):
            return next((x for k, x in _items(holder) if k == key), None)
    return None


def _items(holder: Any) -> Iterator[tuple[Any, Any]]:
    return iter(dict.items(holder)) if type(holder) is dict else enumerate(holder)
