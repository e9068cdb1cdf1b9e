"""Train a GPT-2 with `jax.jit`, and print what it takes, as JSON. It needs JAX, and nothing else of this project.

    PYTHON_WITH_JAX benchmarks/jax_worker.py --layers 4 --calls 20

The network is that of `benchmarks/models.py`: dropout everywhere, gelu of tanh, tied weights, loss of shifted labels;
AdamW as torch has it. Weights and optimizer state are donated. `temporary_bytes` is XLA's own figure.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any

import jax
import jax.numpy as jnp

_WIDTH, _HEADS, _VOCABULARY, _BATCH, _TIME = 256, 4, 8192, 4, 128
_KEEP = 0.9
_RATE, _DECAY, _BETAS, _EPS = 1e-4, 1e-2, (0.9, 0.999), 1e-8

Tree = Any
Array = Any


def make_weights(layers: int, key: Array) -> Tree:
    """Weights of a network, normal with a deviation of 0.02."""
    keys = iter(jax.random.split(key, 2 + 4 * layers))

    def linear(inner: int, outer: int) -> dict[str, Array]:
        return {"w": 0.02 * jax.random.normal(next(keys), (inner, outer)), "b": jnp.zeros(outer)}

    def norm() -> dict[str, Array]:
        return {"w": jnp.ones(_WIDTH), "b": jnp.zeros(_WIDTH)}

    def block() -> Tree:
        return {
            "norm1": norm(),
            "qkv": linear(_WIDTH, 3 * _WIDTH),
            "out": linear(_WIDTH, _WIDTH),
            "norm2": norm(),
            "up": linear(_WIDTH, 4 * _WIDTH),
            "down": linear(4 * _WIDTH, _WIDTH),
        }

    return {
        "tokens": 0.02 * jax.random.normal(next(keys), (_VOCABULARY, _WIDTH)),
        "places": 0.02 * jax.random.normal(next(keys), (_TIME, _WIDTH)),
        "blocks": [block() for _ in range(layers)],
        "norm": norm(),
    }


def _linear(x: Array, p: Tree) -> Array:
    return x @ p["w"] + p["b"]


def _norm(x: Array, p: Tree) -> Array:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * p["w"] + p["b"]


def _dropout(x: Array, key: Array) -> Array:
    return jnp.where(jax.random.bernoulli(key, _KEEP, x.shape), x / _KEEP, 0)


def _block(x: Array, p: Tree, key: Array) -> Array:
    keys = jax.random.split(key, 3)
    parts = jnp.split(_linear(_norm(x, p["norm1"]), p["qkv"]), 3, -1)
    q, k, v = (part.reshape(*x.shape[:2], _HEADS, -1).transpose(0, 2, 1, 3) for part in parts)
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(_WIDTH // _HEADS)
    scores = jnp.where(jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool)), scores, -jnp.inf)
    attended = _dropout(jax.nn.softmax(scores, -1), keys[0]) @ v
    x = x + _dropout(_linear(attended.transpose(0, 2, 1, 3).reshape(x.shape), p["out"]), keys[1])
    return x + _dropout(_linear(jax.nn.gelu(_linear(_norm(x, p["norm2"]), p["up"])), p["down"]), keys[2])


def make_step(*, checkpoint: bool) -> Any:
    """A training step: (weights, first moments, second moments, count, tokens, key) to the new ones and the loss."""
    block = jax.checkpoint(_block) if checkpoint else _block

    def loss_of(weights: Tree, tokens: Array, key: Array) -> Array:
        x = _dropout(weights["tokens"][tokens] + weights["places"][: tokens.shape[1]], key)
        for number, p in enumerate(weights["blocks"]):
            x = block(x, p, jax.random.fold_in(key, number))
        scores = _norm(x, weights["norm"]) @ weights["tokens"].T
        chosen = jnp.take_along_axis(jax.nn.log_softmax(scores[:, :-1]), tokens[:, 1:, None], -1)
        return -chosen.mean()

    def step(weights: Tree, first: Tree, second: Tree, count: Array, tokens: Array, key: Array) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(weights, tokens, key)
        count = count + 1
        first = jax.tree.map(lambda m, g: _BETAS[0] * m + (1 - _BETAS[0]) * g, first, gradients)
        second = jax.tree.map(lambda v, g: _BETAS[1] * v + (1 - _BETAS[1]) * g * g, second, gradients)
        one, two = 1 - _BETAS[0] ** count, 1 - _BETAS[1] ** count

        def updated(w: Array, m: Array, v: Array) -> Array:
            return w * (1 - _RATE * _DECAY) - _RATE * (m / one) / (jnp.sqrt(v / two) + _EPS)

        return jax.tree.map(updated, weights, first, second), first, second, count, loss

    return step


def main() -> None:
    """Compile, run, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--checkpoint", action="store_true", help="each block within jax.checkpoint")
    given = parser.parse_args()

    key = jax.random.PRNGKey(0)
    weights = make_weights(given.layers, key)
    state = (weights, jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.zeros_like, weights), jnp.zeros(()))
    tokens = jax.random.randint(key, (_BATCH, _TIME), 0, _VOCABULARY)
    started = time.process_time()
    jitted = jax.jit(make_step(checkpoint=given.checkpoint), donate_argnums=(0, 1, 2, 3))
    compiled = jitted.lower(*state, tokens, key).compile()
    compile_s = time.process_time() - started
    times, losses = [], []
    for number in range(given.calls):
        begun = time.perf_counter()
        *state, loss = compiled(*state, tokens, jax.random.fold_in(key, number))
        losses.append(float(loss))
        times.append((time.perf_counter() - begun) * 1e3)
    temporary = compiled.memory_analysis().temp_size_in_bytes
    facts = {"version": jax.__version__, "compile_s": compile_s, "temporary_bytes": temporary}
    print(json.dumps({**facts, "wall_ms": times, "losses": losses}))


if __name__ == "__main__":
    main()
