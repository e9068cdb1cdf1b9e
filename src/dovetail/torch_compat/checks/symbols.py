"""Checks of `torch_compat.symbols`."""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from dovetail.torch_compat import fakes, symbols
from dovetail.torch_compat.checks.difference import first_difference


def _symbolic_sizes() -> tuple[ShapeEnv, torch.SymInt, torch.SymInt]:
    """Two symbols, of hints 5 and 7, and the environment they belong to."""
    env = symbols.new_shape_env()
    twin = fakes.new_fake_mode(env).from_tensor(torch.empty(5, 7))
    rows, columns = twin.shape
    assert isinstance(rows, torch.SymInt), "the sizes of this fake tensor are symbols"
    assert isinstance(columns, torch.SymInt), "the sizes of this fake tensor are symbols"
    return env, rows, columns


def check_new_shape_env() -> str | None:
    """A fresh environment makes symbols for the sizes of a fake tensor, and has assumed nothing."""
    env, rows, columns = _symbolic_sizes()
    return first_difference(
        ("the types of the sizes", (type(rows), type(columns)), (torch.SymInt, torch.SymInt)),
        ("the number of guards", symbols.guard_count(env), 0),
    )


def check_symbol_name() -> str | None:
    """A bare symbol has a name of its own, and a sum has none."""
    _, rows, columns = _symbolic_sizes()
    names = (symbols.symbol_name(rows), symbols.symbol_name(columns))
    return first_difference(
        ("the claim that both have names", None not in names and names[0] != names[1], True),
        ("the name of a sum", symbols.symbol_name(rows + 1), None),
    )


def check_symbol_name_at_first() -> str | None:
    """A symbol that turned out to be one number keeps its name at first."""
    _, rows, columns = _symbolic_sizes()
    name = symbols.symbol_name(rows)
    is_settled = bool(rows == int(rows))
    return first_difference(
        ("whether it is settled", (is_settled, symbols.symbol_name(rows)), (True, None)),
        ("its name at first", symbols.symbol_name_at_first(rows), name),
        ("the name of a sum", symbols.symbol_name_at_first(columns + 1), None),
    )


def check_symbolic_tree() -> str | None:
    """Sums, products, quotients and remainders of sizes are read as trees."""
    _, rows, _ = _symbolic_sizes()
    symbol = ("symbol", symbols.symbol_name(rows))
    return first_difference(
        ("a symbol", symbols.symbolic_tree(rows), symbol),
        ("a sum", symbols.symbolic_tree(rows + 1), ("add", 1, symbol)),
        ("a product", symbols.symbolic_tree(rows * 3), ("mul", 3, symbol)),
        ("a quotient", symbols.symbolic_tree(rows // 2), ("floordiv", symbol, 2)),
        ("a remainder", symbols.symbolic_tree(rows % 2), ("mod", symbol, 2)),
    )


def check_expression_tree() -> str | None:
    """Plain numbers and comparisons are read as trees, and an unknown function is refused."""
    x = sympy.Symbol("x")
    chosen = sympy.Piecewise((1, sympy.Lt(x, 4)), (0, True))
    try:
        symbols.expression_tree(sympy.sin(x))
        refused = False
    except NotImplementedError:
        refused = True
    return first_difference(
        ("numbers", [symbols.expression_tree(n) for n in (sympy.Integer(3), sympy.true)], [3, True]),
        ("a comparison", symbols.expression_tree(sympy.Lt(x, 4)), ("lt", ("symbol", "x"), 4)),
        ("a choice", symbols.expression_tree(chosen), ("where", ("lt", ("symbol", "x"), 4), 1, 0)),
        ("the claim that sin is refused", refused, True),
    )


def check_hint_of() -> str | None:
    """A symbol of a fake tensor remembers the size it was made from."""
    _, rows, columns = _symbolic_sizes()
    return first_difference(("the hint", symbols.hint_of(rows * columns), 35))


def check_guard_count() -> str | None:
    """Each new fact counts once, and no environment has none."""
    env, rows, columns = _symbolic_sizes()
    bool(rows == columns)
    return first_difference(
        ("the count after one branch", symbols.guard_count(env), 1),
        ("the count of no environment", symbols.guard_count(None), 0),
    )


def check_no_new_facts() -> str | None:
    """A comparison that is known is answered; one that needs a new fact fails at once, and it is not noted."""
    env, rows, columns = _symbolic_sizes()
    bool(rows > 3)
    failed = answered = False
    with symbols.no_new_facts(env):
        answered = bool(rows > 3)
        try:
            bool(rows == columns)
        except Exception:
            failed = True
    noted = symbols.guard_count(env)
    later = bool(rows == columns)
    return first_difference(
        ("what is known, and what is not", (answered, failed), (True, True)),
        ("the facts", noted, 1),
        ("the answer and the facts afterwards", (later, symbols.guard_count(env)), (False, 2)),
    )


def check_concrete_layout() -> str | None:
    """Symbolic sizes and strides are given as the numbers they had."""
    env = symbols.new_shape_env()
    twin = fakes.new_fake_mode(env).from_tensor(torch.empty(5, 7))
    return first_difference(("the layout", symbols.concrete_layout(twin), ((5, 7), (7, 1))))


def check_guard_trees() -> str | None:
    """A comparison that was answered is noted as a fact."""
    env, rows, _ = _symbolic_sizes()
    answered = bool(rows > 3)
    trees = symbols.guard_trees(env)
    return first_difference(("the answer", answered, True), ("the number of facts", len(trees), 1))


def check_expected_trees() -> str | None:
    """What is checked of a size that depends on data is remembered."""
    env = symbols.new_shape_env()
    with fakes.new_fake_mode(env):
        count: object = torch.empty(4).nonzero().shape[0]
        assert isinstance(count, torch.SymInt), "this size depends on data"
        before, name = symbols.expected_trees(env), symbols.symbol_name(count)
        torch._check(count == 3)
    (tree,) = symbols.expected_trees(env)
    return first_difference(
        ("facts before", before, []),
        ("the fact", tree, ("eq", ("symbol", name), 3)),
    )


def check_data_dependent_sizes() -> str | None:
    """A size that depends on data is a symbol while this is active, and refused before and after."""
    env = ShapeEnv(allow_dynamic_output_shape_ops=False)

    def found() -> bool:
        with fakes.new_fake_mode(env):
            try:
                return isinstance(torch.empty(4).nonzero().shape[0], torch.SymInt)
            except fakes.DATA_DEPENDENT_ERRORS:
                return False

    before = found()
    with symbols.data_dependent_sizes(env):
        during = found()
    return first_difference(("a symbol before, while and after", (before, during, found()), (False, True, False)))


def check_number_functions() -> str | None:
    """Each function computes with symbolic numbers."""
    _, rows, columns = _symbolic_sizes()
    functions = symbols.NUMBER_FUNCTIONS
    results = [functions[name](rows, columns) for name in ("add", "mul", "floordiv", "mod", "max", "min")]
    halves = functions["truediv"](rows, 2)
    results += [functions[name](halves) for name in ("floor", "ceil", "trunc", "round", "int")]
    results += [functions["abs"](rows - 9), *(functions[f"bit{name}"](rows, columns) for name in ("and", "or", "xor"))]
    floats = [functions["float"](rows), functions["sqrt"](functions["float"](rows)), functions["round"](halves, 1)]
    names = ("sin", "cos", "tan", "sinh", "cosh", "tanh", "atan", "log2")
    floats += [functions[name](functions["float"](rows)) for name in names]
    asked = [functions[name](rows, columns) for name in ("eq", "ne", "lt", "le", "gt", "ge")]
    asked += [functions["and"](*asked[:2]), functions["or"](*asked[:2]), functions["not"](asked[0])]
    results.append(functions["where"](asked[2], rows, columns))
    hints = [symbols.hint_of(number) for number in results]
    return first_difference(
        ("whole numbers", hints, [12, 35, 0, 5, 7, 5, 2, 3, 2, 2, 2, 4, 5, 7, 2, 5]),
        ("the types of other numbers", {type(number) for number in floats}, {torch.SymFloat}),
        ("the types of answers", {type(answer) for answer in asked}, {torch.SymBool}),
        ("what was assumed", symbols.guard_count(symbols.shape_env_of(rows)), 0),
    )


def check_number_function_text() -> str | None:
    """The function of `torch` for a square root goes by its name, an operator over tensors has none."""
    found = [symbols.number_function_text(f) for f in (symbols.NUMBER_FUNCTIONS["sqrt"], torch.sym_max, torch.add)]
    return first_difference(("the names", found, ["torch._sym_sqrt", "torch.sym_max", None]))


def check_shape_env_of() -> str | None:
    """A symbolic size knows its environment."""
    env, rows, _ = _symbolic_sizes()
    return first_difference(("the claim that it does", symbols.shape_env_of(rows) is env, True))


def check_depends_on_data() -> str | None:
    """The number of nonzero elements depends on data, the size of an input does not."""
    env, rows, _ = _symbolic_sizes()
    with fakes.new_fake_mode(env):
        found = torch.empty(4).nonzero()
    answers = [symbols.depends_on_data(item) for item in (found, found.shape[0], rows, 3)]
    return first_difference(("the answers", answers, [True, True, False, False]))


def check_sizes_made_in_passing() -> str | None:
    """Symbols that are made meanwhile are not asked for."""
    env, _, _ = _symbolic_sizes()
    with fakes.new_fake_mode(env), symbols.sizes_made_in_passing(env):
        torch.empty(4).nonzero()
    return first_difference(("the number of symbols asked for", len(env.pending_fresh_unbacked_symbols), 0))


def check_number_symbol() -> str | None:
    """A symbol has the name that it was given, any sign, and is known by what it is now."""
    env = symbols.new_shape_env()
    place = symbols.number_symbol(env, "place", 3)
    assert isinstance(place, torch.SymInt), "this torch gives it the name"
    is_above = bool(place + 2 < 9)
    expected = [("lt", ("add", 2, ("symbol", "place")), 9), ("lt", ("symbol", "place"), 7)]
    return first_difference(
        ("its name", symbols.symbol_name(place), "place"),
        ("its hint", symbols.hint_of(place), 3),
        ("the answer", is_above, True),
        ("the claim that the answer is one of the facts", symbols.guard_trees(env)[0] in expected, True),
        *_of_a_float(env),
    )


def _of_a_float(env: ShapeEnv) -> list[tuple[str, object, object]]:
    rate = symbols.number_symbol(env, "rate", 2.5)
    assert rate is not None, "this torch gives it the name"
    whole: Any = math.ceil(rate)
    named = (type(rate), symbols.symbol_name(rate), symbols.hint_of(rate), symbols.hint_of(whole))
    return [
        ("a float", named, (torch.SymFloat, "rate", 2.5, 3)),
        ("what it is now", symbols.hints_of_symbols(rate), {"rate": 2.5}),
    ]


def check_product_of_symbols() -> str | None:
    """It is torch's own, of the class that Python's has, and nobody asks what a symbol is."""
    env, rows, _ = _symbolic_sizes()
    count, share = env.create_unbacked_symint(), env.create_unbacked_symfloat()
    pairs = ((count, 2), (3, count), (count, 0.5), (share, rows), (2, 3))
    made = [symbols.product_of_symbols(*pair) for pair in pairs]
    kinds = [torch.SymInt, torch.SymInt, torch.SymFloat, torch.SymFloat, int]
    return first_difference(
        ("classes", [type(x) for x in made], kinds),
        ("a product", symbols.symbolic_tree(made[0]), ("mul", 2, ("symbol", symbols.symbol_name(count)))),
    )


def check_quotient_of_symbols() -> str | None:
    """The same of quotients."""
    env, rows, _ = _symbolic_sizes()
    count, share = env.create_unbacked_symint(), env.create_unbacked_symfloat()
    pairs = ((count, 2), (rows, count), (share, 3), (1.5, count), (3, 2))
    made = [symbols.quotient_of_symbols(*pair) for pair in pairs]
    return first_difference(("classes", [type(x) for x in made], [*[torch.SymFloat] * 4, float]))


def check_hints_of_symbols() -> str | None:
    """Each symbol of a sum is known by what it is now."""
    _, rows, columns = _symbolic_sizes()
    names = (str(symbols.symbol_name(rows)), str(symbols.symbol_name(columns)))
    return first_difference(
        ("of a sum", symbols.hints_of_symbols(rows + columns * 2), dict(zip(names, (5, 7), strict=True)))
    )


def check_unknown_symbols() -> str | None:
    """Symbols that data decide are told apart from others, whole ones from floats."""
    env, rows, _ = _symbolic_sizes()
    count, share = env.create_unbacked_symint(), env.create_unbacked_symfloat()
    found = symbols.unknown_symbols(torch.sym_float(count * rows) * share)
    return first_difference(
        ("classes", sorted(x.__name__ for x in found.values()), ["float", "int"]),
        ("those that are known", symbols.hints_of_symbols(count * rows), {str(symbols.symbol_name(rows)): 5}),
    )


CHECKS = (
    check_number_symbol,
    check_product_of_symbols,
    check_quotient_of_symbols,
    check_hints_of_symbols,
    check_unknown_symbols,
    check_number_functions,
    check_number_function_text,
    check_shape_env_of,
    check_depends_on_data,
    check_sizes_made_in_passing,
    check_data_dependent_sizes,
    check_expected_trees,
    check_guard_trees,
    check_new_shape_env,
    check_symbol_name,
    check_symbol_name_at_first,
    check_symbolic_tree,
    check_expression_tree,
    check_hint_of,
    check_guard_count,
    check_no_new_facts,
    check_concrete_layout,
)
