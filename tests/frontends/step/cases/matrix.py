"""Models, optimizers and features, crossed."""

from __future__ import annotations

import random
from functools import cache, partial

from tests.frontends.step.agreement import Case
from tests.frontends.step.cases.covering import Row, covering_rows, single_rows
from tests.frontends.step.cases.features import GRADIENTS
from tests.frontends.step.cases.models import MODELS, Model
from tests.frontends.step.cases.optimizers import OPTIMIZERS, Recipe
from tests.frontends.step.cases.schedules import SCHEDULES
from tests.frontends.step.cases.states import STATES
from tests.frontends.step.cases.training import Feature, Training
from tests.frontends.step.twins import Twin

FEATURES = (*GRADIENTS, *SCHEDULES, *STATES)


def _build(model: Model, recipe: Recipe, feature: Feature) -> Twin:
    return feature.make(Training(model, recipe))


def case(model: Model, recipe: Recipe, feature: Feature) -> Case:
    """The case of one combination."""
    varies = recipe.branches or recipe.begins_in_eager_mode  # which shows more than the first recording of others
    return Case(
        f"{model} | {recipe} | {feature}",
        partial(_build, model, recipe, feature),
        captures=None if varies else feature.captures,
        eager_calls=None if varies else feature.eager_calls,
        at_most=30 if recipe.branches else 8,
        keep_grads=feature.keep_grads,
        options=feature.options,
    )


def case_of(row: Row) -> Case:
    """The case of three numbers: of a model, an optimizer and a feature."""
    return case(MODELS[row[0]], OPTIMIZERS[row[1]], FEATURES[row[2]])


def _is_allowed(row: Row) -> bool:
    return FEATURES[row[2]].suits(MODELS[row[0]])


@cache
def pairs() -> tuple[Row, ...]:
    """Rows in which any two of model, optimizer and feature that go together meet."""
    return tuple(covering_rows((len(MODELS), len(OPTIMIZERS), len(FEATURES)), _is_allowed))


@cache
def singles() -> tuple[Row, ...]:
    """Rows in which every model, every optimizer and every feature is."""
    return tuple(single_rows(pairs()))


def drawn(seed: int) -> Row:
    """A random row."""
    rng = random.Random(f"step/{seed}")
    while True:
        row = (rng.randrange(len(MODELS)), rng.randrange(len(OPTIMIZERS)), rng.randrange(len(FEATURES)))
        if _is_allowed(row):
            return row


def named(name: str) -> Case:
    """The case of a name, as failures print it. Raises: KeyError for parts that do not exist."""
    parts = [part.strip() for part in name.split("|")]
    tables = [{str(it): k for k, it in enumerate(table)} for table in (MODELS, OPTIMIZERS, FEATURES)]
    return case_of(tuple(table[part] for table, part in zip(tables, parts, strict=True)))
