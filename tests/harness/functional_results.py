"""What comes out of a random functional program: new contents for inputs, and results."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.torch_compat.dispatch import storage_key
from tests.harness.functional_scene import FunctionalScene, fits
from tests.harness.functional_views import random_view
from tests.harness.shared_bytes import shared_bytes


def copy_backs(scene: FunctionalScene) -> Sequence[Sequence[str]]:
    """New contents for some of the inputs, or for parts of them."""
    groups: list[Sequence[str]] = []
    for name in scene.choose.sample(scene.inputs, scene.choose.randint(0, min(3, len(scene.inputs)))):
        for _ in range(scene.choose.choices((1, 2, 3), weights=(85, 10, 5))[0]):
            groups.append(_copy_back(scene, name))
    return groups


def _copy_back(scene: FunctionalScene, name: str) -> Sequence[str]:
    whole = scene.tensor(name)
    lines: list[str] = []
    target, tensor = name, whole
    views = [n for n, t in scene.names.items() if n != name and storage_key(t) == storage_key(whole)]
    kind = scene.choose.random()
    if kind < 0.2 and views:
        target = scene.choose.choice(views)
        tensor = scene.tensor(target)
    elif kind < 0.35 and whole.dim() > 0:
        found = random_view(scene, whole)
        if found.index is None:
            target = scene.fresh()
            lines.append(f"{target} = {found.call(name)}")
            tensor = found.apply(whole)
    shape = tensor.shape
    alike = scene.tensors(lambda t: (t.shape, t.dtype) == (tensor.shape, tensor.dtype))
    same = [n for n in alike if storage_key(scene.tensor(n)) != storage_key(tensor) and n not in scene.inputs]
    any_kind = scene.tensors(lambda t: fits(t.shape, shape) and t.dtype.is_complex <= tensor.dtype.is_complex)
    pool = same if same and scene.choose.random() < 0.9 else any_kind
    apart = [n for n in pool if n == target or not shared_bytes(scene.tensor(n), tensor)]
    if not apart:
        return ()
    pool = apart
    new = pool[-1] if scene.choose.random() < 0.5 else scene.choose.choice(pool)
    result = f"{scene.fresh()} = " if scene.choose.random() < 0.5 else ""
    return (*lines, f"{result}aten.copy_.default({target}, {new})")


def random_returns(scene: FunctionalScene) -> tuple[str, ...]:
    """An expression for each result."""
    made = [name for name in scene.tensors(lambda _: True) if name not in scene.inputs]
    returns: list[str] = []
    for _ in range(scene.choose.choice((1, 1, 2, 2, 3, 4))):
        kind = scene.choose.random()
        if returns and kind < 0.06:
            returns.append(scene.choose.choice(returns))
        elif made and kind < 0.9:
            returns.append(scene.choose.choice(made[len(made) // 2 :] if scene.choose.random() < 0.7 else made))
        elif kind < 0.97:
            returns.append(scene.choose.choice(scene.inputs))
        else:
            returns.append(scene.choose.choice(("None", "3")))
    return tuple(returns)
