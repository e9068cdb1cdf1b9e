"""Lines of LLVM's text that tiles of products are made of, whatever rows they read and wherever sums go."""

from __future__ import annotations

from dovetail.ops.panels import WIDTH


def splat(name: str, kind: str, number: str, lanes: int) -> list[str]:
    """A vector of one number, so many times, as `name`. kind: of the number."""
    vector = f"<{lanes} x {kind}>"
    return [
        f"{name}_one = insertelement {vector} poison, {kind} {number}, i64 0",
        f"{name} = shufflevector {vector} {name}_one, {vector} poison, <{lanes} x i32> zeroinitializer",
    ]


def multiplied(rows: int, vectors: range, lanes: int) -> list[str]:
    """One more product in each sum: a line of a panel, at `%line`, by a number of each row, the one at `%n` from `%x0`
    on, and so on. `%d0_0` is made of the sum `%c0_0`; `%line_next` and `%n_next` are those of the next product.
    """
    v, out = f"<{lanes} x float>", list[str]()
    for j in vectors:
        out.append(f"%wp{j} = getelementptr float, ptr %line, i64 {j * lanes}")
        out.append(f"%w{j} = load {v}, ptr %wp{j}, align 4")
    for i in range(rows):
        out.append(f"%xp{i} = getelementptr float, ptr %x{i}, i64 %n")
        out.append(f"%xs{i} = load float, ptr %xp{i}, align 4")
        out += splat(f"%v{i}", "float", f"%xs{i}", lanes)
        for j in vectors:
            out.append(f"%d{i}_{j} = call {v} @llvm.fma.v{lanes}f32({v} %v{i}, {v} %w{j}, {v} %c{i}_{j})")
    return [*out, f"%line_next = getelementptr float, ptr %line, i64 {WIDTH}", "%n_next = add i64 %n, 1"]
