"""Errors about compilers that users bring along, and about the old entry points for them."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class BadCompiler(DovetailError):
    """A compiler of the user's did not return something that can be called."""

    code = "DT-COMPILER-001"
    summary = "compiler {compiler!r} returned {what} for {program}, which cannot be called."
    because = "what it returns is called in place of the graph module that it was given"
    way_out = "return a callable that takes the inputs of the graph; the graph module itself is one"
    rows = ()


class BadCompiledResult(DovetailError):
    """Code from a compiler of the user's returned something else than its graph does."""

    code = "DT-COMPILER-002"
    summary = "what compiler {compiler!r} made of {program} {what}; expected {expected}."
    because = "the wrapper and the other half take the outputs of the graph by position, as the graph describes them"
    way_out = "return a tuple with every output of the graph, in order; debug_nop of compat.functorch checks a graph"
    rows = ()


class GraphMismatch(DovetailError):
    """A node of a graph gave something else than its meta data says."""

    code = "DT-COMPILER-003"
    summary = "node {name}: {what}: the graph says {expected}, running gives {found}."
    because = '`meta["val"]` of the node describes its result, and compilers rely on it'
    way_out = "run fake tensor propagation after changing a graph; {hint}"
    rows = ("node", "origin")


class CompilerUnavailable(DovetailError):
    """An entry point of old needs something that this torch does not have."""

    code = "DT-COMPILER-004"
    summary = "{name} does not work here: {reason}."
    because = "{because}"
    way_out = "{hint}"
    rows = ()
