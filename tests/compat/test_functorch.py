"""The names of functorch.compile: each does what it says, or raises an error that says what to call instead."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

from dovetail.artifact.call import load_call
from dovetail.compat import dumper
from dovetail.compat import functorch as compat
from dovetail.errors import (
    BadOptionValue,
    CompilerUnavailable,
    DovetailError,
    NotAGraphModule,
    NotYetSupported,
    UnknownOption,
)
from dovetail.inspect.replay import replay
from dovetail.pipeline.options import Options

pytestmark = pytest.mark.usefixtures("alone")


def step(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.silu(x @ w).sum()


def operands(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 3, dtype=dtype, requires_grad=True), torch.randn(3, 4, dtype=dtype, requires_grad=True)


def gradients(call: Callable[..., Tensor], **options: Any) -> list[Tensor]:
    x, w = operands(**options)
    loss = call(x, w)
    loss.backward()
    assert x.grad is not None
    assert w.grad is not None
    return [loss.detach(), x.grad, w.grad]


def assert_as_eager(call: Callable[..., Tensor], close: bool = False) -> None:
    compare = torch.allclose if close else torch.equal
    assert all(compare(a, b) for a, b in zip(gradients(step), gradients(call), strict=True))


def test_every_public_name_is_documented() -> None:
    for name in compat.__all__:
        assert getattr(compat, name).__doc__, name


# --- compilers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", [compat.nop, compat.debug_nop, compat.print_compile], ids=lambda c: c.__name__)
def test_compilers_that_run_the_graph(compiler: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert_as_eager(compat.aot_function(step, compiler))
    assert_as_eager(compat.aot_function(step, compiler, compiler, decompositions=None))
    assert ("torch.ops.aten.mm" in capsys.readouterr().out) == (compiler is compat.print_compile)


@pytest.mark.parametrize("compiler", [compat.ts_compile, compat.simple_ts_compile], ids=lambda c: c.__name__)
def test_torchscript_takes_graphs_only(compiler: Callable[..., Any]) -> None:
    with pytest.raises(NotAGraphModule, match="a int"):
        compiler(3, 4)


@pytest.mark.parametrize("compiler", [compat.ts_compile, compat.simple_ts_compile], ids=lambda c: c.__name__)
def test_torchscript(compiler: Any) -> None:
    assert_as_eager(compat.aot_function(step, compiler), close=True)
    decomposed = compat.aot_function(step, compiler, decompositions=compat.default_decompositions)
    assert_as_eager(decomposed, close=True)


def test_nnc_jit() -> None:
    assert_as_eager(compat.nnc_jit(step), close=True)


def test_what_torchscript_does_not_take_is_one_line_with_the_replacement() -> None:
    compiled = compat.aot_function(nn.functional.dropout, compat.ts_compile)
    with pytest.raises(
        CompilerUnavailable, match=r"no operator functional_aten_bernoulli(.|\n)*dovetail.compile\(fn\)"
    ):
        compiled(torch.ones(3))


def test_without_torchscript(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.jit, "script")
    with pytest.raises(CompilerUnavailable, match=r"no TorchScript(.|\n)*torch\.compile"):
        compat.aot_function(step, compat.ts_compile)(*operands())


def test_default_decompositions() -> None:
    assert torch.ops.aten.silu_backward.default in compat.default_decompositions
    targets: list[object] = []

    def compiler(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        targets.extend(node.target for node in gm.graph.nodes)
        return gm

    call = compat.aot_function(step, compiler, decompositions=compat.default_decompositions)
    assert_as_eager(call, close=True)
    assert torch.ops.aten.silu_backward.default not in targets


def test_boxing() -> None:
    given = [1, 2]
    assert compat.make_boxed_func(lambda a, b: a - b)(given) == -1
    assert given == []
    assert_as_eager(compat.aot_function(step, compat.make_boxed_compiler(lambda gm, inputs: gm)))


# --- entry points ------------------------------------------------------------------------------------


def test_aot_module_and_its_simplified_form() -> None:
    layer = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    module = compat.aot_module(layer, compat.nop)
    simplified = compat.aot_module_simplified(layer, [x], compat.nop, keep_inference_input_mutations=True)
    assert torch.equal(module(x), layer(x))
    assert torch.equal(simplified(x), layer(x))
    assert [id(p) for p in module.parameters()] == [id(p) for p in layer.parameters()]


def test_arguments_of_old() -> None:
    call = compat.aot_function(
        step, compat.nop, partition_fn=compat.default_partition, num_params_buffers=0, enable_log=False, dynamic=True
    )
    assert_as_eager(call)
    with pytest.raises(NotYetSupported, match="functional graphs"):
        compat.aot_function(step, compat.nop, disable_functionalization=True)
    with pytest.raises(NotYetSupported, match="partition function"):
        compat.aot_function(step, compat.nop, partition_fn=lambda joint, inputs: (joint, joint))


@pytest.mark.parametrize(
    ("function", "name"),
    [(compat.default_partition, "default"), (compat.min_cut_rematerialization_partition, "min_cut")],
)
def test_partitioners_are_names(function: Any, name: str) -> None:
    with pytest.raises(CompilerUnavailable, match=f'partition="{name}"'):
        function(torch.fx.symbolic_trace(lambda x: x), [], num_fwd_outputs=1)


def test_memory_efficient_fusion() -> None:
    assert_as_eager(compat.memory_efficient_fusion(step, partition_fn=compat.default_partition))
    if "partition" in Options.__slots__:
        assert_as_eager(compat.memory_efficient_fusion(step))
        assert_as_eager(compat.memory_efficient_fusion(nn.Identity()) and compat.memory_efficient_fusion(step))
    else:  # until the split is part of dovetail
        with pytest.raises(UnknownOption, match="partition"):
            compat.memory_efficient_fusion(step)


# --- files -------------------------------------------------------------------------------------------


def test_draw_graph_compile(tmp_path: Path) -> None:
    name = str(tmp_path / "drawn" / "graph")
    assert_as_eager(compat.aot_function(step, compat.draw_graph_compile(name)))
    files = sorted(path.name for path in (tmp_path / "drawn").iterdir())
    assert files == ["graph.dot", "graph.svg", "graph_1.dot", "graph_1.svg"]
    texts = [e.text or "" for e in ElementTree.parse(f"{name}.svg").iter() if e.tag.endswith("text")]
    assert any("aten.mm.default" in text for text in texts)


def run_script(path: Path) -> str:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_debug_compile_writes_scripts_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def dropped(x: Tensor, w: Tensor) -> Tensor:
        return nn.functional.dropout(x.t().contiguous() * 2, 0.0).t() @ w

    def with_prims(x: Tensor, w: Tensor) -> Tensor:
        return nn.functional.dropout(x @ w, 0.5).sum()

    assert_as_eager(compat.aot_function(step, compat.debug_compile))
    compat.aot_function(with_prims, compat.debug_compile)(*operands())
    compat.aot_function(dropped, compat.debug_compile)(*operands())
    scripts = sorted((tmp_path / "dovetail_debug").glob("graph_*.py"))
    assert len(scripts) == 4
    assert all(str(path.name) in capsys.readouterr().out for path in scripts[:1])
    assert "0 () torch.float32" in run_script(scripts[0])
    assert "functional_aten_bernoulli" in scripts[2].read_text()
    run_script(scripts[2])


@pytest.mark.parametrize("with_inputs", [False, True])
def test_graph_dumper_aot(tmp_path: Path, with_inputs: bool) -> None:
    backend = compat.graph_dumper_aot("model", tmp_path, with_inputs)
    call = torch.compile(step, backend=backend)
    assert_as_eager(call)
    folder = tmp_path / "model"
    for kind in ("joint", "forward", "backward"):
        stem = folder / f"model_{kind}_0"
        data = json.loads(stem.with_suffix(".json").read_text())
        assert data["kind"] == kind
        made = compat.get_inputs(stem.with_suffix(".json"))
        assert [list(x.shape) for x in made] == [entry["shape"] for entry in data["inputs"]]
        assert "torch.ops.aten." in stem.with_suffix(".py").read_text()
        assert stem.with_suffix(".inputs.safetensors").exists() == (with_inputs and kind != "joint")
    if with_inputs:
        saved = load_call(folder / "model_forward_0.inputs.safetensors")
        assert any(torch.equal(item, operands()[0]) for item in saved)
    rows = {row.program: row for row in replay(tmp_path)}
    assert {name: row.verdict for name, row in rows.items()} == {
        "model_joint_0": "ran",
        "model_forward_0": "equal" if with_inputs else "ran",
        "model_backward_0": "equal" if with_inputs else "ran",
    }
    run_script(folder / "model_forward_0.py")


def test_dumps_never_collide(tmp_path: Path) -> None:
    for factor in (2, 3):
        torch.compiler.reset()
        backend = compat.graph_dumper_aot("same", tmp_path)
        torch.compile(lambda x, factor=factor: x * factor, backend=backend)(torch.ones(2))
    texts = {(tmp_path / "same" / f"same_forward_{n}.py").read_text() for n in (0, 1)}
    assert len(texts) == 2


def test_an_empty_graph_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend = compat.graph_dumper_aot("empty", tmp_path)
    gm = torch.fx.symbolic_trace(lambda x: (x,))
    x = torch.ones(2)
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert backend(gm, [x])(x)[0] is x
    assert "no operators" in caplog.text
    assert "It is empty" in (tmp_path / "empty" / "empty_forward_0.py").read_text()
    assert json.loads((tmp_path / "empty" / "empty_forward_0.json").read_text())["empty"] is True


def test_what_the_dumper_refuses(tmp_path: Path) -> None:
    for name in ("", "a/b", ".."):
        with pytest.raises(BadOptionValue, match="current_name"):
            compat.graph_dumper_aot(name, tmp_path)


def test_nothing_is_pickled() -> None:
    for module in (compat, dumper):
        text = Path(str(module.__file__)).read_text()
        assert "import pickle" not in text
        assert "torch.save" not in text


def test_get_inputs_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(b"\x80\x04pickled")
    with pytest.raises(ValueError, match="does not describe the inputs"):
        compat.get_inputs(path)


def test_errors_are_dovetail_s() -> None:
    assert issubclass(CompilerUnavailable, DovetailError)
