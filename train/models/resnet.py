"""Residual networks of eight blocks: the paper's, the literature's reduced ResNet18, ResNet18."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx

from train.models.layers import Dropout, ImageConv, batch_norm, conv, dense


class OneConvBlock(nnx.Module):
    """The paper's block: one convolution, batch norm after the relu, a bare shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, rngs: nnx.Rngs):
        self.conv = conv(inputs, outputs, 3, stride=stride, padding=1, rngs=rngs)
        self.bn1 = batch_norm(outputs, rngs=rngs)
        self.bn2 = batch_norm(outputs, rngs=rngs)
        if stride > 1 or inputs != outputs:
            self.shortcut = conv(inputs, outputs, 1, stride=stride, rngs=rngs)
        else:
            self.shortcut = None

    def __call__(self, x: jax.Array, train: bool, drop: Dropout) -> jax.Array:
        y = drop(self.bn1(jax.nn.relu(self.conv(x)), use_running_average=not train))
        if self.shortcut is not None:
            x = self.shortcut(x)
        return drop(self.bn2(jax.nn.relu(y + x), use_running_average=not train))


class BasicBlock(nnx.Module):
    """The well-known block: two convolutions, batch norm before the relu and on the shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, rngs: nnx.Rngs):
        self.conv1 = conv(inputs, outputs, 3, stride=stride, padding=1, rngs=rngs)
        self.bn1 = batch_norm(outputs, rngs=rngs)
        self.conv2 = conv(outputs, outputs, 3, padding=1, rngs=rngs)
        self.bn2 = batch_norm(outputs, rngs=rngs)
        if stride > 1 or inputs != outputs:
            self.shortcut = conv(inputs, outputs, 1, stride=stride, rngs=rngs)
            self.shortcut_bn = batch_norm(outputs, rngs=rngs)
        else:
            self.shortcut = None

    def __call__(self, x: jax.Array, train: bool, drop: Dropout) -> jax.Array:
        y = drop(jax.nn.relu(self.bn1(self.conv1(x), use_running_average=not train)))
        y = self.bn2(self.conv2(y), use_running_average=not train)
        if self.shortcut is not None:
            x = self.shortcut_bn(self.shortcut(x), use_running_average=not train)
        return drop(jax.nn.relu(y + x))


class ResNet(nnx.Module):
    """A stem, four stages of two blocks, the mean over the last map, a dense output layer.

    `imagenet_stem` shrinks the image fourfold before the first stage: a 7x7 convolution of stride
    2 and a maximum over 3x3 of stride 2, instead of one 3x3 convolution.

    >>> def logits(x):
    ...     model = ResNet((8, 8, 3), 10, block=OneConvBlock, width=20, rngs=nnx.Rngs(0))
    ...     return model(x, train=False)
    >>> jax.eval_shape(logits, jax.numpy.ones((2, 8, 8, 3))).shape
    (2, 10)
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        num_outputs: int,
        *,
        block: Callable[..., OneConvBlock | BasicBlock],
        width: int,
        imagenet_stem: bool = False,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        self.dropout = dropout
        self.imagenet_stem = imagenet_stem
        size, stride, padding = (7, 2, 3) if imagenet_stem else (3, 1, 1)
        self.stem = conv(
            image_shape[-1],
            width,
            size,
            stride=stride,
            padding=padding,
            kind=ImageConv,
            rngs=rngs,
        )
        self.stem_bn = batch_norm(width, rngs=rngs)
        self.blocks = nnx.Dict()
        inputs = width
        for stage in range(1, 5):
            outputs = width * 2 ** (stage - 1)
            for i in (1, 2):
                stride = 2 if stage > 1 and i == 1 else 1
                self.blocks[f"stage{stage}_block{i}"] = block(inputs, outputs, stride, rngs=rngs)
                inputs = outputs
        self.output = dense(inputs, num_outputs, rngs=rngs)

    def __call__(
        self, x: jax.Array, train: bool, dropout_key: jax.Array | None = None
    ) -> jax.Array:
        drop = Dropout(self.dropout if train else 0.0, dropout_key)
        x = jax.nn.relu(self.stem_bn(self.stem(x), use_running_average=not train))
        if self.imagenet_stem:
            # Flax takes padding in pairs, and says in its types that it does not.
            padding: Any = ((1, 1), (1, 1))
            x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding=padding)
        for block in self.blocks.values():  # Flax sorts them by name, which is their order.
            x = block(x, train, drop)
        return self.output(x.mean((1, 2)))
