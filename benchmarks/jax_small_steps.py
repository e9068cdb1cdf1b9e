"""The training steps of `benchmarks/small_steps.py` with `jax.jit`, their state donated. It needs JAX alone.

    PYTHON_WITH_JAX benchmarks/jax_small_steps.py "mlp 4x64, batch 32"

It compiles and says, as JSON, what that took; then, for each line that it reads, it makes as many steps as the line
says, each waited for, and says how many seconds one took. Networks have the same shapes and arithmetic; weights differ.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax_worker  # beside this file

Array = Any
Tree = Any
Problem = tuple[Tree, Callable[[Tree], Array]]
"""Weights, and the loss of them."""

_RATE, _DECAY, _BETAS, _EPS = 1e-3, 1e-2, (0.9, 0.999), 1e-8
_KEYS = iter(jax.random.split(jax.random.PRNGKey(0), 4096))


def _normal(*shape: int) -> Array:
    return 0.1 * jax.random.normal(next(_KEYS), shape)


def _linear(inner: int, outer: int) -> Tree:
    return {"w": _normal(inner, outer), "b": jnp.zeros(outer)}


def _apply(p: Tree, x: Array) -> Array:
    return x @ p["w"] + p["b"]


def _mlp(width: int, batch: int, layers: int = 4) -> Problem:
    x, y = _normal(batch, width), _normal(batch, width)

    def loss(weights: Tree) -> Array:
        h = x
        for p in weights:
            h = jax.nn.relu(_apply(p, h))
        return ((h - y) ** 2).mean()

    return [_linear(width, width) for _ in range(layers)], loss


def _physics_informed() -> Problem:
    points = jax.random.uniform(next(_KEYS), (64, 2))

    def u(layers: Tree, at: Array) -> Array:
        for p in layers[:-1]:
            at = jnp.tanh(_apply(p, at))
        return _apply(layers[-1], at)

    def loss(layers: Tree) -> Array:
        def first(at: Array) -> Array:
            return jax.grad(lambda at: u(layers, at).sum())(at)

        second = jax.grad(lambda at: first(at)[:, 0].sum())(points)
        value = u(layers, points)
        return ((first(points)[:, 1:] - second[:, :1] + value**3 - value) ** 2).mean()

    return [_linear(2, 32), _linear(32, 32), _linear(32, 1)], loss


def _recurrent(steps: int) -> Problem:
    x, y = _normal(steps, 16, 16), _normal(16, 1)
    weights = {"in": _linear(16, 96), "hidden": _linear(32, 96), "head": _linear(32, 1)}

    def loss(p: Tree) -> Array:
        def cell(hidden: Array, each: Array) -> tuple[Array, None]:
            given, held = (jnp.split(_apply(p[name], v), 3, -1) for name, v in (("in", each), ("hidden", hidden)))
            reset, update = (jax.nn.sigmoid(given[n] + held[n]) for n in (0, 1))
            new = jnp.tanh(given[2] + reset * held[2])
            return new + update * (hidden - new), None

        hidden, _ = jax.lax.scan(cell, jnp.zeros((16, 32)), x)
        return ((_apply(p["head"], hidden) - y) ** 2).mean()

    return weights, loss


def _cross_entropy(scores: Array, classes: Array) -> Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), classes[:, None], -1).mean()


def _convolutional() -> Problem:
    x, classes = _normal(32, 1, 8, 8), jnp.arange(32) % 10
    kernels = [{"w": _normal(8, 1, 3, 3), "b": jnp.zeros(8)}, {"w": _normal(16, 8, 3, 3), "b": jnp.zeros(16)}]

    def convolved(p: Tree, x: Array) -> Array:
        return jax.nn.relu(jax.lax.conv(x, p["w"], (1, 1), "VALID") + p["b"][:, None, None])

    def loss(p: Tree) -> Array:
        h = convolved(p["kernels"][0], x)
        h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        h = convolved(p["kernels"][1], h)
        return _cross_entropy(_apply(p["head"], h.reshape(32, 16)), classes)

    return {"kernels": kernels, "head": _linear(16, 10)}, loss


def _atari() -> Problem:
    x, classes = _normal(32, 4, 84, 84), jnp.arange(32) % 6
    strides, sizes = (4, 2, 1), ((32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3))
    kernels = [{"w": _normal(*size), "b": jnp.zeros(size[0])} for size in sizes]

    def loss(p: Tree) -> Array:
        h = x
        for stride, each in zip(strides, p["kernels"], strict=True):
            h = jax.nn.relu(jax.lax.conv(h, each["w"], (stride, stride), "VALID") + each["b"][:, None, None])
        first, second = p["layers"]
        return _cross_entropy(_apply(second, jax.nn.relu(_apply(first, h.reshape(32, 3136)))), classes)

    return {"kernels": kernels, "layers": [_linear(3136, 512), _linear(512, 6)]}, loss


def _deep_q() -> Problem:
    online, target = ([_linear(4, 64), _linear(64, 64), _linear(64, 2)] for _ in range(2))
    before, after, reward, goes_on = _normal(64, 4), _normal(64, 4), _normal(64), jnp.ones(64)
    actions = jnp.arange(64) % 2

    def values(layers: Tree, x: Array) -> Array:
        for p in layers[:-1]:
            x = jax.nn.relu(_apply(p, x))
        return _apply(layers[-1], x)

    def loss(layers: Tree) -> Array:
        chosen = jnp.take_along_axis(values(layers, before), actions[:, None], 1)[:, 0]
        error = jnp.abs(chosen - (reward + 0.99 * values(target, after).max(1) * goes_on))
        return jnp.where(error < 1, 0.5 * error**2, error - 0.5).mean()

    return online, loss


def _tiny_gpt() -> Problem:
    layers, heads, width, length, vocabulary = 4, 4, 64, 16, 65
    tokens = jnp.arange(length + 1) % vocabulary

    def norm() -> Tree:
        return {"w": jnp.ones(width), "b": jnp.zeros(width)}

    def normed(p: Tree, x: Array) -> Array:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * p["w"] + p["b"]

    def block() -> Tree:
        linears = {"qkv": _linear(width, 3 * width), "out": _linear(width, width)}
        return linears | {
            "up": _linear(width, 4 * width),
            "down": _linear(4 * width, width),
            "n1": norm(),
            "n2": norm(),
        }

    def loss(p: Tree) -> Array:
        x = p["tokens"][tokens[:-1]] + p["places"]
        for each in p["blocks"]:
            parts = jnp.split(_apply(each["qkv"], normed(each["n1"], x)), 3, -1)
            q, k, v = (part.reshape(length, heads, -1).transpose(1, 0, 2) for part in parts)
            scores = q @ k.transpose(0, 2, 1) / math.sqrt(width // heads)
            scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
            mixed = (jax.nn.softmax(scores) @ v).transpose(1, 0, 2).reshape(length, width)
            x = x + _apply(each["out"], mixed)
            x = x + _apply(each["down"], jax.nn.gelu(_apply(each["up"], normed(each["n2"], x))))
        return _cross_entropy(normed(p["norm"], x) @ p["tokens"].T, tokens[1:])

    embeddings = {"tokens": _normal(vocabulary, width), "places": _normal(length, width), "norm": norm()}
    return embeddings | {"blocks": [block() for _ in range(layers)]}, loss


def _adamw(weights: Tree, gradients: Tree, first: Tree, second: Tree, count: Array) -> tuple[Tree, Tree, Tree, Array]:
    count = count + 1
    first = jax.tree.map(lambda m, g: m + (1 - _BETAS[0]) * (g - m), first, gradients)
    second = jax.tree.map(lambda v, g: _BETAS[1] * v + (1 - _BETAS[1]) * g * g, second, gradients)
    size, root = _RATE / (1 - _BETAS[0] ** count), jnp.sqrt(1 - _BETAS[1] ** count)

    def updated(w: Array, m: Array, v: Array) -> Array:
        return w * (1 - _RATE * _DECAY) - size * m / (jnp.sqrt(v) / root + _EPS)

    return jax.tree.map(updated, weights, first, second), first, second, count


def _trained(problem: Problem) -> tuple[Tree, Callable[..., Any]]:
    """The state of a step, and the step: it gives the state that follows, and the loss."""
    weights, loss = problem

    def step(weights: Tree, first: Tree, second: Tree, count: Array) -> Any:
        found, gradients = jax.value_and_grad(loss)(weights)
        return _adamw(weights, gradients, first, second, count), found

    zeros = jax.tree.map(jnp.zeros_like, weights)
    return (weights, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros(())), step


def _updates(count: int, *, is_sgd: bool) -> tuple[Tree, Callable[..., Any]]:
    """The same of updates alone, of weights whose gradients are there."""
    weights, gradients, first, second = ([_normal(64, 64) for _ in range(count)] for _ in range(4))

    def sgd(weights: Tree, gradients: Tree) -> Any:
        return (jax.tree.map(lambda w, g: w - _RATE * g, weights, gradients), gradients), jnp.zeros(())

    def adamw(weights: Tree, gradients: Tree, first: Tree, second: Tree, count: Array) -> Any:
        made, *state = _adamw(weights, gradients, first, second, count)
        return (made, gradients, *state), jnp.zeros(())

    second = jax.tree.map(jnp.abs, second)
    return ((weights, gradients), sgd) if is_sgd else ((weights, gradients, first, second, jnp.zeros(())), adamw)


def _as_a_function(width: int, batch: int, layers: int = 4) -> tuple[Tree, Callable[..., Any]]:
    """The same of layers without biases, and SGD."""
    x, y = _normal(batch, width), _normal(batch, width)

    def loss(weights: Tree) -> Array:
        h = x
        for weight in weights.values():
            h = jax.nn.relu(h @ weight)
        return ((h - y) ** 2).mean()

    def step(weights: Tree) -> Any:
        found, gradients = jax.value_and_grad(loss)(weights)
        return (jax.tree.map(lambda w, g: w - _RATE * g, weights, gradients),), found

    return ({f"layer{n}": _normal(width, width) for n in range(layers)},), step


def _gpt2(batch: int, time: int) -> tuple[Tree, Callable[..., Any]]:
    """The GPT-2 of `jax_worker`, with 4 layers; each step draws other masks."""
    key = next(_KEYS)
    weights = jax_worker.make_weights(4, key)
    tokens = jax.random.randint(key, (batch, time), 0, weights["tokens"].shape[0])
    trained = jax_worker.make_step(checkpoint=False)

    def step(weights: Tree, first: Tree, second: Tree, count: Array) -> Any:
        *state, loss = trained(weights, first, second, count, tokens, jax.random.fold_in(key, count.astype(int)))
        return tuple(state), loss

    zeros = jax.tree.map(jnp.zeros_like, weights)
    return (weights, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros(())), step


SMALL_STEPS: dict[str, Callable[[], tuple[Tree, Callable[..., Any]]]] = {
    "mlp 4x64, batch 32": lambda: _trained(_mlp(64, 32)),
    "mlp 4x256, batch 64": lambda: _trained(_mlp(256, 64)),
    "mlp 12x256, batch 64": lambda: _trained(_mlp(256, 64, 12)),
    "mlp 4x1024, batch 256": lambda: _trained(_mlp(1024, 256)),
    "PINN, second derivatives": lambda: _trained(_physics_informed()),
    "GRU cell, 32 time steps": lambda: _trained(_recurrent(32)),
    "digits CNN": lambda: _trained(_convolutional()),
    "Atari CNN": lambda: _trained(_atari()),
    "DQN with a target network": lambda: _trained(_deep_q()),
    "GPT 4x64, 16 tokens": lambda: _trained(_tiny_gpt()),
    "MLP 4x64 as a function": lambda: _as_a_function(64, 32),
    "AdamW, 10 tensors": lambda: _updates(10, is_sgd=False),
    "AdamW, 200 tensors": lambda: _updates(200, is_sgd=False),
    "SGD, 200 tensors": lambda: _updates(200, is_sgd=True),
    "GPT-2, 4 layers, 1x32": lambda: _gpt2(1, 32),
    "GPT-2, 4 layers, 4x128": lambda: _gpt2(4, 128),
}


def main() -> None:
    """See the module docstring."""
    state, step = SMALL_STEPS[sys.argv[1]]()
    started = time.process_time()
    compiled = jax.jit(step, donate_argnums=tuple(range(len(state)))).lower(*state).compile()
    print(json.dumps({"version": jax.__version__, "compile_s": time.process_time() - started}), flush=True)
    for line in sys.stdin:
        count = int(line)
        begun = time.perf_counter()
        for _ in range(count):
            state, loss = compiled(*state)
            jax.block_until_ready((state, loss))
        print(json.dumps((time.perf_counter() - begun) / count), flush=True)


if __name__ == "__main__":
    main()
