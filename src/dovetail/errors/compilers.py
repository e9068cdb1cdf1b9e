"""Errors about user-supplied compilers, and about the older entry points for them."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class BadCompiler(DovetailError):
    """A user-supplied compiler returned something that is not callable."""

    code = "DT-COMPILER-001"
    summary = "compiler {compiler!r} returned {what} for {program}, which is not callable."
    because = "the return value is called instead of the graph module that the compiler was given"
    way_out = "return a callable that takes the inputs of the graph, such as the graph module itself"
    rows = ()


class BadCompiledResult(DovetailError):
    """Code from a user-supplied compiler returned something other than its graph would."""

    code = "DT-COMPILER-002"
    summary = "the code that compiler {compiler!r} made for {program} {what}; expected {expected}."
    because = "the caller takes the outputs by position, as the graph describes them"
    way_out = "return a tuple with every output of the graph, in order; debug_nop in compat.functorch checks a graph"
    rows = ()


class GraphMismatch(DovetailError):
    """The result of a node does not match the node's metadata."""

    code = "DT-COMPILER-003"
    summary = "node {name}: {what}: the graph says {expected}, running it gives {found}."
    because = '`meta["val"]` of the node describes its result, and compilers rely on it'
    way_out = "run fake tensor propagation after changing the graph; {hint}"
    rows = ("node", "origin")


class CompilerUnavailable(DovetailError):
    """An older entry point needs something that this torch does not have."""

    code = "DT-COMPILER-004"
    summary = "{name} does not work here: {reason}."
    because = "{because}"
    way_out = "{hint}"
    rows = ()
