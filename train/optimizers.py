"""Optimizers by name, as optax transformations that all take the task id."""

from collections.abc import Callable

import jax
import optax

import tag_optax
from train.run.config import Config

_LOWEST_STABLE_RATE = 5e-5  # The floor that Stable SGD's authors put under the decaying rate.


def scale_by_task(
    factor: Callable[[jax.Array], jax.Array],
) -> optax.GradientTransformationExtraArgs:
    """Multiplies updates by a factor of the task id."""

    def update(updates, state, params=None, **extra_args):
        del params
        return optax.tree.scale(factor(extra_args["task_id"]), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _stable_sgd(config: Config) -> optax.GradientTransformationExtraArgs:
    def rate(task_id: jax.Array) -> jax.Array:
        # The first task already has the decayed rate, as in the authors' code.
        decayed = config.learning_rate * config.decay ** (task_id + 1.0)
        return -jax.numpy.maximum(decayed, _LOWEST_STABLE_RATE)

    return optax.chain(_momentum(config), scale_by_task(rate))


def _momentum(config: Config) -> optax.GradientTransformation:
    return optax.trace(config.momentum) if config.momentum else optax.identity()


def _tag(
    config: Config, capacity: int | None, skip_unseen: bool
) -> optax.GradientTransformationExtraArgs:
    kind = {"tag-adagrad": tag_optax.tag_adagrad, "tag-adam": tag_optax.tag_adam}
    relatedness = {
        "tag-uniform": "uniform",
        "tag-age": "age",
        "tag-g": "first_gradients",
        "tag-self": "self",
    }
    return kind.get(config.optimizer, tag_optax.tag_rmsprop)(
        config.b,
        capacity or config.num_tasks,
        config.learning_rate,
        b1=config.b1,
        **({} if config.optimizer == "tag-adagrad" else {"b2": config.b2}),
        eps=config.eps,
        eps_in_sqrt=config.eps_in_sqrt,
        alpha_scope=config.alpha_scope,
        relatedness=relatedness.get(config.optimizer, "cosine"),
        num_gradients=config.num_gradients,
        # One running sum serves where no cosine asks for the tasks' own moments.
        constant_memory=config.optimizer == "tag-self",
        skip_unseen=skip_unseen,
    )


def make(
    config: Config, *, capacity: int | None = None, skip_unseen: bool = True
) -> optax.GradientTransformationExtraArgs:
    """The optimizer of a config.

    TAG has room for `capacity` tasks, or for the config's; on a mesh that splits the bank,
    `skip_unseen` must be False.

    >>> import jax.numpy as jnp
    >>> tx = make(Config(optimizer="stable-sgd", learning_rate=1.0, decay=0.5))
    >>> updates, _ = tx.update(jnp.ones(1), tx.init(jnp.ones(1)), task_id=1)
    >>> updates
    Array([-0.25], dtype=float32)
    """
    rate, eps = config.learning_rate, config.eps
    inside, outside = (eps, 0.0) if config.eps_in_sqrt else (0.0, eps)
    match config.optimizer:
        case "sgd":
            tx = optax.sgd(rate, momentum=config.momentum or None)
        case "adagrad":
            tx = optax.adagrad(rate, initial_accumulator_value=0.0, eps=eps)
        case "rmsprop":
            tx = optax.rmsprop(rate, decay=config.b2, eps=eps, eps_in_sqrt=config.eps_in_sqrt)
        case "adam":
            tx = optax.adam(rate, config.b1, config.b2, eps=outside, eps_root=inside)
        case "stable-sgd":
            tx = _stable_sgd(config)
        case _:
            tx = _tag(config, capacity, skip_unseen)
    return optax.with_extra_args_support(tx)
