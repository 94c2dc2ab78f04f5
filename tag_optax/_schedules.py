"""Schedules that begin anew in every task."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tag_optax import _checks
from tag_optax._types import Params, Updates, transformation


class ScaleByTaskScheduleState(NamedTuple):
    """State of :func:`scale_by_task_schedule`."""

    counts: jax.Array  # int32 [K]: steps of each task.


def scale_by_task_schedule(
    schedule: optax.Schedule, task_capacity: int
) -> optax.GradientTransformationExtraArgs:
    """Scales by ``schedule(n)``, where n counts the steps of the task at hand.

    So warm-up and decay begin anew in every task, and a task that comes back takes its own count up
    again. As in ``optax.scale_by_schedule``, n is 0 in the first step and the sign is kept.

    Args:
        schedule: A function of the count, such as ``optax.warmup_cosine_decay_schedule(...)``.
        task_capacity: K, the largest number of tasks.

    Returns:
        A transformation whose ``update`` takes the extra argument ``task_id``. A traced id that is
        no task gives NaN, and counts nothing.

    Examples:
        >>> import jax.numpy as jnp, optax, tag_optax
        >>> schedule = optax.exponential_decay(0.1, transition_steps=1, decay_rate=0.5)
        >>> tx = optax.chain(
        ...     tag_optax.scale_by_tag_rms(5.0, task_capacity=20),
        ...     tag_optax.scale_by_task_schedule(schedule, task_capacity=20),
        ...     optax.scale(-1),
        ... )
        >>> state = tx.init(jnp.zeros(1))
        >>> for task in (0, 0, 1, 0):
        ...     updates, state = tx.update(jnp.ones(1), state, task_id=task)
        >>> state[1].counts[:3]
        Array([3, 1, 0], dtype=int32)
    """
    task_capacity = _checks.check_size("task_capacity", task_capacity)

    def init(params: Params) -> ScaleByTaskScheduleState:
        del params
        return ScaleByTaskScheduleState(counts=jnp.zeros((task_capacity,), jnp.int32))

    def update(
        updates: Updates,
        state: ScaleByTaskScheduleState,
        params: Params | None = None,
        *,
        task_id: jax.typing.ArrayLike,
        **extra_args: Any,
    ) -> tuple[Updates, ScaleByTaskScheduleState]:
        del params, extra_args
        capacity = state.counts.shape[0]  # That of the state, which may have grown.
        task = _checks.check_task_id(task_id, capacity)
        scale = jnp.where(task >= 0, schedule(state.counts[task]), jnp.nan)
        updates = jax.tree.map(lambda g: scale.astype(g.dtype) * g, updates)
        here = jnp.arange(capacity, dtype=jnp.int32) == task
        counts = jnp.where(here, optax.safe_increment(state.counts), state.counts)
        return updates, ScaleByTaskScheduleState(counts)

    return transformation(init, update)
