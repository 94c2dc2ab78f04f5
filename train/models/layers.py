"""Layers initialised as torch does it, and dropout that keeps no state."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def uniform(fan_in: int) -> nnx.Initializer:
    """An initializer that draws from +-1/sqrt(fan_in), for kernels and biases alike.

    >>> float(abs(uniform(4)(jax.random.key(0), (100, 2), jnp.float32)).max()) <= 0.5
    True
    """
    limit = fan_in**-0.5

    def init(key: jax.Array, shape: Sequence[int], dtype: jnp.dtype) -> jax.Array:
        # Drawn flat: XLA compiles this in a third of the time it takes for four axes.
        return jax.random.uniform(key, (math.prod(shape),), dtype, -limit, limit).reshape(shape)

    return init


def conv(
    inputs: int,
    outputs: int,
    size: int,
    *,
    stride: int = 1,
    padding: int = 0,
    kind: type[nnx.Conv] = nnx.Conv,
    rngs: nnx.Rngs,
) -> nnx.Conv:
    """A square convolution without bias, `padding` zeros on every side."""
    return kind(
        inputs,
        outputs,
        kernel_size=(size, size),
        strides=stride,
        padding=padding,
        use_bias=False,
        kernel_init=uniform(inputs * size**2),
        rngs=rngs,
    )


class ImageConv(nnx.Conv):
    """A convolution over pixels, whose channels are filled up to a multiple of 4 with zeros.

    The zeros change nothing but the time: XLA vectorises a convolution on a CPU over its input
    channels, and takes nine times as long for 3 of them as for 4.
    """

    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        missing = -inputs.shape[-1] % 4
        stride: Any = self.strides  # Flax's types allow for more than the integers of `conv`.
        padding: Any = self.padding
        return jax.lax.conv_general_dilated(
            jnp.pad(inputs, [(0, 0)] * 3 + [(0, missing)]),
            jnp.pad(self.kernel[...], [(0, 0), (0, 0), (0, missing), (0, 0)]),
            window_strides=(stride, stride),
            padding=[(padding, padding)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            out_sharding=out_sharding,
        )


def dense(inputs: int, outputs: int, *, rngs: nnx.Rngs) -> nnx.Linear:
    """A dense layer with bias."""
    init = uniform(inputs)
    return nnx.Linear(inputs, outputs, kernel_init=init, bias_init=init, rngs=rngs)


def batch_norm(channels: int, *, rngs: nnx.Rngs) -> nnx.BatchNorm:
    """Batch norm at torch's settings; its momentum of 0.1 is flax's 0.9."""
    return nnx.BatchNorm(channels, momentum=0.9, epsilon=1e-5, rngs=rngs)


class Dropout:
    """The dropout of one forward pass: every call draws a mask of its own from the one key.

    The key comes with the pass, so a model holds no random state. At rate 0 nothing is drawn.

    >>> drop = Dropout(0.5, jax.random.key(0))
    >>> drop(jnp.ones(8))
    Array([0., 2., 2., 2., 2., 0., 0., 2.], dtype=float32)
    >>> drop(jnp.ones(8))
    Array([2., 2., 0., 2., 2., 2., 2., 0.], dtype=float32)
    """

    def __init__(self, rate: float, key: jax.Array | None):
        self.rate = rate
        self.key = key
        self.calls = 0

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.rate == 0:
            return x
        if self.key is None:
            raise ValueError(f"dropout of {self.rate} needs a dropout_key in training.")
        key = jax.random.fold_in(self.key, self.calls)
        self.calls += 1
        # A float32 probability draws the same mask whether or not x64 is on.
        kept = jax.random.bernoulli(key, np.float32(1 - self.rate), x.shape)
        return jnp.where(kept, x / (1 - self.rate), 0)
