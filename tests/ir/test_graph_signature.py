"""Signatures in names: read off programs, compared with torch.export's, there and back."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import graph_signature as export

import dovetail
from dovetail.capture.recording import Recording
from dovetail.errors import UnsupportedSignature
from dovetail.ir.export_signature import from_export_signature, to_export_signature
from dovetail.ir.graph_signature import GraphSignature
from dovetail.ir.program import Program
from dovetail.ir.signature import SizeInput, UserInput, WriteKind
from dovetail.ir.signature_entries import Argument, ArgumentKind, InputEntry, InputPurpose, OutputEntry, OutputPurpose

# torch.export copies the structure of its arguments, and asks for a class that torch itself calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


class Mlp(nn.Module):
    """Two layers around a batch norm; counts its calls, scales by a tensor it closes over, and writes an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 2)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """f32[batch, 4] to f32[batch, 2]."""
        self.calls.add_(1)
        seen.add_(1)
        result: Tensor = self.last(torch.relu(self.norm(self.first(x))))
        return result


NON_PERSISTENT = ("calls",)


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4), torch.zeros(2)


def compiled_signature(module: nn.Module) -> GraphSignature:
    with torch.no_grad():
        program = dovetail.compile(module, inputs()).graphs[0].forward.program
    return GraphSignature.of(program, non_persistent=NON_PERSISTENT)


def exported_signature(module: nn.Module) -> export.ExportGraphSignature:
    return torch.export.export(copy.deepcopy(module), inputs()).run_decompositions({}).graph_signature


@pytest.fixture
def joint(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Every program of forward and backward that is made."""
    found: list[Program] = []
    original = Recording.programs

    def programs(self: Recording, *args: Any) -> Any:
        made = original(self, *args)
        found.append(made.functional)
        return made

    monkeypatch.setattr(Recording, "programs", programs)
    return found


# --- against torch.export ---------------------------------------------------------------------------------------------


def test_a_module_has_the_signature_that_export_gives_it() -> None:
    module = Mlp()
    mine, theirs = compiled_signature(module), exported_signature(module)
    assert sorted(mine.parameters) == sorted(theirs.parameters) == sorted(n for n, _ in module.named_parameters())
    assert sorted(mine.buffers) == sorted(theirs.buffers) == sorted(n for n, _ in module.named_buffers())
    assert tuple(mine.non_persistent_buffers) == tuple(theirs.non_persistent_buffers) == NON_PERSISTENT
    assert sorted(mine.inputs_to_parameters.values()) == sorted(theirs.inputs_to_parameters.values())
    assert sorted(mine.inputs_to_buffers.values()) == sorted(theirs.inputs_to_buffers.values())
    assert set(mine.buffers_to_mutate.values()) == set(theirs.buffers_to_mutate.values())
    assert set(mine.buffers_to_mutate.values()) == {
        "calls",
        "norm.num_batches_tracked",
        "norm.running_mean",
        "norm.running_var",
    }
    assert mine.parameters_to_mutate == dict(theirs.parameters_to_mutate) == {}
    assert mine.user_inputs == ("arg_0", "arg_1")
    assert tuple(theirs.user_inputs) == ("x", "seen")
    assert list(mine.user_inputs_to_mutate.values()) == ["arg_1"]
    assert list(theirs.user_inputs_to_mutate.values()) == ["seen"]
    assert len(mine.user_outputs) == len(theirs.user_outputs) == 1
    assert (mine.input_tokens, mine.output_tokens) == ((), ())


def test_to_export_says_what_export_says() -> None:
    module = Mlp()
    mine, theirs = to_export_signature(compiled_signature(module)), exported_signature(module)
    renamed = {"arg_0": "x", "arg_1": "seen"}

    def said(signature: export.ExportGraphSignature, outputs: bool) -> set[tuple[Any, ...]]:
        if outputs:
            return {(s.kind, renamed.get(str(s.target), s.target)) for s in signature.output_specs}
        return {(s.kind, s.target, s.persistent, type(s.arg)) for s in signature.input_specs}

    assert said(mine, False) == said(theirs, False)
    assert said(mine, True) == said(theirs, True)
    assert mine.backward_signature is None
    assert [type(spec.arg) for spec in mine.output_specs] == [export.TensorArgument] * len(mine.output_specs)


# --- roles ------------------------------------------------------------------------------------------------------------


def test_a_forward_half_in_words() -> None:
    layer = nn.Linear(3, 2)
    program = dovetail.compile(layer, (torch.ones(1, 3),)).graphs[0].forward.program
    assert str(GraphSignature.of(program)).splitlines() == [
        "inputs",
        "  weight_0: parameter 'weight'",
        "  bias_1: parameter 'bias'",
        "  arg_0: user input 0",
        "outputs",
        "  addmm: user output 0",
        "  arg_0: saved tensor 'arg_0'",
    ]


def test_a_joint_program_knows_its_gradients_and_its_loss(joint: list[Program]) -> None:
    module = Mlp()
    x, seen = inputs()
    x.requires_grad_()
    dovetail.compile(lambda x, seen: module(x, seen).square().mean(), (x, seen))
    (program,) = joint
    signature = GraphSignature.of(program)
    names = {f"module.{name}" for name, _ in module.named_parameters()}
    assert {name.rpartition("module.")[2] for name in signature.gradients_to_parameters.values()} == {
        name.removeprefix("module.") for name in names
    }
    assert list(signature.gradients_to_user_inputs.values()) == ["arg_0"]
    assert signature.tangents == {"tangent_0": 0}
    assert signature.loss_output == signature.user_outputs[0] == program.outputs[0].name  # type: ignore[attr-defined]
    assert GraphSignature.of(program, loss=5).loss_output is None
    with pytest.raises(UnsupportedSignature, match=r"input tangent_0 \(gradient that arrives for user output 0\)"):
        to_export_signature(signature)
    exported = to_export_signature(signature, tangents_as_user_inputs=True)
    backward = exported.backward_signature
    assert backward is not None
    assert backward.loss_output == signature.loss_output
    assert backward.gradients_to_parameters == signature.gradients_to_parameters
    assert backward.gradients_to_user_inputs == signature.gradients_to_user_inputs


def test_a_loss_is_not_guessed(joint: list[Program]) -> None:
    x = torch.ones(2, requires_grad=True)
    dovetail.compile(lambda x: (x * 2, (x * 3).sum()), (x,))
    dovetail.compile(lambda x: x * 2, (x,))
    assert [GraphSignature.of(program).loss_output for program in joint] == [
        None,  # the gradients of both outputs
        joint[1].outputs[1].name,  # type: ignore[attr-defined]
        None,
    ]


def test_halves_of_a_training_graph() -> None:
    compiled = dovetail.compile(nn.Linear(3, 2))
    compiled(torch.ones(1, 3)).sum().backward()
    (graph,) = compiled.graphs
    assert graph.backward_for is not None
    backward = graph.backward_for(((0, 0),)).program.program
    with pytest.raises(UnsupportedSignature, match=r"the backward half .* by itself"):
        GraphSignature.of(backward)
    signature = GraphSignature.of(backward, forward=graph.forward.program)
    assert set(signature.gradients_to_parameters.values()) == {"weight", "bias"}
    assert [e.target for e in signature.inputs if e.purpose is InputPurpose.RESIDUAL] == list(graph.residuals)
    with pytest.raises(UnsupportedSignature, match=r"input arg_0 \(saved tensor 'arg_0'\) cannot be expressed"):
        to_export_signature(signature)
    with pytest.raises(UnsupportedSignature, match=r"output arg_0 \(saved tensor 'arg_0'\) cannot be expressed"):
        to_export_signature(GraphSignature.of(graph.forward.program))


def test_shared_memory_has_no_word_in_export() -> None:
    compiled = dovetail.compile(lambda x, y: (x.add_(1), y * 2)[1:])
    base = torch.ones(6)
    compiled(base[:4], base[2:])
    signature = GraphSignature.of(compiled.graphs[0].forward.program)
    assert "shared_0: memory shared by arg_0, arg_1" in str(signature)
    assert list(signature.user_inputs_to_mutate.values()) == ["arg_0"]
    with pytest.raises(UnsupportedSignature, match=r"input shared_0 .* cannot be expressed in .*torch.export"):
        to_export_signature(signature)


def test_closed_over_tensors_sizes_and_hidden_writes() -> None:
    scale = torch.ones(3)

    def f(x: Tensor) -> tuple[Tensor, int]:
        x.data.mul_(scale)
        return x * 2, x.size(0)

    program = dovetail.compile(f, (torch.ones(2, 3),), dynamic=True).graphs[0].forward.program
    signature = GraphSignature.of(program)
    assert list(signature.inputs_to_constants.values()) == ["constant_0"]
    mutation = next(e for e in signature.outputs if e.purpose is OutputPurpose.MUTATION)
    assert (mutation.of, mutation.target, mutation.write) == (InputPurpose.USER_INPUT, "arg_0", WriteKind.HIDDEN)
    assert mutation.what() == "new contents of user input 'arg_0'"
    constant = next(s for s in to_export_signature(signature).input_specs if s.target == "constant_0")
    assert constant.kind is export.InputKind.CONSTANT_TENSOR


def test_gradients_that_do_not_exist_have_no_word_in_export(joint: list[Program]) -> None:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    dovetail.compile(lambda x, y: x.sum(), (x, y))
    signature = GraphSignature.of(joint[0])
    assert list(signature.gradients_to_user_inputs.values()) == ["arg_0"]
    assert "  None: gradient of user input 'arg_1'" in str(signature)
    with pytest.raises(UnsupportedSignature, match="there every gradient is a tensor"):
        to_export_signature(signature, tangents_as_user_inputs=True)


# --- there and back ---------------------------------------------------------------------------------------------------


EVERYTHING = GraphSignature(
    tuple(InputEntry(Argument(f"i{n}"), purpose, f"t{n}", n, n % 2 == 0) for n, purpose in enumerate(InputPurpose))
    + tuple(
        InputEntry(Argument(f"k{n}", kind), InputPurpose.USER_INPUT, index=n) for n, kind in enumerate(ArgumentKind)
    )
    + (InputEntry(Argument("shared"), InputPurpose.SHARED_BYTES, members=("i1", "i2")),),
    tuple(
        OutputEntry(Argument("", ArgumentKind.CONSTANT, value), purpose, InputPurpose.BUFFER, "b", 3, write, True)
        for purpose in OutputPurpose
        for write in WriteKind
        for value in (None, True, 3, 0.5, "text")
    ),
)


def test_json_there_and_back() -> None:
    for signature in (EVERYTHING, compiled_signature(Mlp())):
        text = json.dumps(signature.to_json())
        assert GraphSignature.from_json(json.loads(text)) == signature


@pytest.mark.parametrize(
    "data",
    [
        None,
        3,
        {},
        {"inputs": [{}], "outputs": []},
        {"inputs": [], "outputs": [{"name": "x", "purpose": "none"}]},
        {"inputs": [{"name": "x", "purpose": "buffer", "colour": 1}], "outputs": []},
    ],
)
def test_other_data_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="not a serialised signature"):
        GraphSignature.from_json(data)


def test_there_and_back_through_export() -> None:
    theirs = exported_signature(Mlp())
    mine = from_export_signature(theirs)
    assert to_export_signature(mine) == theirs
    assert from_export_signature(to_export_signature(mine)) == mine
    assert set(mine.buffers_to_mutate.values()) == set(theirs.buffers_to_mutate.values())
    assert mine.user_inputs == tuple(theirs.user_inputs)
    assert mine.user_outputs == tuple(theirs.user_outputs)


def test_every_kind_of_export_there_and_back() -> None:
    tensor, token = export.TensorArgument("t"), export.TokenArgument("k")
    numbers = [export.SymIntArgument("s0"), export.SymFloatArgument("f0"), export.SymBoolArgument("b0")]
    kinds = export.InputKind
    inputs = [
        export.InputSpec(kinds.TOKEN, token, None),
        export.InputSpec(kinds.PARAMETER, tensor, "weight"),
        export.InputSpec(kinds.BUFFER, tensor, "mean", False),
        export.InputSpec(kinds.CONSTANT_TENSOR, tensor, "scale"),
        export.InputSpec(kinds.USER_INPUT, tensor, None),
        *(export.InputSpec(kinds.USER_INPUT, number, None) for number in numbers),
        export.InputSpec(kinds.USER_INPUT, export.ConstantArgument("n", 3), None),
    ]
    outputs = [
        export.OutputSpec(kind, token if kind is export.OutputKind.TOKEN else tensor, _target(kind))
        for kind in export.OutputKind
    ]
    theirs = export.ExportGraphSignature(inputs, outputs)
    mine = from_export_signature(theirs)
    assert to_export_signature(mine) == theirs
    assert mine.input_tokens == mine.output_tokens == ("k",)
    assert mine.user_inputs == tuple(theirs.user_inputs) == ("t", "s0", "f0", "b0", 3)
    assert mine.user_outputs == tuple(theirs.user_outputs)
    assert mine.loss_output == "t"
    assert mine.parameters_to_mutate == dict(theirs.parameters_to_mutate)


def _target(kind: export.OutputKind) -> str | None:
    plain = (export.OutputKind.USER_OUTPUT, export.OutputKind.LOSS_OUTPUT, export.OutputKind.TOKEN)
    return None if kind in plain else "weight"


def test_custom_objects_have_no_word_here() -> None:
    spec = export.InputSpec(export.InputKind.CUSTOM_OBJ, export.CustomObjArgument("o", "Class"), "o")
    with pytest.raises(UnsupportedSignature, match=r"the custom object o \(Class\)"):
        from_export_signature(export.ExportGraphSignature([spec], []))


def test_sizes_of_dynamo_are_inputs() -> None:
    seen: list[Program] = []

    def backend(gm: Any, example_inputs: Any) -> Any:
        graph = torch._dynamo.lookup_backend("dovetail")(gm, example_inputs)
        seen.append(graph.forward.program)
        return graph

    call = torch.compile(lambda x: x.view(-1) * x.size(0), backend=backend, dynamic=True)
    call(torch.ones(4, 2))
    torch.compiler.reset()
    (program,) = seen
    signature = GraphSignature.of(program)
    sizes = [e for e in signature.inputs if e.purpose is InputPurpose.SIZE]
    assert [e.target for e in sizes] == [r.symbol for r in program.signature.inputs if isinstance(r, SizeInput)]
    assert sizes
    assert all(e.argument.kind is ArgumentKind.INT for e in sizes)
    assert any(isinstance(role, UserInput) for role in program.signature.inputs)
    specs = to_export_signature(signature).input_specs
    assert sum(isinstance(spec.arg, export.SymIntArgument) for spec in specs) == len(sizes)
