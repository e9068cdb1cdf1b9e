"""Hand-made programs for the tests of passes, written as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dovetail.ir.program import Node, Operand, Phase, Program, Stage, TensorMeta, Value
from dovetail.ir.signature import Signature, UserInput, UserOutput
from dovetail.ir.sizes import product
from dovetail.ir.text import emit, plain_call


class Builder:
    """Makes a program of tensors f32[4], each on a storage of its own unless it is a view."""

    def __init__(self, *inputs: str) -> None:
        self.nodes: list[Node] = []
        self._storages = 0
        self.inputs = [self.value(name) for name in inputs]

    def value(self, name: str, storage: int | None = None, shape: Sequence[Any] = (4,), **changes: Any) -> Value:
        """A value; contiguous, at offset 0."""
        if storage is None:
            storage = self._storages
            self._storages += 1
        stride: list[Any] = [product(tuple(shape[dim + 1 :])) for dim in range(len(shape))]
        facts: dict[str, Any] = {
            "shape": tuple(shape),
            "stride": tuple(stride),
            "offset": 0,
            "dtype": torch.float32,
            "device": torch.device("cpu"),
            "storage": storage,
        }
        return Value(name, TensorMeta(**{**facts, **changes}))

    def call(self, name: str, target: Any, *args: Operand, view_of: Value | None = None, **options: Any) -> Value:
        """Append a node with the result `name`. options: of `value`, and phase, recomputed, kwargs."""
        node_options = {key: options.pop(key) for key in ("phase", "recomputed", "kwargs") if key in options}
        storage = None if view_of is None else view_of.tensor.storage
        result = self.value(name, storage, **options)
        self.nodes.append(Node(target, args, outputs=(result,), **node_options))
        return result

    def late(self, name: str, target: Any, *args: Operand, **options: Any) -> Value:
        """As `call`, in the backward phase."""
        return self.call(name, target, *args, phase=Phase.BACKWARD, **options)

    def program(self, *outputs: Operand) -> Program:
        """The program so far."""
        signature = Signature(
            tuple(UserInput(i) for i in range(len(self.inputs))), tuple(UserOutput(i) for i in range(len(outputs)))
        )
        return Program("small", Stage.FUNCTIONAL, tuple(self.inputs), tuple(self.nodes), outputs, signature)


def body(program: Program) -> list[str]:
    """The lines of a program after its inputs, without the namespace of operators."""
    lines = emit(program, plain_call, {}, comments=False).text.splitlines()
    start = lines.index("    args.clear()") + 1
    return [line.strip().replace("torch.ops.aten.", "") for line in lines[start:]]
