"""The networks that have a name, and their settings."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from train import settings
from train.errors import UserError
from train.models.model import Model, from_nnx
from train.models.pretrained import import_weights


def uniform(fan_in: int) -> nnx.Initializer:
    """Draws from +-1/sqrt(fan_in), for kernels and biases alike, as torch does."""
    limit = fan_in**-0.5

    def init(key: jax.Array, shape: Sequence[int], dtype: jnp.dtype) -> jax.Array:
        # Drawn flat: XLA compiles this in a third of the time it takes for four axes.
        return jax.random.uniform(key, (math.prod(shape),), dtype, -limit, limit).reshape(shape)

    return init


def conv(
    inputs: int, outputs: int, size: int, *, stride: int = 1, kind: type = nnx.Conv, rngs: nnx.Rngs
) -> nnx.Conv:
    """A square convolution without bias; with a stride of 1, what comes out is as large."""
    init = uniform(inputs * size**2)
    options: Any = dict(strides=stride, padding=size // 2, use_bias=False, kernel_init=init)
    return kind(inputs, outputs, (size, size), **options, rngs=rngs)


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
    init = uniform(inputs)
    return nnx.Linear(inputs, outputs, kernel_init=init, bias_init=init, rngs=rngs)


def batch_norm(channels: int, *, rngs: nnx.Rngs) -> nnx.BatchNorm:
    """Batch norm at torch's settings; its momentum of 0.1 is flax's 0.9."""
    # What comes out has the type of what goes in, though the running statistics are float32.
    options: Any = dict(promote_dtype=lambda arrays, **_: arrays)
    return nnx.BatchNorm(channels, momentum=0.9, epsilon=1e-5, **options, rngs=rngs)


def dropout(rate: float) -> nnx.Dropout:
    # `from_nnx` supplies its random stream: a rate changes no initial parameter.
    return nnx.Dropout(rate, rngs=nnx.Rngs(0) if rate else None)


class OneConvBlock(nnx.Module):
    """The paper's block: one convolution, batch norm after the relu, a bare shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, rate: float, *, rngs: nnx.Rngs):
        self.conv = conv(inputs, outputs, 3, stride=stride, rngs=rngs)
        self.bn1 = batch_norm(outputs, rngs=rngs)
        self.bn2 = batch_norm(outputs, rngs=rngs)
        self.drop = dropout(rate)
        changes = stride > 1 or inputs != outputs
        self.shortcut = conv(inputs, outputs, 1, stride=stride, rngs=rngs) if changes else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.drop(self.bn1(jax.nn.relu(self.conv(x))))
        if self.shortcut is not None:
            x = self.shortcut(x)
        return self.drop(self.bn2(jax.nn.relu(y + x)))


class BasicBlock(nnx.Module):
    """The well-known block: two convolutions, batch norm before the relu and on the shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, rate: float, *, rngs: nnx.Rngs):
        self.conv1 = conv(inputs, outputs, 3, stride=stride, rngs=rngs)
        self.bn1 = batch_norm(outputs, rngs=rngs)
        self.conv2 = conv(outputs, outputs, 3, rngs=rngs)
        self.bn2 = batch_norm(outputs, rngs=rngs)
        self.drop = dropout(rate)
        changes = stride > 1 or inputs != outputs
        self.shortcut = conv(inputs, outputs, 1, stride=stride, rngs=rngs) if changes else None
        self.shortcut_bn = batch_norm(outputs, rngs=rngs) if changes else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.drop(jax.nn.relu(self.bn1(self.conv1(x))))
        y = self.bn2(self.conv2(y))
        if self.shortcut is not None and self.shortcut_bn is not None:
            x = self.shortcut_bn(self.shortcut(x))
        return self.drop(jax.nn.relu(y + x))


def windows(side: int, window: int | None) -> tuple[int, int]:
    """How many windows there are along the side of a map, and how long they are.

    A map on which not two of them find room is one window, whole.

    >>> windows(4, 4), windows(7, 4), windows(11, 4), windows(7, None)
    ((1, 4), (1, 7), (2, 4), (1, 7))
    """
    count = side // window if window else 1
    return (count, window) if window and count > 1 else (1, side)


class ResNet(nnx.Module):
    """A stem, four stages of two blocks, means over the last map, a dense output layer."""

    def __init__(
        self, shape: tuple[int, ...], outputs: int, net: "ReducedResNet18", *, rngs: nnx.Rngs
    ):
        *sides, channels = shape
        self.imagenet_stem = net.imagenet_stem
        size, stride = (7, 2) if net.imagenet_stem else (3, 1)
        self.stem = conv(channels, net.width, size, stride=stride, kind=ImageConv, rngs=rngs)
        self.stem_bn = batch_norm(net.width, rngs=rngs)
        self.blocks = nnx.Dict()
        inputs = net.width
        for stage in range(1, 5):
            width = net.width * 2 ** (stage - 1)
            for i in (1, 2):
                stride = 2 if stage > 1 and i == 1 else 1
                name = f"stage{stage}_block{i}"
                self.blocks[name] = net.block(inputs, width, stride, net.dropout, rngs=rngs)
                inputs = width
        # Each stage but the first halves the map, rounded up.
        self.window = net.window
        counts = [windows(-(-side // 8), net.window)[0] for side in sides]
        self.output = dense(inputs * math.prod(counts), outputs, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = jax.nn.relu(self.stem_bn(self.stem(x)))
        if self.imagenet_stem:
            # Flax takes padding in pairs, and says in its types that it does not.
            padding: Any = ((1, 1), (1, 1))
            x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding=padding)
        for block in self.blocks.values():  # Flax sorts them by name, which is their order.
            x = block(x)
        (down, height), (across, width) = (windows(side, self.window) for side in x.shape[1:3])
        x = x[:, : down * height, : across * width]
        means = x.reshape(len(x), down, height, across, width, -1).mean((2, 4))
        return self.output(means.reshape(len(x), -1))


class Perceptron(nnx.Module):
    """Dense layers over the flattened input, relu and dropout after every hidden one."""

    def __init__(self, shape: Sequence[int], outputs: int, net: "MLP", *, rngs: nnx.Rngs):
        self.hidden = nnx.Dict()
        inputs = math.prod(shape)
        for i, size in enumerate(net.hidden, 1):
            self.hidden[f"dense{i}"] = dense(inputs, size, rngs=rngs)
            inputs = size
        self.output = dense(inputs, outputs, rngs=rngs)
        self.drop = dropout(net.dropout)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1)
        for i in range(1, len(self.hidden) + 1):  # Flax sorts the names: dense10 before dense2.
            x = self.drop(jax.nn.relu(self.hidden[f"dense{i}"](x)))
        return self.output(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Net:
    """A named network: called with what comes in and how many outputs there are, it is a Model."""

    name: ClassVar[str]
    layers: ClassVar[Callable[..., nnx.Module]]

    dropout: float = 0.0
    """Dropout after every normalisation or hidden layer."""

    def __post_init__(self) -> None:
        settings.check(0 <= self.dropout < 1, "dropout", "must lie in [0, 1)", self.dropout)

    def __call__(self, inputs: jax.ShapeDtypeStruct, outputs: int) -> Model:
        if not jnp.issubdtype(inputs.dtype, jnp.floating) or 0 in inputs.shape:
            raise UserError(
                f"{self.name} cannot take {inputs.dtype} of shape {inputs.shape}: it needs floats, "
                "and some of them."
            )
        return from_nnx(lambda rngs: self.module(inputs.shape, outputs, rngs))

    def module(self, shape: tuple[int, ...], outputs: int, rngs: nnx.Rngs) -> nnx.Module:
        return self.layers(shape, outputs, self, rngs=rngs)


class ReducedResNet18(Net):
    """The paper's network: 20 to 160 channels, one convolution a block.

    Its features are means over windows of 4x4 of the last map, whose sides are an eighth of the
    image's, rounded up: 160 of them below 57x57 pixels, where the mean is over the whole map, 640
    from there to 88x88, and 7840 at 224x224.
    """

    name = "resnet18-reduced"
    layers = ResNet
    block: ClassVar[Callable[..., OneConvBlock | BasicBlock]] = OneConvBlock
    width: ClassVar[int] = 20
    window: ClassVar[int | None] = 4
    """Side of the windows of the last map that are averaged; None: one mean over all of it."""
    imagenet_stem: ClassVar[bool] = False
    """Shrinks the image fourfold before the first stage, by a 7x7 convolution and a maximum."""
    min_side: ClassVar[int] = 8  # In pixels: leaves the last feature map something to see.

    def __call__(self, inputs: jax.ShapeDtypeStruct, outputs: int) -> Model:
        shape = inputs.shape
        if len(shape) != 3 or min(shape[:2]) < self.min_side or shape[2] < 1:
            raise UserError(
                f"{self.name} cannot take images of shape {shape}: it needs height and width "
                f"of at least {self.min_side}, and channels."
            )
        return super().__call__(inputs, outputs)


class ReducedResNet18TwoConv(ReducedResNet18):
    """The literature's reduced ResNet18: 20 to 160 channels, two convolutions a block."""

    name = "resnet18-reduced-2conv"
    block = BasicBlock


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNet18(ReducedResNet18TwoConv):
    """ResNet18 at full width, for ImageNet weights."""

    name = "resnet18"
    width = 64
    window = None
    imagenet_stem = True
    min_side = 32

    pretrained: str | None = None
    """Weights to start from (.safetensors, .npz, .pth, named as in torchvision)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        path = self.pretrained
        settings.check((path or "").isprintable(), "pretrained", "must be printable", path)

    def __call__(self, inputs: jax.ShapeDtypeStruct, outputs: int) -> Model:
        model = super().__call__(inputs, outputs)
        if self.pretrained is None:
            return model
        # Shapes are left where the file has nothing to say, which is in the output layer.
        loaded = import_weights(self.pretrained, *jax.eval_shape(model.init, jax.random.key(0)))

        def init(key: jax.Array) -> Any:
            return jax.tree.map(
                lambda fresh, stored: fresh if isinstance(stored, jax.ShapeDtypeStruct) else stored,
                model.init(key),
                loaded,
            )

        return Model(init, model.apply)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLP(Net):
    """A multilayer perceptron with the hidden layers you choose."""

    name = "mlp"
    layers = Perceptron

    hidden: tuple[int, ...] = (100, 100)
    """Sizes of the hidden layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes, most = self.hidden, settings.MOST
        settings.check(min(sizes, default=1) >= 1, "hidden", "must be sizes above 0", sizes)
        settings.check(max(sizes, default=1) <= most, "hidden", f"must be at most {most}", sizes)


MODELS: dict[str, Net] = {
    net.name: net for net in (ReducedResNet18(), ReducedResNet18TwoConv(), ResNet18(), MLP())
}
