"""The choice of what runs at each call, against all choices on small graphs."""

from __future__ import annotations

import itertools
import random
from functools import partial

import pytest

from dovetail.passes.fold_cut import CONSTANT, OUTSIDE, Choice, Piece, choose_cut
from tests.counting import LINEAR, growth


def _cost(pieces: list[Piece], runs: tuple[bool, ...]) -> int | None:
    """The bytes that a choice stores, from what a piece means; None where it stores what cannot be stored."""
    total = 0
    for piece in pieces:
        is_made_once = piece.owner == CONSTANT or not runs[piece.owner]
        is_read = any(reader == OUTSIDE or runs[reader] for reader in piece.readers)
        if is_made_once and is_read:
            if piece.size_bytes is None:
                return None
            total += piece.size_bytes
    return total


def _best(count: int, pieces: list[Piece], forced: set[int]) -> Choice:
    """The cheapest choice with the fewest that run, from all choices."""
    found: list[tuple[int, int, tuple[bool, ...]]] = []
    for runs in itertools.product((False, True), repeat=count):
        cost = None if any(runs[group] for group in forced) else _cost(pieces, runs)
        if cost is not None:
            found.append((cost, sum(runs), runs))
    cost, fewest, runs = min(found)
    assert sum((c, n) == (cost, fewest) for c, n, _ in found) == 1, "the choice that folds most is one"
    return Choice(runs, cost)


def _random_pieces(rng: random.Random, count: int) -> list[Piece]:
    pieces = []
    for owner in [CONSTANT] * rng.randint(1, 4) + list(range(count)) * rng.choice((1, 1, 2)):
        later = list(range(owner + 1, count))
        readers = set(rng.sample(later, rng.randint(0, min(len(later), 3))))
        if rng.random() < 0.35 or not readers:
            readers.add(OUTSIDE)
        size = rng.choice((0, 1, 1, 2, 3, 4, 8))
        pieces.append(Piece(owner, size, frozenset(readers)))
    return pieces


@pytest.mark.parametrize("seed", range(400))
def test_the_choice_is_the_cheapest_and_folds_most(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 9)
    pieces = _random_pieces(rng, count)
    forced: set[int] = set()
    if seed % 3 == 1:
        forced = set(rng.sample(range(count), rng.randint(1, min(count, 2))))
    if seed % 3 == 2:  # a group that cannot be stored
        group = rng.randrange(count)
        pieces = [Piece(p.owner, None if p.owner == group else p.size_bytes, p.readers) for p in pieces]
    assert choose_cut(count, pieces, forced) == _best(count, pieces, forced)


def test_readers_that_make_a_circle() -> None:
    pieces = [
        Piece(CONSTANT, 2, frozenset({0})),
        Piece(0, 9, frozenset({1})),
        Piece(1, 9, frozenset({0, OUTSIDE})),
        Piece(CONSTANT, 3, frozenset({1})),
    ]
    assert choose_cut(2, pieces) == _best(2, pieces, set())


def test_nothing_to_choose() -> None:
    assert choose_cut(0, []) == Choice((), 0)
    assert choose_cut(1, [Piece(0, 5, frozenset({0}))]) == Choice((False,), 0)
    assert choose_cut(0, [Piece(CONSTANT, 7, frozenset({OUTSIDE}))]) == Choice((), 7)


@pytest.mark.parametrize("shape", ["chain", "tree", "diamonds", "random"])
def test_long_graphs(shape: str) -> None:
    pieces = _long_graph(shape, 20_000)
    choice = choose_cut(20_000, pieces)
    assert choice.stored_bytes == _cost(pieces, choice.runs)
    assert growth(lambda count: partial(choose_cut, count, _long_graph(shape, count)), 250, 8) < LINEAR


def _long_graph(shape: str, count: int) -> list[Piece]:
    rng = random.Random(1)
    pieces: list[Piece] = []
    for group in range(count):
        pieces.append(Piece(CONSTANT, rng.randint(1, 100), frozenset({group})))
        later = {
            "chain": {group + 1},
            "tree": {group + 1 + group % 7},
            "diamonds": {group + 1, group + 2},
            "random": {group + rng.randint(1, 50) for _ in range(rng.randint(1, 3))},
        }[shape]
        readers = {reader if reader < count else OUTSIDE for reader in later}
        pieces.append(Piece(group, rng.randint(1, 100), frozenset(readers)))
    return pieces
