"""Changes of a program as JSON: what it calls, on what, what it says of values, its inputs, outputs, roles and names.

Many keep the program sound on purpose (another operator of the same form, another operand of the same description), so
that what reads the file goes on to its later checks, and what runs it runs it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

Program = dict[str, Any]

TEXTS = (
    *("x\nimport os", "x\r__import__('os')", "x\u2028import os", "__import__('os').system('true')", "x); print(1"),
    *("x=1", '"""', "'", "\\", "os.system", "print", "torch", "args", "lambda", "__class__", "__builtins__", "_", ""),
    *("x" * 5000, "\u00e9", "\ud800", "../../etc/passwd", "torch.load", "s0", "1", "None", "self", "</script>", "\0"),
    *("save", "load_state_dict", "forward", "_run", "__reduce__", "math", "operator", "prims", "size", "run", "outs"),
)
_NUMBERS = (0, 1, -1, 2, 3, 7, 63, 64, 255, 1 << 15, 1 << 31, (1 << 31) - 1, 1 << 40, (1 << 62) - 1, 1 << 62, 1 << 63)
_FLOATS: tuple[Any, ...] = (0.0, -0.0, 0.5, 1e308, 1e-320, {"float": "nan"}, {"float": "inf"}, {"float": "-inf"})
_SIZES: tuple[Any, ...] = (
    *(["pow", 9, ["pow", 9, 9]], ["symbol", "s99"], ["add", 1, 2], ["floordiv", 1, 0], ["mod", 1, 0], ["sqrt", -1]),
    *(["pow", -1, 0.5], ["pow", 0, -1], ["where", True, 1, 2], ["float", 1], ["mul"], ["add", ["symbol", "s0"], 1.5]),
)
_FUNCTIONS = (
    *(
        "attrgetter",
        "itemgetter",
        "methodcaller",
        "call",
        "add",
        "sub",
        "mul",
        "pow",
        "lshift",
        "mod",
        "floordiv",
        "or_",
    ),
    *(
        "truediv",
        "matmul",
        "concat",
        "setitem",
        "getitem",
        "delitem",
        "contains",
        "iadd",
        "imul",
        "ipow",
        "index",
        "is_",
    ),
    *(
        "length_hint",
        "indexOf",
        "countOf",
        "truth",
        "not_",
        "neg",
        "invert",
        "abs",
        "__add__",
        "__call__",
        "__loader__",
    ),
)
_MATHS = (
    *("factorial", "pow", "comb", "perm", "exp", "sqrt", "log", "gcd", "lcm", "prod", "dist", "fsum", "isqrt", "floor"),
    *("ceil", "trunc", "ldexp", "nextafter", "ulp", "modf", "frexp", "hypot", "tau", "__spec__", "inf"),
)
_BUILTINS = (
    "abs",
    "bool",
    "float",
    "int",
    "max",
    "min",
    "pow",
    "round",
    "eval",
    "exec",
    "open",
    "print",
    "getattr",
    "sum",
)
_PRIMS = (
    *("GET_RNG_STATE", "SET_RNG_STATE", "MANUAL_SEED", "EXPECT", "GUARD", "GUARD_NUMBER", "REACHED", "COPY_TO_LAYOUT"),
    *("SPILL", "SPILLED", "FETCH", "FETCHED"),
    *("TIMES_IN_FLOAT64", "PACK_LINEAR", "PACK_CONV", "Prim", "copy_into", "clone_with_strides", "torch", "Any"),
)
_WRITTEN = ("(0,)", "(0.0,)", "(False,)", "()", "(1, 0)", "(9,)", "[0]")
_TORCH = ("sym_int", "sym_float", "sym_max", "sym_not", "sym_ite", "_sym_sqrt", "load", "save", "ops", "classes", "hub")


@cache
def _schemas() -> Mapping[str, Any]:
    """The schema of every operator that is registered, by the text that names it."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        found[f"torch.ops.{space}.{name}.{schema.overload_name or 'default'}"] = schema
    return dict(sorted(found.items()))


@cache
def _operators() -> Sequence[str]:
    return list(_schemas())


@cache
def _alike() -> Mapping[tuple[str, ...], Sequence[str]]:
    """Operators of ATen by the types of what they take and give, as far as there is no default."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for text, schema in _schemas().items():
        if text.startswith("torch.ops.aten."):
            groups.setdefault(_form(schema), []).append(text)
    return groups


def _form(schema: Any) -> tuple[str, ...]:
    needed = [str(a.type) for a in schema.arguments if not a.has_default_value()]
    return (*needed, "->", *(str(r.type) for r in schema.returns))


def forged_number(choose: random.Random) -> int:
    """A number that is often at the edge of something."""
    return choose.choice(_NUMBERS) * choose.choice((1, 1, 1, -1))


def forged_target(choose: random.Random) -> str:
    """Text that may or may not name what a program calls."""
    operator = choose.choice(_operators())
    form = choose.randrange(16)
    wrapped: Mapping[int, str] = {
        0: f"prims.in_grad_mode({operator})",
        1: f"prims.flat_results({operator})",
        2: f"prims.functional_form({operator}, {choose.choice(_WRITTEN)})",
        3: f"prims.view_scatter({operator}, {choose.choice(('None', '0', '1', 'False', '0.0', '-1'))})",
        4: f"prims.packed_linear({choose.choice(('1', '0.5', '(1,)', 'None', operator))})",
        5: f"prims.packed_conv({choose.choice(('(1, 1)', '(0.0, 1)', 'None', operator))}, (1, 1), (0, 0), 1)",
        6: f"operator.{choose.choice(_FUNCTIONS)}",
        7: f"math.{choose.choice(_MATHS)}",
        8: choose.choice(_BUILTINS),
        9: f"prims.{choose.choice(_PRIMS)}",
        10: f"torch.{choose.choice(_TORCH)}",
        11: f"prims.in_grad_mode(prims.{choose.choice(('flat_results', 'in_grad_mode'))}({operator}))",
        12: f"{operator}.{choose.choice(('__class__', 'op', '_op', 'py_kernels', 'decompose', '__globals__'))}",
        13: f"getattr(torch.ops.aten, {choose.choice(TEXTS)[:50]!r})",
    }
    return wrapped.get(form, operator)


def change_program(program: Program, choose: random.Random) -> str:
    """Change one thing, in a subgraph as often as not where there are some. Returns: what, in words."""
    callers = [node for node in program["nodes"] if isinstance(node, dict) and node.get("subgraphs")]
    if callers and choose.random() < 0.75:
        caller = choose.choice(callers)
        if choose.random() < 0.2:
            return _other_subgraphs(program, caller, choose)
        return f"in a subgraph: {change_program(choose.choice(caller['subgraphs']), choose)}"
    weights, changes = zip(*_CHANGES, strict=True)
    (change,) = choose.choices(changes, weights)
    return change(program, choose)


def _node(program: Program, choose: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = choose.choice(program["nodes"])
    return found


def _meta(program: Program, name: str) -> dict[str, Any]:
    return next(entry for entry in program["values"] if entry["name"] == name)  # type: ignore[no-any-return]


def _known_before(program: Program, node: Mapping[str, Any]) -> list[str]:
    names = list(program["inputs"])
    for other in program["nodes"]:
        if other is node:
            break
        names += [name for name in other["outputs"] if name is not None]
    return names


def _operands(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where operands are: in lists, and in objects of one entry as a whole."""
    found = [path] if path else []
    if isinstance(data, list):
        for key, inner in enumerate(data):
            found += _operands(inner, (*path, key))
    elif isinstance(data, dict) and len(data) == 1 and isinstance(next(iter(data.values())), list):
        ((key, inner),) = data.items()
        found += [p for k, item in enumerate(inner) for p in _operands(item, (*path, key, k))]
    return found


# --- what is called ---------------------------------------------------------------------------------------------------


def _another_target(program: Program, choose: random.Random) -> str:
    node = _node(program, choose)
    node["target"] = forged_target(choose)
    return f"calls {node['target']}"


def _a_like_target(program: Program, choose: random.Random) -> str:
    """An operator that takes and gives the same types."""
    node = _node(program, choose)
    schema = _schemas().get(node["target"])
    group = _alike().get(_form(schema), ()) if schema is not None else ()
    node["target"] = choose.choice(group) if group else forged_target(choose)
    return f"calls {node['target']}"


def _another_node(program: Program, choose: random.Random) -> str:
    """A call of any operator at any place, on operands of the types that it takes."""
    target = choose.choice(_operators())
    if choose.random() < 0.6:
        target = choose.choice([name for name in _operators() if name.startswith("torch.ops.aten.")])
    schema = _schemas()[target]
    place = choose.randrange(len(program["nodes"]) + 1)
    before = {**program["nodes"][0], "outputs": []} if program["nodes"] else dict(_EMPTY)
    names = _known_before({**program, "nodes": program["nodes"][:place]}, {})
    args, kwargs = [], {}
    for argument in schema.arguments:
        if argument.has_default_value() and choose.random() < 0.7:
            if not argument.kwarg_only:
                break
            continue
        value = _of_type(str(argument.type), names, choose)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    made = _described(program, schema, choose)
    wrapper = choose.choice(("", "", "", "", "prims.in_grad_mode", "prims.flat_results"))
    text = f"{wrapper}({target})" if wrapper else target
    node = {**before, "target": text, "args": args, "kwargs": kwargs, "outputs": made, "unpack": len(made) > 1}
    program["nodes"].insert(place, node)
    if made and choose.random() < 0.5 and program["outputs"]:
        program["outputs"][choose.randrange(len(program["outputs"]))] = {"value": made[0]}
    return f"also calls {text}"


_EMPTY = {"unpack": False, "phase": "forward", "recomputed": False, "origin": 0}


def _described(program: Program, schema: Any, choose: random.Random) -> list[str]:
    """Names for what an operator gives, which is said to be like other values of the program."""
    made = []
    tensors = [entry for entry in program["values"] if "shape" in entry]
    for number, result in enumerate(schema.returns):
        name = f"forged_{len(program['values'])}_{number}"
        if str(result.type) == "Tensor":
            storages = [entry["storage"] for entry in tensors]
            storage = max([*storages, 0]) + 1 if choose.random() < 0.8 else choose.choice([*storages, 0])
            program["values"].append({**choose.choice(tensors), "name": name, "storage": storage})
        else:
            program["values"].append({"name": name, "scalar": ["symbol", name]})
        made.append(name)
    return made


def _of_type(kind: str, names: Sequence[str], choose: random.Random) -> Any:
    if kind.startswith("Optional[") and choose.random() < 0.4:
        return None
    kind = kind.removeprefix("Optional[").rstrip("]") if kind.startswith("Optional[") else kind
    if kind == "Tensor":
        return {"value": choose.choice(names)} if names else None
    if kind.startswith("List["):
        inner = kind.removeprefix("List[").removesuffix("]")
        return [_of_type(inner, names, choose) for _ in range(choose.randrange(4))]
    choices: Mapping[str, Callable[[], Any]] = {
        "int": lambda: choose.choice((forged_number(choose), choose.randrange(4))),
        "float": lambda: choose.choice(_FLOATS),
        "number": lambda: choose.choice((choose.randrange(4), choose.choice(_FLOATS))),
        "bool": lambda: choose.random() < 0.5,
        "str": lambda: choose.choice(("new-file", "secret-file", "mean", "none", "trunc", "x")),
        "Device": lambda: {"device": choose.choice(("cpu", "cpu", "meta", "cuda:0"))},
        "Generator": lambda: None,
    }
    return choices.get(kind, lambda: choose.choice((None, 0, {"dtype": "float32"})))()


def _a_number(program: Program, choose: random.Random) -> str:
    """A function of numbers, whose result may be used."""
    target = choose.choice([f"operator.{f}" for f in _FUNCTIONS] + [f"math.{f}" for f in _MATHS] + list(_BUILTINS))
    count = choose.choice((1, 2, 2, 2, 3))
    args = [choose.choice((forged_number(choose), choose.randrange(9), 0.5, "x", [1], {"size": choose.choice(_SIZES)}))
            for _ in range(count)]  # fmt: skip
    name = f"forged_{len(program['values'])}"
    program["values"].append({"name": name, "scalar": ["symbol", name]})
    before = {**program["nodes"][0]} if program["nodes"] else dict(_EMPTY)
    node = {**before, "target": target, "args": args, "kwargs": {}, "outputs": [name], "unpack": False}
    program["nodes"].insert(choose.randrange(len(program["nodes"]) + 1), node)
    users = [
        (n, k) for n in program["nodes"] for k, a in enumerate(n["args"]) if type(a) in (int, float) and n is not node
    ]
    if users and choose.random() < 0.5:
        user, place = choose.choice(users)
        user["args"][place] = {"value": name}
    return f"also computes {target}"


_WRITERS = (
    *(
        "add_.Tensor",
        "zero_.default",
        "copy_.default",
        "resize_.default",
        "set_.source_Tensor",
        "t_.default",
        "mul_.Tensor",
    ),
    *(
        "fill_.Scalar",
        "normal_.default",
        "squeeze_.default",
        "unsqueeze_.default",
        "detach_.default",
        "resize_as_.default",
    ),
    *("as_strided_.default", "random_.default", "swapaxes_.default", "_resize_output_.default", "relu_.default"),
)


def _a_write(program: Program, choose: random.Random) -> str:
    """An operator that writes one of the values, at any place."""
    place = choose.randrange(len(program["nodes"]) + 1)
    names = _known_before({**program, "nodes": program["nodes"][:place]}, {})
    target = f"torch.ops.aten.{choose.choice(_WRITERS)}"
    schema = _schemas()[target]
    args = [_of_type(str(a.type), names, choose) for a in schema.arguments if not a.has_default_value()]
    before = {**program["nodes"][0]} if program["nodes"] else dict(_EMPTY)
    outputs: list[str | None] = []
    if choose.random() < 0.5 and args and isinstance(args[0], dict):
        name = f"forged_{len(program['values'])}"
        program["values"].append({**_meta(program, args[0]["value"]), "name": name})
        outputs = [name]
    node = {**before, "target": target, "args": args, "kwargs": {}, "outputs": outputs, "unpack": False}
    program["nodes"].insert(place, node)
    if choose.random() < 0.5:
        program["stage"] = choose.choice(("in-place", "impure"))
    return f"also writes by {target}"


# --- operands ---------------------------------------------------------------------------------------------------------


def _another_operand(program: Program, choose: random.Random) -> str:
    node = _node(program, choose)
    path = choose.choice(_operands(node["args"]))
    parent = node["args"]
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = _instead(parent[path[-1]], program, node, choose)
    return f"operand {path} of {node['target']} is {parent[path[-1]]!r}"[:160]


def _instead(old: Any, program: Program, node: Mapping[str, Any], choose: random.Random) -> Any:
    if isinstance(old, dict) and "value" in old and choose.random() < 0.85:
        names = _known_before(program, node)
        like = {key: item for key, item in _meta(program, old["value"]).items() if key not in ("name", "storage")}
        same = [
            n for n in names if {k: v for k, v in _meta(program, n).items() if k not in ("name", "storage")} == like
        ]
        return {"value": choose.choice(same if choose.random() < 0.7 and same else names)}
    if type(old) is int and choose.random() < 0.8:
        return choose.choice((old + 1, old - 1, -old, forged_number(choose), bool(old), float(old)))
    if type(old) is float and choose.random() < 0.8:
        return choose.choice(_FLOATS)
    if type(old) is bool and choose.random() < 0.8:
        return not old
    if isinstance(old, list) and choose.random() < 0.8:
        items = list(old)
        return choose.choice(
            (items[:-1], items + items[-1:], items[::-1], [items], {"tuple": items}, {"torch_size": items})
        )
    others = (
        None,
        0,
        "x",
        [],
        {"tuple": []},
        {"dtype": "int64"},
        {"dtype": "complex32"},
        {"device": "meta"},
        {"size": 1},
    )
    return choose.choice(
        (*others, {"layout": "sparse_coo"}, {"bytes": "00"}, {"complex": [0.0, 1.0]}, {"size": _SIZES[0]})
    )


def _another_keyword(program: Program, choose: random.Random) -> str:
    node = _node(program, choose)
    schema = _schemas().get(node["target"])
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    name = choose.choice([*names, *node["kwargs"], choose.choice(TEXTS)])
    if name in node["kwargs"] and choose.random() < 0.3:
        del node["kwargs"][name]
        return f"{node['target']} without {name}"
    kinds = ("int", "float", "bool", "str", "Tensor", "Device", "x")
    types = {a.name: str(a.type) for a in schema.arguments} if schema is not None else {}
    node["kwargs"][name] = _of_type(types.get(name, choose.choice(kinds)), _known_before(program, node), choose)
    return f"{node['target']} with {name[:40]!r}"


# --- nodes ------------------------------------------------------------------------------------------------------------


def _other_order(program: Program, choose: random.Random) -> str:
    nodes = program["nodes"]
    kind = choose.randrange(4)
    if kind == 0:
        a, b = choose.randrange(len(nodes)), choose.randrange(len(nodes))
        nodes[a], nodes[b] = nodes[b], nodes[a]
        return "two nodes change places"
    if kind == 1:
        del nodes[choose.randrange(len(nodes))]
        return "a node less"
    node = copy.deepcopy(choose.choice(nodes))
    if kind == 2:
        for place, name in enumerate(node["outputs"]):
            if name is not None:
                node["outputs"][place] = f"{name}_again"
                program["values"].append({**_meta(program, name), "name": f"{name}_again"})
    nodes.insert(choose.randrange(len(nodes) + 1), node)
    return "a node twice"


def _other_flags(program: Program, choose: random.Random) -> str:
    node = _node(program, choose)
    key, values = choose.choice((
        ("unpack", (True, False, 1)),
        ("phase", ("forward", "backward", "x")),
        ("recomputed", (True, False, None)),
        ("origin", (0, -1, 99, True)),
        ("outputs", ([], [None], [*node["outputs"], None], node["outputs"][::-1], node["outputs"] * 2)),
    ))  # fmt: skip
    node[key] = choose.choice(values)
    return f"{key} of {node['target']} is {node[key]}"


# --- descriptions -----------------------------------------------------------------------------------------------------

_DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "int64", "int8", "bool", "complex64", "complex32"),
    *("bits8", "quint8", "uint4"),
)


def _another_description(program: Program, choose: random.Random) -> str:
    entry = choose.choice(program["values"])
    key = choose.choice(list(entry))
    old = entry[key]
    if key in ("shape", "stride") and old:
        place = choose.randrange(len(old))
        entry[key] = list(old)
        entry[key][place] = choose.choice((0, 1, 2, 5, forged_number(choose), 1 << 40, choose.choice(_SIZES)))
        if choose.random() < 0.2:
            entry[key] = choose.choice(([], old[::-1], [*old, 1]))
    elif key == "dtype":
        entry[key] = choose.choice(_DTYPES)
    elif key == "device":
        entry[key] = choose.choice(("cuda", "meta", "cuda:99", "mkldnn", "x", "cpu:0"))
    elif key in ("storage", "offset"):
        storages = [other.get("storage", 0) for other in program["values"]]
        entry[key] = choose.choice([*storages, forged_number(choose)])
    elif key == "scalar":
        entry[key] = choose.choice((*_SIZES, 1, 0.5, True))
    else:
        _rename(program, old, choose.choice((*TEXTS, *(other["name"] for other in program["values"]))))
    return f"{key} of {entry['name'][:40]!r} is {entry[key]!r}"[:160]


def _rename(data: Any, old: str, new: str) -> None:
    """Another name in all places."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, inner in list(items):
        if inner == old:
            data[key] = new
        else:
            _rename(inner, old, new)


def _another_size(program: Program, choose: random.Random) -> str:
    """A number becomes an expression, all over the values or in one operand."""
    size = copy.deepcopy(choose.choice(_SIZES))
    symbols = [s for e in program["values"] for s in e.get("shape", ()) if isinstance(s, list)]
    if symbols and choose.random() < 0.5:
        size = [
            choose.choice(("add", "mul", "floordiv", "max", "pow", "mod")),
            choose.choice(symbols),
            choose.randrange(3),
        ]
    node = _node(program, choose)
    places = [k for k, item in enumerate(node["args"]) if type(item) in (int, list)]
    if places and choose.random() < 0.7:
        node["args"][choose.choice(places)] = {"size": size}
    else:
        entry = choose.choice([entry for entry in program["values"] if entry.get("shape")])
        entry["shape"][choose.randrange(len(entry["shape"]))] = size
    return f"a size is {size}"


_OVER_SUBGRAPHS = ("cond", "map_impl", "scan", "while_loop", "while_loop_stack_output", "wrap", "x")


def _other_subgraphs(program: Program, node: dict[str, Any], choose: random.Random) -> str:
    """Another operator over the same subgraphs, others of them, or more of them inside each other."""
    kind = choose.randrange(6)
    inner = node["subgraphs"]
    if kind == 0:
        node["target"] = f"torch.ops.higher_order.{choose.choice(_OVER_SUBGRAPHS)}"
    elif kind == 1:
        inner[choose.randrange(len(inner))] = copy.deepcopy(choose.choice((*inner, program, None, 1, "x", [], {})))
    elif kind == 2:
        choose.choice((inner.clear, inner.pop, inner.reverse, lambda: inner.append(copy.deepcopy(inner[0]))))()
    elif kind == 3:
        for _ in range(choose.choice((1, 7, 8, 9, 30))):
            deeper = copy.deepcopy(node)
            node["subgraphs"][0]["nodes"] = [deeper]
            node = deeper
    elif kind == 4:
        other = choose.choice(program["nodes"])
        other["subgraphs"] = copy.deepcopy(inner)
    else:
        place = choose.randrange(len(node["args"]))
        node["args"][place] = copy.deepcopy(choose.choice((*node["args"], None, [], 1, {"tuple": []}, "x")))
    return f"other subgraphs ({kind})"


# --- inputs, outputs, roles -------------------------------------------------------------------------------------------


def _other_ends(program: Program, choose: random.Random) -> str:
    key = choose.choice(("inputs", "outputs"))
    lists = [program[key], program["signature"][key]]
    kind = choose.randrange(5)
    if kind == 0 and len(program[key]) > 1:
        a, b = choose.sample(range(len(program[key])), 2)
        for items in lists[: choose.choice((1, 2))]:
            items[a], items[b] = items[b], items[a]
        return f"two {key} change places"
    if kind == 1:
        for items in lists[: choose.choice((1, 2))]:
            items.append(copy.deepcopy(choose.choice(items)))
        return f"one of the {key} twice"
    if kind == 2:
        place = choose.randrange(len(program[key]))
        for items in lists[: choose.choice((1, 2))]:
            del items[place]
        return f"one less of the {key}"
    if kind == 3 and key == "outputs":
        names = [entry["name"] for entry in program["values"]]
        new = choose.choice(({"value": choose.choice(names)}, None, 1, [{"value": choose.choice(names)}], {"size": 3}))
        program["outputs"][choose.randrange(len(program["outputs"]))] = new
        return f"an output is {new}"
    role = choose.choice(lists[1])
    entry = choose.choice(list(role))
    role[entry] = choose.choice(
        ("Parameter", "Residual", "x", 0, 1, -1, 99, None, True, "tracked", "InputMutation", "Gradient")
    )
    return f"{entry} of a role is {role[entry]!r}"


def _other_whole(program: Program, choose: random.Random) -> str:
    key = choose.choice(("stage", "name", "version", "format", "origins", "values"))
    if key == "origins" and program["origins"]:
        origin = choose.choice(program["origins"])
        origin[choose.randrange(len(origin))] = choose.choice((*TEXTS, -1, 1 << 70))
        return f"an origin is {origin!r}"[:120]
    if key == "values":
        program["values"].append({**choose.choice(program["values"]), "name": choose.choice(TEXTS)})
        return "another value"
    choices = {"stage": ("impure", "functional", "split", "in-place", "whole", "x"), "name": TEXTS}
    program[key] = choose.choice(choices.get(key, (0, 1, 2, True, "x")))
    return f"{key} is {program[key]!r}"[:120]


_CHANGES: tuple[tuple[int, Callable[[Program, random.Random], str]], ...] = (
    (12, _another_target),
    (14, _a_like_target),
    (14, _another_node),
    (6, _a_number),
    (8, _a_write),
    (16, _another_operand),
    (5, _another_keyword),
    (6, _other_order),
    (3, _other_flags),
    (10, _another_description),
    (4, _another_size),
    (7, _other_ends),
    (3, _other_whole),
)
