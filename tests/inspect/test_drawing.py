"""Drawings parse, whatever is in the graph, and large graphs are drawn fast."""

from __future__ import annotations

import time
from xml.etree import ElementTree

import pytest
import torch
from torch import fx

from dovetail.inspect.drawing import dot_text, svg_text

_ODD = ("a,a->a", 'say "x"', "naïve ☃ \U0001f600", "{a|b} <c> & d", "back\\slash\nnext", "\x00\x1b", "\ud800")


def holding(text: str) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.einsum, (text, x)))
    return fx.GraphModule(torch.nn.Module(), fx.Graph()) if not text else _module(graph)


def _module(graph: fx.Graph) -> fx.GraphModule:
    made = fx.GraphModule(torch.nn.Module(), fx.Graph())
    made.graph.output(made.graph.graph_copy(graph, {}))
    return made


@pytest.mark.parametrize("text", _ODD, ids=range(len(_ODD)))
def test_any_text_is_well_formed(text: str) -> None:
    gm = holding(text)
    root = ElementTree.fromstring(svg_text(gm, text))
    assert root.tag.endswith("svg")
    lines = dot_text(gm, text).splitlines()
    assert all(line.replace("\\\\", "").replace('\\"', "").count('"') % 2 == 0 for line in lines)


def test_every_node_and_use_is_drawn() -> None:
    gm = fx.symbolic_trace(lambda x, y: (x + y).relu() * x)
    root = ElementTree.fromstring(svg_text(gm))
    kinds = [element.tag.rpartition("}")[2] for element in root.iter()]
    uses = sum(len(node.all_input_nodes) for node in gm.graph.nodes)
    assert kinds.count("path") == uses
    assert kinds.count("text") == len(gm.graph.nodes) + 1
    assert dot_text(gm).count("->") == uses


def test_five_thousand_nodes() -> None:
    graph = fx.Graph()
    last = graph.placeholder("x")
    for _ in range(5000):
        last = graph.call_function(torch.neg, (last,))
    graph.output(last)
    start = time.perf_counter()
    text = svg_text(fx.GraphModule(torch.nn.Module(), graph))
    assert time.perf_counter() - start < 5
    ElementTree.fromstring(text)
