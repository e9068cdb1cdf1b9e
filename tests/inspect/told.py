"""What the instruments say about small things: the texts that golden files hold."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import dovetail
from dovetail import cli
from dovetail.inspect.bisect import bisect
from dovetail.inspect.draw import draw
from dovetail.inspect.minify import minify
from dovetail.inspect.minify_oracles import Failure, FailureKind
from dovetail.ir.fx_lift import lift
from dovetail.ir.program import Node, Program
from dovetail.ir.text import Names, plain_call
from dovetail.passes import plan_inplace
from tests.inspect import explained

aten = torch.ops.aten


class WrongTanh:
    """An executor that is wrong about one operator."""

    name = "wrong_tanh"

    def claim(self, node: Node) -> bool:
        """Takes tanh, in place or not."""
        return node.target in (aten.tanh.default, aten.tanh_.default)

    def call(self, names: Names, node: Node) -> str:
        """Ten percent too much."""
        return f"{plain_call(names, node)}.mul_(1.1)"


def _smooth(x: Tensor, w: Tensor) -> Tensor:
    y = torch.relu(x @ w)
    new = torch.lerp(x, y, 0.1)
    x.copy_(new)
    return y.sum()


def _dumped(folder: str) -> None:
    """A training step of equal weights and inputs."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    with torch.no_grad():
        for weight in net.parameters():
            weight.fill_(0.5)
    compiled = dovetail.compile(net, dump=folder, dump_calls=True)
    compiled(torch.ones(2, 4)).sum().backward()


def replayed() -> str:
    """What the command prints."""
    with tempfile.TemporaryDirectory() as folder:
        _dumped(folder)
        return _command("replay", folder)


def bisected() -> str:
    """An executor's mistake."""
    with tempfile.TemporaryDirectory() as folder:
        _dumped(folder)
        (report, *_) = bisect(folder, executors=[WrongTanh()])
        return _plain(str(report))


def agreed() -> str:
    """Where nothing is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        _dumped(folder)
        return _command("bisect", folder)


def minified() -> str:
    """Four operators, one of which fails."""
    x = torch.ones(3, 3)
    program: Program = lift(make_fx(lambda x: (x.sin() @ x).exp().sum())(x), (x,)).program

    def fails(candidate: Program, inputs: list[object]) -> Failure | None:
        is_there = any(node.target is aten.exp.default for node in candidate.nodes)
        return Failure(FailureKind.DIFFERS, "numbers", "off by 1") if is_there else None

    return str(minify(program, [x], fails))


def drawn() -> str:
    """A graph, as it was traced."""
    return draw(make_fx(_smooth)(torch.ones(4, 4), torch.ones(4, 4)))


def planned_in_place() -> str:
    """What could be done in place in it."""
    return plan_inplace(make_fx(_smooth)(torch.ones(4, 4), torch.ones(4, 4))).explain()


def _command(*arguments: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        try:
            cli.main(arguments)
        except SystemExit as ended:
            out.write(f"exit status {ended.code or 0}\n")
    return _plain(out.getvalue())


def _plain(text: str) -> str:
    """Without what differs between runs: numbers of compilations, folders, the widths that follow from them."""
    text = re.sub(r"\b\d{3}-(?=[A-Z])", "NNN-", text)
    text = re.sub(r"(\S*/)?(tests/inspect/\w+\.py|nn/modules/\w+\.py)", r"\2", text)
    text = re.sub(r"off by \S+ before", "off by E before", text)  # rounding, which kernels differ in
    return "\n".join(line.rstrip() for line in text.splitlines())


TEXTS: dict[str, Callable[[], str]] = {
    **{
        make.__name__: lambda make=make: make().text(times=False)
        for make in (
            explained.explained_net,
            explained.explained_cut,
            explained.explained_write,
            explained.explained_copy,
        )
    },
    **{make.__name__: make for make in (replayed, bisected, agreed, minified, drawn, planned_in_place)},
}
