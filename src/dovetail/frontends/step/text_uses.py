"""What a step's code does with texts that it makes of computed numbers: they may be joined, given to host calls, and
returned. Comparing one, measuring it or cutting it would be done once, with marks in the place of numbers.

The code is read as it is written: from each expression that made such a text, upwards to what takes it, and along
local variables. Whatever is not known to leave the text whole is refused.
"""

from __future__ import annotations

import ast
import dis
from collections.abc import Callable, Sequence
from string import Formatter
from types import CodeType
from typing import Any

from dovetail.capture.step_recorder import StepRecorder
from dovetail.capture.step_texts import Source, Texts
from dovetail.errors import UnsupportedStep
from dovetail.frontends.step.syntax import ANYWHERE, FORM, Span, Tree, span_at, tree_of
from dovetail.ir.program import Origin

_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.DictComp)
_MAKERS = frozenset(("str", "repr", "format"))
_JOINERS = frozenset(("join", "format", "format_map"))
_HOLDING = frozenset(
    ("append", "extend", "insert", "items", "values", "copy", "join", "format", "format_map", "update")
)


class TextUses:
    """Looks at the uses of the texts of one recording."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._hosts = {(code, span_at(code, at)) for code, at in texts.hosts}
        self._made = {(code, span_at(code, at)) for code, at in texts.makers}
        self._calls = {(code, span_at(code, at)) for code, at in texts.calls}
        self._done: set[tuple[int, bool]] = set()
        self._code: Any = None

    def check(self) -> None:
        """Raises: UnsupportedStep where a text is used in a way that could show what stands in it."""
        if self._texts.lost is not None:
            raise _refusal(_origin(self._texts.lost.code, span_at(self._texts.lost.code, self._texts.lost.at)))
        for source in self._texts.sources:
            self._source(source)

    def _source(self, source: Source) -> None:
        code = self._code = source.code
        tree = tree_of(code)
        if tree is None:
            raise _refusal(_origin(code, span_at(code, source.at)))
        if source.variable:
            scope = tree.scope_of(code)
            if scope is None:
                raise _refusal(_origin(code, ANYWHERE))
            self._variable(tree, scope, source.variable, source.holds)
            return
        span = span_at(code, source.at)
        if (code, span) in self._hosts:
            return
        node = tree.at(span)
        if node is None or (isinstance(node, ast.Call) and not self._is_maker(node, code, span)):
            raise _refusal(_origin(code, span))
        parent = tree.parents.get(node)
        if dis.opname[code.co_code[source.at]].startswith("FOR_ITER"):  # a generator gives one
            if not isinstance(parent, ast.For | ast.comprehension):
                raise _refusal(_origin(code, span))
            self._target(tree, parent.target, source.holds)
            return
        self._up(tree, node, source.holds)

    def _is_maker(self, node: ast.Call, code: CodeType, span: Span) -> bool:
        """Whether a call only makes text, or is of a function of the user's, whose own code is looked at."""
        function = node.func
        if (code, span) in self._made or (isinstance(function, ast.Attribute) and function.attr in _JOINERS):
            return True
        if isinstance(function, ast.Name) and function.id in _MAKERS:
            return function.id not in self._texts.variables.get(code, {})
        return self._calls_users(node)

    def _calls_users(self, node: ast.Call) -> bool:
        """Whether a function of the user's was called here, whose arguments and results were followed."""
        file, end = self._code.co_filename, (node.end_lineno, node.end_col_offset)
        return any(code.co_filename == file and (span[1], span[3]) == end for code, span in self._calls)

    # --- upwards

    def _up(self, tree: Tree, node: ast.AST, holds: bool) -> None:
        """Look at what takes the value of an expression. holds: it may be a container of texts, or what made one."""
        if (id(node), holds) in self._done:
            return
        self._done.add((id(node), holds))
        parent = tree.parents.get(node)
        for kinds, look in _TAKERS:
            if isinstance(parent, kinds):
                look(self, tree, node, parent, holds)
                return
        if not self._ends(parent, node):
            self._refuse(node)

    def _formatted(self, tree: Tree, node: ast.AST, parent: Any, holds: bool) -> None:
        if parent.value is not node or parent.format_spec is not None or parent.conversion == 97:
            self._refuse(node)
        self._up(tree, parent, False)

    def _joined(self, tree: Tree, node: ast.AST, parent: Any, holds: bool) -> None:
        self._up(tree, parent, False)

    def _operated(self, tree: Tree, node: ast.AST, parent: Any, holds: bool) -> None:
        if not self._is_joined(parent, node):
            self._refuse(parent)
        self._up(tree, parent, holds)

    def _contained(self, tree: Tree, node: ast.AST, parent: Any, holds: bool) -> None:
        if (isinstance(parent, ast.Dict) and node not in parent.values) or getattr(parent, "key", None) is node:
            self._refuse(node)
        self._up(tree, parent, True)

    def _chosen(self, tree: Tree, node: ast.AST, parent: Any, holds: bool) -> None:
        if not (isinstance(parent, ast.IfExp) and parent.test is node):
            self._up(tree, parent, holds)

    def _iterated(self, tree: Tree, node: ast.AST, parent: Any, holds: bool) -> None:
        if parent.iter is not node or not holds:
            self._refuse(node)
        self._target(tree, parent.target, False)

    def _subscripted(self, tree: Tree, node: ast.AST, parent: Any, holds: bool) -> None:
        if parent.value is not node or not holds or not isinstance(parent.ctx, ast.Load | ast.Store):
            self._refuse(parent)
        if isinstance(parent.ctx, ast.Load):
            self._up(tree, parent, False)

    @staticmethod
    def _ends(parent: ast.AST | None, node: ast.AST) -> bool:
        """Whether nothing more becomes of a value here, or what does is followed while the code runs."""
        if isinstance(parent, ast.Compare):  # with None
            others = [x for x in (parent.left, *parent.comparators) if x is not node]
            return all(isinstance(op, ast.Is | ast.IsNot) for op in parent.ops) and all(
                isinstance(x, ast.Constant) and x.value is None for x in others
            )
        if isinstance(parent, ast.If | ast.While | ast.Assert):
            return parent.test is node or isinstance(parent, ast.Assert)
        if isinstance(parent, ast.UnaryOp):
            return isinstance(parent.op, ast.Not)
        return isinstance(parent, ast.Expr | ast.Return | ast.Yield | ast.Raise | ast.Lambda)

    def _is_joined(self, parent: ast.BinOp, node: ast.AST) -> bool:
        """Whether an operator only puts texts, or lists of them, together."""
        if isinstance(parent.op, ast.Add):
            return True
        if isinstance(parent.op, ast.Mult):
            return parent.left is node or parent.right is node
        return isinstance(parent.op, ast.Mod) and (parent.left is node or _is_plain_template(parent.left))

    def _given(self, tree: Tree, node: ast.AST, parent: Any, holds: bool) -> None:
        """A value is an argument of a call."""
        at: ast.AST | None = parent
        while isinstance(at, ast.keyword | ast.Starred):
            at = tree.parents.get(at)
        if isinstance(at, ast.Tuple | ast.List) and isinstance(parent, ast.Starred):
            self._up(tree, at, True)
            return
        if not isinstance(at, ast.Call):
            self._refuse(node)
            return
        if tree.is_host(at, self._hosts):
            return
        above = tree.parents.get(at)
        function = at.func
        if isinstance(above, ast.Raise):
            return
        if _makes_text(function, holds):
            self._up(tree, at, False)
        elif isinstance(function, ast.Attribute) and function.attr in ("append", "extend"):
            self._put_into(tree, function.value)
        elif not self._calls_users(at):
            self._refuse(at)

    def _method(self, tree: Tree, node: ast.AST, parent: Any, holds: bool) -> None:
        """An attribute of a value is taken: a method that is called."""
        call, name = tree.parents.get(parent), str(parent.attr)
        if not isinstance(call, ast.Call) or call.func is not parent:
            self._refuse(parent)
        elif name in _JOINERS:
            self._up(tree, call, False)
        elif not holds or name not in _HOLDING:
            self._refuse(parent)
        elif name in ("items", "values", "copy"):
            self._up(tree, call, True)

    def _put_into(self, tree: Tree, container: ast.AST) -> None:
        """A text is put into a container: one of the function's own, which is looked at then."""
        scope = tree.scope_around(container)
        if not isinstance(container, ast.Name) or not _is_made_here(scope, container.id):
            self._refuse(container)
            return
        self._variable(tree, scope, container.id, True)

    def _assigned(self, tree: Tree, node: ast.AST, parent: Any, holds: bool) -> None:
        targets: Sequence[ast.AST] = getattr(parent, "targets", None) or [getattr(parent, "target", parent)]
        if isinstance(parent, ast.AugAssign) and not isinstance(parent.op, ast.Add):
            self._refuse(parent)
        for target in targets:
            if isinstance(target, ast.Subscript):
                self._put_into(tree, target.value)
            else:
                self._target(tree, target, holds)
        if isinstance(parent, ast.NamedExpr):
            self._up(tree, parent, holds)

    def _target(self, tree: Tree, target: ast.AST, holds: bool) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                self._target(tree, part, False)
        elif isinstance(target, ast.Name):
            self._variable(tree, tree.scope_around(target), target.id, holds)
        else:
            self._refuse(target)

    def _variable(self, tree: Tree, scope: ast.AST, name: str, holds: bool) -> None:
        """Look at every use of a local variable."""
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            self._refuse(scope)
        for inner in ast.walk(scope):
            if isinstance(inner, ast.Global | ast.Nonlocal) and name in inner.names:
                self._refuse(inner)
            if isinstance(inner, ast.Name) and inner.id == name and isinstance(inner.ctx, ast.Load):
                if not _is_in(tree, inner, scope):
                    self._refuse(inner)
                self._up(tree, inner, holds)

    def _refuse(self, node: ast.AST) -> None:
        line = getattr(node, "lineno", self._code.co_firstlineno)
        raise _refusal(Origin(self._code.co_filename, line, self._code.co_name))


def check_texts(recorder: StepRecorder) -> None:
    """Look at the texts of a recording. Raises: UnsupportedStep, and the numbers in texts are to blame."""
    try:
        TextUses(recorder.texts).check()
    except UnsupportedStep:
        recorder.blame_texts()
        raise


_TAKERS: tuple[tuple[Any, Callable[[TextUses, Tree, ast.AST, Any, bool], None]], ...] = (
    (ast.FormattedValue, TextUses._formatted),
    (ast.JoinedStr, TextUses._joined),
    (ast.BinOp, TextUses._operated),
    ((ast.Call, ast.keyword, ast.Starred), TextUses._given),
    ((ast.List, ast.Tuple, ast.Dict, *_COMPREHENSIONS), TextUses._contained),
    ((ast.IfExp, ast.BoolOp), TextUses._chosen),
    ((ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr), TextUses._assigned),
    ((ast.For, ast.comprehension), TextUses._iterated),
    (ast.Attribute, TextUses._method),
    (ast.Subscript, TextUses._subscripted),
)


def _makes_text(function: ast.AST, holds: bool) -> bool:
    """Whether a call of what is written so puts its arguments into a text as they are."""
    if isinstance(function, ast.Name):
        return function.id == "str" and not holds
    if isinstance(function, ast.Attribute):
        return function.attr == "join" or (
            function.attr in ("format", "format_map") and _is_plain_format(function.value)
        )
    return False


def _refusal(origin: Origin) -> UnsupportedStep:
    return UnsupportedStep(
        what="looks into a text that it makes of numbers which it computes",
        why="the numbers are not known while the step is captured: texts of them can be printed, logged, joined and "
        "returned",
        hint="compare or measure the number itself, or do it in a function marked with dovetail.host_call",
        origin=origin,
    )


def _origin(code: CodeType, span: Span) -> Origin:
    return Origin(code.co_filename, span[0] or code.co_firstlineno, code.co_name)


def _is_in(tree: Tree, node: ast.AST, scope: ast.AST) -> bool:
    """Whether a node belongs to a function itself, or to a comprehension in it."""
    return tree.scope_around(node) is scope


def _is_made_here(scope: ast.AST, name: str) -> bool:
    """Whether a local variable only ever is a new list or dictionary."""
    values = [
        assigned.value
        for assigned in ast.walk(scope)
        if isinstance(assigned, ast.Assign | ast.AnnAssign)
        for target in (assigned.targets if isinstance(assigned, ast.Assign) else [assigned.target])
        if isinstance(target, ast.Name) and target.id == name
    ]
    return bool(values) and all(
        isinstance(value, ast.List | ast.Dict | ast.ListComp | ast.DictComp) for value in values
    )


def _is_plain_template(node: ast.AST) -> bool:
    """Whether a format for `%` puts texts in as they are."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    texts = [match for match in FORM.finditer(node.value) if match["kind"] in "sra"]
    return all(match["width"] is None and "." not in match[0] and match["kind"] == "s" for match in texts)


def _is_plain_format(node: ast.AST) -> bool:
    """Whether a format of `str.format` puts texts in as they are."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    return all(not spec and conversion in (None, "s") for _, _, spec, conversion in Formatter().parse(node.value))
