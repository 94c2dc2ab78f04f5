"""What a user brings: streams, networks, a method and an optimizer, with the public API alone."""

import dataclasses
from typing import Literal

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import train


def points(num_tasks: int = 2, size: int = 40) -> train.Stream:
    """On which side of a line a point lies; the line turns from task to task."""
    rng = np.random.default_rng(0)

    def examples(turn):
        x = rng.normal(size=(size, 2)).astype(np.float32)
        return x, (x @ np.array([np.cos(turn), np.sin(turn)]) > 0).astype(int)

    return train.Stream.from_arrays(
        [(examples(t / 2), examples(t / 2)) for t in range(num_tasks)],
        name="points",
        class_names=("left", "right"),
    )


def waves(num_tasks: int = 2) -> list[train.Task]:
    """Regression: two numbers of each point, by another rule in every task."""
    rng = np.random.default_rng(0)

    def examples(shift):
        x = rng.uniform(-1, 1, (40, 3)).astype(np.float32)
        return x, np.stack([np.sin(x.sum(1) + shift), x[:, 0]], axis=1)

    return [
        train.Task(name=f"shift {t}", train=examples(t), test=examples(t)) for t in range(num_tasks)
    ]


def sentences() -> train.Stream:
    """Token ids: the next token of sequences that count up by one or by two."""
    rng = np.random.default_rng(0)

    def examples(pace):
        start = rng.integers(0, 8, (40, 1))
        tokens = (start + pace * np.arange(7)) % 8
        return tokens[:, :-1], tokens[:, 1:]

    tasks = [
        train.Task(name=f"by {pace}", train=examples(pace), test=examples(pace)) for pace in (1, 2)
    ]
    return train.Stream("sentences", tasks, num_outputs=8)


class Net(nnx.Module):
    """NNX, with dropout, batch norm and a variable of its own."""

    def __init__(self, outputs: int, width: int = 8, *, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(2, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.output = nnx.Linear(width, outputs, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.calls.set_value(self.calls[...] + 1)
        return self.output(self.dropout(nnx.relu(self.norm(self.hidden(x)))))


class Perceptron(nn.Module):
    """Linen, with dropout and batch norm."""

    outputs: int
    width: int = 8

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(self.width)(x))
        return nn.Dense(self.outputs)(nn.Dropout(0.1, deterministic=not train)(nn.relu(x)))


perceptron = train.from_linen(Perceptron(outputs=2))


def layers(inputs, outputs, key, width: int = 8):
    """Equinox."""
    return eqx.nn.MLP(inputs.shape[0], outputs, width, depth=1, key=key)


class Transformer(nnx.Module):
    """One block over embedded tokens."""

    def __init__(self, outputs: int, inputs, width: int = 8, *, rngs: nnx.Rngs):
        self.embed = nnx.Embed(outputs, width, rngs=rngs)
        self.place = nnx.Param(jnp.zeros((*inputs.shape, width)))
        self.attend = nnx.MultiHeadAttention(2, width, decode=False, rngs=rngs)
        self.output = nnx.Linear(width, outputs, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens) + self.place[...]
        x = x + self.attend(x, mask=nnx.make_causal_mask(tokens))
        return self.output(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noisy(train.Method):
    """Gaussian noise of a fixed size on every gradient; remembers how much of it there was."""

    noise: float = 1e-3
    """Its size."""
    kind: Literal["gaussian", "none"] = "gaussian"
    """Which noise."""

    def init_memory(self, problem, params):
        return jax.tree.map(jnp.zeros_like, params)  # Memory in the shape of the parameters.

    def gradient(self, problem, state, batch, task, key):
        found = super().gradient(problem, state, batch, task, key)
        noise = optax.tree.random_like(jax.random.fold_in(key, 1), found.grads)
        size = self.noise if self.kind == "gaussian" else 0.0
        return found._replace(
            grads=optax.tree.add_scale(found.grads, size, noise),
            memory=optax.tree.add_scale(state.memory, size, noise),
        )


def signs(tasks: int, learning_rate: float = 0.01, warm: bool = True):
    """An optimizer: steps along the signs of a momentum."""
    del tasks
    return optax.chain(
        optax.scale_by_lion(), optax.scale_by_learning_rate(learning_rate * (1 if warm else 0.5))
    )


def absolute_error(outputs, targets):
    return jnp.abs(outputs - targets).mean(axis=1)


def closeness(outputs, targets):
    return jnp.exp(-jnp.abs(outputs - targets).mean(axis=1))


no_optimizer = "a text"


def no_stream():
    return 7


def no_loss(outputs, targets):
    return jnp.mean((outputs - targets) ** 2)
