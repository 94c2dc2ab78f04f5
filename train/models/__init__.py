"""The networks, as plain trees of arrays: `build_model` makes one, `apply_model` runs it."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from train.errors import UserError, nearest
from train.models.mlp import MLP
from train.models.resnet import BasicBlock, OneConvBlock, ResNet

__all__ = ["MODELS", "ModelSpec", "apply_model", "build_model"]


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """One entry of the registry `MODELS`."""

    summary: str
    """One line for the user who chooses."""
    create: Callable[..., nnx.Module]
    """Takes image_shape and num_outputs; dropout and rngs by keyword."""
    min_side: int = 1
    """The smallest image, in pixels, that leaves the last feature map something to see."""


MODELS = {
    "resnet18-reduced": ModelSpec(
        "the paper's network: 20 to 160 channels, one convolution a block",
        functools.partial(ResNet, block=OneConvBlock, width=20),
        min_side=8,
    ),
    "resnet18-reduced-2conv": ModelSpec(
        "the literature's reduced ResNet18: 20 to 160 channels, two convolutions a block",
        functools.partial(ResNet, block=BasicBlock, width=20),
        min_side=8,
    ),
    "resnet18": ModelSpec(
        "ResNet18 at full width, for ImageNet weights",
        functools.partial(ResNet, block=BasicBlock, width=64, imagenet_stem=True),
        min_side=32,
    ),
    "mlp": ModelSpec("a multilayer perceptron with the hidden layers you choose", MLP),
}


def build_model(
    name: str,
    *,
    image_shape: Sequence[int],
    num_outputs: int,
    seed: int,
    dropout: float = 0.0,
    hidden: Sequence[int] = (100, 100),
) -> tuple[nnx.GraphDef, dict[str, Any], dict[str, Any]]:
    """A freshly initialised model: its structure, parameters and batch statistics.

    The last two are plain nested dicts of float32 arrays. `hidden` is for "mlp" alone.

    >>> _, params, batch_stats = build_model(
    ...     "mlp", image_shape=(8, 8, 1), num_outputs=10, seed=0, hidden=(32,)
    ... )
    >>> jax.tree.map(jnp.shape, params)
    {'hidden': {'dense1': {'bias': (32,), 'kernel': (64, 32)}},
     'output': {'bias': (10,), 'kernel': (32, 10)}}
    >>> batch_stats
    {}
    """
    if name not in MODELS:
        raise UserError(f"There is no model {name!r}. {nearest(name, MODELS)}")
    spec = MODELS[name]
    if len(image_shape) != 3 or min(image_shape[:2]) < spec.min_side or image_shape[2] < 1:
        raise UserError(
            f"{name} cannot take images of shape {tuple(image_shape)}: it needs height and width "
            f"of at least {spec.min_side}, and channels."
        )
    if not 0 <= dropout < 1:
        raise UserError(f"dropout is {dropout}: it must be at least 0 and below 1.")
    options = {"hidden": hidden} if spec.create is MLP else {}
    model = spec.create(image_shape, num_outputs, dropout=dropout, rngs=nnx.Rngs(seed), **options)
    graphdef, params, batch_stats = nnx.split(model, nnx.Param, nnx.BatchStat)
    return graphdef, nnx.to_pure_dict(params), nnx.to_pure_dict(batch_stats)


def apply_model(
    graphdef: nnx.GraphDef,
    params: dict[str, Any],
    batch_stats: dict[str, Any],
    images: jax.Array,
    *,
    train: bool,
    dropout_key: jax.Array | None = None,
) -> tuple[jax.Array, dict[str, Any]]:
    """The logits of float images[n, height, width, channels], and the batch statistics after them.

    In training, batch norm uses the batch's own statistics and moves the running ones, and units
    drop out, drawn from `dropout_key`: a model with dropout needs one, no other looks at it.

    >>> model = build_model("mlp", image_shape=(8, 8, 1), num_outputs=10, seed=0)
    >>> logits, _ = apply_model(*model, jnp.zeros((4, 8, 8, 1)), train=False)
    >>> logits.shape
    (4, 10)
    """
    # Without the copy, a gradient taken outside would see variables of another trace written to.
    model = nnx.merge(graphdef, params, batch_stats, copy=True)
    logits = model(images.astype(jnp.float32), train, dropout_key)
    return logits, nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))
