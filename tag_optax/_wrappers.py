"""Adapters to frameworks that cannot pass extra arguments to an optimizer."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tag_optax import _checks
from tag_optax._types import OptState, Params, Updates, transformation


class StatefulTaskIdState(NamedTuple):
    """State of :func:`stateful_task_id`."""

    task_id: jax.Array  # int32 []: the task of the next update.
    inner_state: OptState


def stateful_task_id(
    inner: optax.GradientTransformation, task_id: int = 0
) -> optax.GradientTransformationExtraArgs:
    """Keeps the task id in the state, for callers whose ``update`` takes no extra arguments.

    Change the task between steps with ``optax.tree.set(opt_state, task_id=jnp.int32(t))``; nothing
    is compiled anew. A ``task_id`` passed to ``update`` wins, and is kept.

    Args:
        inner: The transformation that needs ``task_id``, such as :func:`tag_optax.tag_rmsprop` or a
            chain with it.
        task_id: The task of the first update.

    Returns:
        A transformation that needs no extra argument.

    Examples:
        >>> import jax.numpy as jnp, optax, tag_optax
        >>> tx = tag_optax.stateful_task_id(tag_optax.tag_rmsprop(5.0, task_capacity=2))
        >>> state = tx.init(jnp.zeros(2))
        >>> for task in (0, 1):
        ...     state = optax.tree.set(state, task_id=jnp.int32(task))
        ...     updates, state = tx.update(jnp.ones(2), state)
        >>> tag_optax.task_weights(state)  # alpha(1, 0) and alpha(1, 1): the same direction.
        Array([0.00673795, 0.00673795], dtype=float32)
    """
    inner = optax.with_extra_args_support(inner)

    def init(params: Params) -> StatefulTaskIdState:
        return StatefulTaskIdState(jnp.asarray(task_id, jnp.int32), inner.init(params))

    def update(
        updates: Updates,
        state: StatefulTaskIdState,
        params: Params | None = None,
        *,
        task_id: jax.typing.ArrayLike | None = None,
        **extra_args: Any,
    ) -> tuple[Updates, StatefulTaskIdState]:
        task_id = state.task_id if task_id is None else task_id
        updates, inner_state = inner.update(
            updates, state.inner_state, params, task_id=task_id, **extra_args
        )
        kept = _checks.as_row(task_id, jnp.iinfo(jnp.int32).max)
        return updates, StatefulTaskIdState(kept, inner_state)

    return transformation(init, update)
