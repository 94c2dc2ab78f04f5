"""TAG around any optimizer."""

from __future__ import annotations  # So that help() shows the names of types, not their expansion.

from typing import Any, NamedTuple

import jax
import optax

from tag_optax._bank import Bank
from tag_optax._relatedness import Relatedness, moving_average
from tag_optax._tag import Rule, scale_by_rule
from tag_optax._types import Numeric, OptState, Params, Updates, transformation


class ProtectState(NamedTuple):
    """State of :func:`protect`."""

    tag_state: OptState  # A `ScaleByTagState`.
    inner_state: OptState


def protect(
    inner: optax.GradientTransformation,
    b: Numeric,
    task_capacity: int,
    *,
    b1: Numeric = 0.9,
    b2: Numeric = 0.99,
    eps: Numeric = 1e-8,
    eps_in_sqrt: bool = True,
    relatedness: str | Relatedness = "cosine",
    bank: str | Bank = "full",
) -> optax.GradientTransformationExtraArgs:
    r"""Lets any optimizer step less where earlier tasks would feel it.

    The updates of ``inner`` are multiplied, number by number, by

    .. math::
        \sqrt{V_t / W}, \qquad W = \alpha(t, t) V_t + \sum_s \alpha(t, s) V_s

    with the second moments V of the gradients that it is given and the weights of
    :func:`tag_optax.tag_rmsprop`. While there is no other task the factor is 1. Around an RMSProp
    or Adam whose second moment is :math:`V_t` these are TAG's own steps.

    Args:
        inner: The optimizer, its learning rate included. It sees the gradients as they are, and
            extra arguments where it takes them.
        b: As for :func:`tag_optax.tag_rmsprop`, and so are all that follow.
        task_capacity: Number of tasks.
        b1: Decay of the first moment, which is what the cosine compares.
        b2: Decay of the second moment.
        eps: Keeps the roots from zero.
        eps_in_sqrt: Whether eps is added inside the roots.
        relatedness: Where alpha comes from.
        bank: How past tasks are kept.

    Returns:
        A transformation whose ``update`` needs the extra argument ``task_id``.

    Examples:
        >>> import jax.numpy as jnp, optax, tag_optax
        >>> tx = tag_optax.protect(optax.sgd(0.1), 5.0, 2, relatedness="own", bank="running_sum")
        >>> state = tx.init(jnp.zeros(2))
        >>> for task, gradient in ((0, [1.0, 0.1]), (1, [1.0, 1.0])):
        ...     updates, state = tx.update(jnp.array(gradient), state, task_id=task)
        ...     print(task, *(f"{u:.2f}" for u in updates))  # What task 0 does not use moves.
        0 -0.10 -0.01
        1 -0.10 -0.77
    """
    rule = Rule(lambda v, g: moving_average(b2, v, g**2), is_factor=True)
    factors = scale_by_rule(b, task_capacity, rule, b1, eps, eps_in_sqrt, relatedness, bank)
    inner = optax.with_extra_args_support(inner)

    def init(params: Params) -> ProtectState:
        return ProtectState(factors.init(params), inner.init(params))

    def update(
        updates: Updates,
        state: ProtectState,
        params: Params | None = None,
        *,
        task_id: jax.typing.ArrayLike,
        **extra_args: Any,
    ) -> tuple[Updates, ProtectState]:
        factor, tag_state = factors.update(updates, state.tag_state, params, task_id=task_id)
        steps, inner_state = inner.update(
            updates, state.inner_state, params, task_id=task_id, **extra_args
        )
        protected = jax.tree.map(lambda f, u: f.astype(u.dtype) * u, factor, steps)
        return protected, ProtectState(tag_state, inner_state)

    return transformation(init, update)
