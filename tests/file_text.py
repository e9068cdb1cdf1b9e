"""A reader of files that shares no code with dovetail's: what a file says, evaluated node by node in eager mode.

It checks nothing. It is for files that dovetail has accepted, in a process that is watched: targets are evaluated as
the Python that they are.
"""

from __future__ import annotations

import inspect
import json
import math
import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail.ops import prims

_NAMES = {"torch": torch, "operator": operator, "math": math, "prims": prims}
_SIZES: dict[str, Any] = {
    "add": lambda *n: sum_of(n),
    "mul": lambda *n: product_of(n),
    "floordiv": operator.floordiv,
    "truediv": operator.truediv,
    "mod": operator.mod,
    "pow": operator.pow,
    "max": max,
    "min": min,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "float": float,
    "int": int,
    "sqrt": math.sqrt,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "and": lambda *n: all(n),
    "or": lambda *n: any(n),
    "not": operator.not_,
    "where": lambda c, a, b: a if c else b,
}


MAX_TURNS = 1000


class NotForThisCall(Exception):
    """The file says that it is not for a call like this."""


def sum_of(numbers: Sequence[Any]) -> Any:
    """From left to right, as `+` adds."""
    found = numbers[0]
    for number in numbers[1:]:
        found = found + number
    return found


def product_of(numbers: Sequence[Any]) -> Any:
    """From left to right, as `*` multiplies."""
    found = numbers[0]
    for number in numbers[1:]:
        found = found * number
    return found


# --- a program --------------------------------------------------------------------------------------------------------


class Evaluation:
    """A program as JSON has it, run on inputs. The program may write over them."""

    def __init__(self, program: Mapping[str, Any], inputs: Sequence[Any]) -> None:
        self.metas = {entry["name"]: entry for entry in program["values"]}
        self.held: dict[str, Any] = dict(zip(program["inputs"], inputs, strict=True))
        self.sizes: dict[str, Any] = {}
        for name, value in list(self.held.items()):
            self._note(name, value)
        for node in program["nodes"]:
            self._run(node)
        self.outputs = [self.operand(item) for item in program["outputs"]]

    def _note(self, name: str, value: Any) -> None:
        """Numbers for the size symbols that the description of a value binds."""
        meta = self.metas[name]
        wanted = [meta["scalar"]] if "scalar" in meta else [*meta["shape"], *meta["stride"]]
        found = [value] if "scalar" in meta else [*value.shape, *value.stride()]
        for size, number in zip(wanted, found, strict=True):
            if isinstance(size, list) and size[0] == "symbol":
                self.sizes.setdefault(size[1], number)

    def _run(self, node: Mapping[str, Any]) -> None:
        if "subgraphs" in node:
            return self._keep(node, self._run_subgraphs(node))
        target = eval(node["target"], dict(_NAMES))  # dovetail has accepted it, and the process is watched
        arguments = [self.operand(item) for item in node["args"]]
        result = target(*arguments, **{name: self.operand(item) for name, item in node["kwargs"].items()})
        self._keep(node, list(result) if node["unpack"] else [result])

    def _run_subgraphs(self, node: Mapping[str, Any]) -> list[Any]:
        """The result of an operator over subgraphs, as eager gives it."""
        name = node["target"].rpartition(".")[2]
        run: list[Any] = [
            lambda *items, inner=inner: tuple(Evaluation(inner, items).outputs) for inner in node["subgraphs"]
        ]
        args = [self.operand(item) for item in node["args"]]
        if name == "cond":
            return list(run[0 if args[0] else 1](*args[1]))
        if name == "map_impl":
            rows = [run[0](*row, *args[1]) for row in zip(*args[0], strict=True)]
            return [torch.stack(column) for column in zip(*rows, strict=True)]
        carried = list(args[0])
        if name == "scan":
            given = []
            for row in zip(*args[1], strict=True):
                results = run[0](*carried, *row, *args[2])
                carried = list(results[: len(carried)])
                given.append(results[len(carried) :])
            return [*carried, *map(torch.stack, zip(*given, strict=True))]
        for _ in range(MAX_TURNS):
            if not run[0](*carried, *args[1])[0]:
                return carried
            carried = list(run[1](*carried, *args[1]))
        raise RuntimeError("it has no end")

    def _keep(self, node: Mapping[str, Any], results: Sequence[Any]) -> None:
        for name, value in zip(node["outputs"], results, strict=False):
            if name is not None:
                self.held[name] = value
                self._note(name, value)

    def operand(self, data: Any) -> Any:
        """An operand as JSON has it."""
        if isinstance(data, list):
            return [self.operand(item) for item in data]
        if not isinstance(data, dict):
            return data
        ((kind, content),) = data.items()
        if kind == "value":
            return self.held[content]
        return size_of(content, self.sizes) if kind == "size" else constant(kind, content, self.operand)


def constant(kind: str, content: Any, operand: Any) -> Any:
    """An operand that JSON has no word for."""
    if kind in ("tuple", "torch_size"):
        items = [operand(item) for item in content]
        return tuple(items) if kind == "tuple" else torch.Size(items)
    if kind == "complex":
        return complex(*(float(part["float"]) if isinstance(part, dict) else part for part in content))
    if kind == "float":
        return float(content)
    if kind == "bytes":
        return bytes.fromhex(content)
    return torch.device(content) if kind == "device" else getattr(torch, content)


def plain(data: Any) -> Any:
    """An operand without values."""
    return Evaluation({"values": [], "inputs": [], "nodes": [], "outputs": [data]}, []).outputs[0]


def size_of(data: Any, sizes: Mapping[str, Any]) -> Any:
    """A size expression under the numbers of its symbols."""
    if not isinstance(data, list):
        return data
    operation, *arguments = data
    if operation == "symbol":
        return sizes[arguments[0]]
    return _SIZES[operation](*[size_of(argument, sizes) for argument in arguments])


# --- a call of a frozen module ----------------------------------------------------------------------------------------


class FrozenText:
    """A frozen module as its file says it is."""

    def __init__(self, members: Mapping[str, bytes]) -> None:
        self.members = members
        self.index = json.loads(members["frozen.json"])
        self.tensors = tensors_of(members, "constants")

    def call(self, method: str, arguments: Sequence[Any]) -> list[Any]:
        """The leaves of what a call returns; arguments and state are written as the file says.

        Raises: NotForThisCall; what the operators raise.
        """
        entry = self.index["methods"].get(method)
        if entry is None:
            raise NotForThisCall(method)
        leaves = self._bound(entry, arguments)
        for variant in entry["variants"]:
            data = json.loads(self.members[f"{variant['program']}.json"])
            given = [leaves[place] for place in variant["arguments"]]
            laid = _fitting(data["program"], given, variant["facts"])
            if laid is not None:
                results = self._run(data, given, laid, variant["held"])
                return results
        raise NotForThisCall("no program is for such sizes")

    def _bound(self, entry: Mapping[str, Any], arguments: Sequence[Any]) -> list[Any]:
        parameters = []
        for one in entry["signature"]:
            default = plain(one["default"][0]) if one["default"] else inspect.Parameter.empty
            parameters.append(inspect.Parameter(one["name"], getattr(inspect.Parameter, one["kind"]), default=default))
        try:
            found = inspect.Signature(parameters).bind(*arguments)
        except TypeError as error:
            raise NotForThisCall(str(error)) from error
        found.apply_defaults()
        leaves = leaves_of((found.args, found.kwargs), entry["structure"])
        if leaves is None or len(leaves) != len(entry["leaves"]):
            raise NotForThisCall("structure")
        for leaf, item in zip(entry["leaves"], leaves, strict=True):
            if not _is_like(leaf, item):
                raise NotForThisCall(leaf["name"])
        return leaves

    def _run(self, data: Any, given: Sequence[Tensor], laid: Sequence[Tensor], held: Sequence[str]) -> list[Any]:
        inputs = [*laid, *(self.tensors[name] for name in held)]
        with torch.no_grad():
            run = Evaluation(data["program"], inputs)
            return planned(data["plan"]["plan"], inputs, run)


def _is_like(leaf: Mapping[str, Any], item: Any) -> bool:
    if "tensor" not in leaf:
        wanted = plain(leaf["value"])
        return type(wanted) is type(item) and (repr(wanted) == repr(item) or wanted == item)
    dtype, device, rank = leaf["tensor"]
    is_tensor = isinstance(item, Tensor)
    return is_tensor and (item.dtype, item.device, item.dim()) == (plain(dtype), plain(device), rank)


def _fitting(program: Mapping[str, Any], given: Sequence[Tensor], facts: Sequence[Any]) -> list[Tensor] | None:
    """The arguments laid out as the program wants them; None when it is not for these shapes."""
    metas = {entry["name"]: entry for entry in program["values"]}
    wanted = [metas[name] for name in program["inputs"][: len(given)]]
    sizes: dict[str, Any] = {}
    for meta, tensor in zip(wanted, given, strict=True):
        if "scalar" in meta or len(meta["shape"]) != tensor.dim():
            return None
        for size, number in zip(meta["shape"], tensor.shape, strict=True):
            if isinstance(size, list) and size[0] == "symbol" and sizes.setdefault(size[1], number) != number:
                return None
    for meta, tensor in zip(wanted, given, strict=True):
        for step, number in zip(meta["stride"], tensor.stride(), strict=True):
            if isinstance(step, list) and step[0] == "symbol":
                sizes.setdefault(step[1], number)
    shapes = [[size_of(size, sizes) for size in meta["shape"]] for meta in wanted]
    fits = all(list(tensor.shape) == shape for tensor, shape in zip(given, shapes, strict=True))
    if not fits or not all(number > 1 for number in sizes.values()) or not all(size_of(f, sizes) for f in facts):
        return None
    return [
        _laid_out(tensor, [int(size_of(s, sizes)) for s in m["stride"]])
        for m, tensor in zip(wanted, given, strict=True)
    ]


def _laid_out(tensor: Tensor, stride: Sequence[int]) -> Tensor:
    pairs = zip(tensor.stride(), stride, tensor.shape, strict=True)
    if all(a == b for a, b, size in pairs if size > 1):
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)


def planned(plan: Mapping[str, Any], inputs: Sequence[Any], run: Evaluation) -> list[Any]:
    """What a call returns, by its plan, after arguments were written."""
    for write in plan["writes"]:
        target, new = _viewed(inputs[write["input"]], write["steps"]), run.outputs[write["slot"]]
        if new.untyped_storage().data_ptr() != target.untyped_storage().data_ptr() or not _same_place(new, target):
            prims.copy_into(target, new)
    results: list[Any] = []
    for rule in plan["outputs"]:
        results.append(_result(rule, inputs, run, results))
    for change in plan["metadata"]:
        _target(change["target"])(inputs[change["input"]], *map(plain, change["args"]))
    return results


def _same_place(a: Tensor, b: Tensor) -> bool:
    return (a.shape, a.stride(), a.storage_offset()) == (b.shape, b.stride(), b.storage_offset())


def _result(rule: Mapping[str, Any], inputs: Sequence[Any], run: Evaluation, results: Sequence[Any]) -> Any:
    kind = rule["rule"]
    if kind == "FromConstant":
        return run.operand(rule["value"])
    if kind == "FromSlot":
        return run.outputs[rule["slot"]]
    if kind == "FromInput":
        return inputs[rule["input"]]
    if kind == "FromOutput":
        return results[rule["output"]]
    if kind == "FromView":
        base = inputs[rule["base"]] if rule["of_input"] else run.outputs[rule["base"]]
        return _viewed(base, rule["steps"], run)
    return _result(rule["of"] if kind == "AsLeaf" else rule["view"], inputs, run, results)


def _viewed(tensor: Any, steps: Sequence[Mapping[str, Any]], run: Evaluation | None = None) -> Any:
    operand = plain if run is None else run.operand
    for step in steps:
        kwargs = {name: operand(item) for name, item in step["kwargs"]}
        tensor = _target(step["target"])(tensor, *map(operand, step["args"]), **kwargs)
        tensor = tensor if step["index"] is None else tensor[step["index"]]
    return tensor


def _target(text: str) -> Any:
    return eval(text, dict(_NAMES))  # as above


# --- structures and tensors -------------------------------------------------------------------------------------------


def leaves_of(value: Any, tree: Mapping[str, Any]) -> list[Any] | None:
    """The leaves of an object of this structure; None when it is of another one."""
    kind, children = tree["kind"], tree.get("children", [])
    if kind == "leaf":
        return [value]
    types: dict[str, Any] = {"list": list, "tuple": tuple, "deque": deque, "dict": dict}
    types |= {"ordered dict": OrderedDict, "default dict": defaultdict}
    if kind in types and type(value) is not types[kind]:
        return None
    if "dict" in kind or kind in ("named tuple", "mapping", "object"):
        keys = [plain(key) for key in tree.get("keys", [])]
        if "dict" in kind and {(type(k), k) for k in keys} != {(type(k), k) for k in value}:
            return None
        parts = [value[key] for key in keys]
    else:
        parts = list(value)
    if len(parts) != len(children):
        return None
    found = [leaves_of(part, child) for part, child in zip(parts, children, strict=True)]
    return None if None in found else [leaf for leaves in found for leaf in leaves or ()]


def tensors_of(members: Mapping[str, bytes], stem: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, in memory of their own."""
    index, data = json.loads(members[f"{stem}.json"]), members[f"{stem}.safetensors"]
    length = int.from_bytes(data[:8], "little")
    places = {
        name: entry["data_offsets"] for name, entry in json.loads(data[8 : 8 + length]).items() if name[:2] != "__"
    }
    memory = []
    for storage in index["storages"]:
        begin, end = places[storage["name"]]
        content = bytearray(data[8 + length + begin : 8 + length + end])
        memory.append(torch.frombuffer(content, dtype=torch.uint8).clone() if content else torch.empty(0).byte())
    return {name: _tensor(entry, memory) for name, entry in index["tensors"].items()}


def _tensor(entry: Mapping[str, Any], memory: Sequence[Tensor]) -> Tensor:
    empty = torch.empty(0, dtype=torch.int32).view(torch.complex32) if entry["dtype"] == "complex32" else None
    made = torch.empty(0, dtype=getattr(torch, entry["dtype"])) if empty is None else empty
    storage = memory[entry["storage"]].untyped_storage()
    made = made.set_(storage, entry["offset"], entry["shape"], entry["stride"])
    made = made.conj() if entry["is_conj"] else made
    return torch.ops.aten._neg_view.default(made) if entry["is_neg"] else made
