"""A multilayer perceptron."""

import math
from collections.abc import Sequence

import jax
from flax import nnx

from train.models.layers import Dropout, dense


class MLP(nnx.Module):
    """Dense layers over the flattened image, relu and dropout after every hidden one.

    >>> model = MLP((8, 8, 1), 10, hidden=(100, 100), rngs=nnx.Rngs(0))
    >>> model(jax.numpy.ones((2, 8, 8, 1)), train=False).shape
    (2, 10)
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        num_outputs: int,
        *,
        hidden: Sequence[int],
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        self.dropout = dropout
        self.hidden = nnx.Dict()
        inputs = math.prod(image_shape)
        for i, outputs in enumerate(hidden, 1):
            self.hidden[f"dense{i}"] = dense(inputs, outputs, rngs=rngs)
            inputs = outputs
        self.output = dense(inputs, num_outputs, rngs=rngs)

    def __call__(
        self, x: jax.Array, train: bool, dropout_key: jax.Array | None = None
    ) -> jax.Array:
        drop = Dropout(self.dropout if train else 0.0, dropout_key)
        x = x.reshape(x.shape[0], -1)
        for i in range(1, len(self.hidden) + 1):  # Flax sorts the names: dense10 before dense2.
            x = drop(jax.nn.relu(self.hidden[f"dense{i}"](x)))
        return self.output(x)
