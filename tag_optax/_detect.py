"""Finding the tasks of a stream that nobody tells: by jumps of the loss."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tag_optax import _checks
from tag_optax._types import Numeric, OptState, Params, Updates, transformation

# Chosen together with the default threshold, on streams of digits (benchmarks/detection.py).
_MEAN_RATE = 10.0  # The mean looks back over about a tenth of the task, as the loss falls,
_SPREAD_RATE = 3.0  # the spread over a third, so that it knows how the loss may burst.
_CLIP = 3.0  # No single loss counts for more, so that a hard batch is not yet a change.
_SLACK = 0.5  # What a loss may lie above its mean without being evidence.
_LEAST_SPREAD = 0.1  # Relative to the mean: a loss without noise may still move a little.


class DetectTasksState(NamedTuple):
    """State of :func:`detect_tasks`: seven numbers, and the state inside."""

    task_id: jax.Array  # int32 []: the task of the last update.
    task_capacity: jax.Array  # int32 []: `grow` sets it.
    steps_since_change: jax.Array  # int32 []: those with a finite loss.
    mean: jax.Array  # float32 []: of the recent losses.
    spread: jax.Array  # float32 []: their mean absolute deviation.
    evidence: jax.Array  # float32 []: accumulated excess over mean and spread.
    inner_state: OptState


def detect_tasks(
    inner: optax.GradientTransformation,
    task_capacity: int,
    *,
    threshold: Numeric = 16.0,
    min_steps: Numeric = 50,
) -> optax.GradientTransformationExtraArgs:
    r"""Gives ``task_id`` to a transformation, and starts a new task where the loss jumps.

    With a running mean :math:`m` of the losses, their mean absolute deviation :math:`s` and a loss
    :math:`l`, the evidence for a change is a cumulative sum of bounded excess,

    .. math::
        z = \min\Bigl(\frac{l - m}{\max(s, |m| / 10)}, 3\Bigr), \qquad
        E \leftarrow \max(0, E + z - \tfrac12),

    and where E exceeds ``threshold`` the next task begins, with statistics of its own: under the
    default after 7 losses of three spreads above the mean, or after more that stand out less. It
    makes no difference in what unit the loss is measured. A loss that is not finite is passed over.

    A new task whose loss does not jump is not noticed: one too like the last, or one that follows a
    task hardly learnt. A task that comes back gets a new id. When ``task_capacity`` is used up, all
    further steps belong to the last task.

    Args:
        inner: The transformation that needs ``task_id``, such as :func:`tag_optax.tag_rmsprop` or a
            chain with it.
        task_capacity: The largest number of tasks, as that of ``inner``; :func:`tag_optax.grow`
            raises both.
        threshold: The evidence that makes a change. Lower finds changes sooner and more often in
            what is none.
        min_steps: Steps after a change in which no other is looked for: the statistics form while
            the loss falls.

    Returns:
        A transformation whose ``update`` needs the extra argument ``value``, the loss; it is passed
        on, as all other extra arguments are. A ``task_id`` passed to it is not looked at, so that
        it runs in loops that tell every optimizer the task. The task that was found is
        ``optax.tree.get(state, "task_id")``.

    Examples:
        >>> import jax.numpy as jnp, optax, tag_optax
        >>> tx = tag_optax.detect_tasks(tag_optax.tag_rmsprop(5.0, 20), task_capacity=20)
        >>> state = tx.init(jnp.zeros(2))
        >>> for step in range(300):
        ...     loss = 1.0 / (1 + step % 100)  # It jumps at step 100 and at step 200.
        ...     _, state = tx.update(jnp.ones(2), state, value=loss)
        ...     if step in (99, 110, 199, 210):
        ...         print(step, optax.tree.get(state, "task_id"))
        99 0
        110 1
        199 1
        210 2

    References:
        Page, `Continuous inspection schemes <https://doi.org/10.1093/biomet/41.1-2.100>`_, 1954.

    .. note::
        The steps between a change and its detection belong to the old task: their large gradients
        enter its second moment, which is then kept as that of a past task. A false alarm splits a
        task in two. That costs a row; the new row's moments start anew while what the old one
        learnt is held as a past task, and nothing is forgotten. On three streams of digits
        (``benchmarks/detection.py``) late detection is what costs: 1 to 8 points of the final
        accuracy against ids that are told, and on two of them no id at all did better than detected
        ones. A false alarm in every task cost nothing. Tell the ids where they are known.
    """
    inner = optax.with_extra_args_support(inner)
    task_capacity = _checks.check_size("task_capacity", task_capacity)
    for name, number in (("threshold", threshold), ("min_steps", min_steps)):
        if not _checks.is_traced(number) and not np.all(np.asarray(number) > 0):
            raise ValueError(f"{name}={number} must be above 0.")

    def init(params: Params) -> DetectTasksState:
        return DetectTasksState(
            task_id=jnp.zeros((), jnp.int32),
            task_capacity=jnp.full((), task_capacity, jnp.int32),
            steps_since_change=jnp.zeros((), jnp.int32),
            mean=jnp.zeros((), jnp.float32),
            spread=jnp.zeros((), jnp.float32),
            evidence=jnp.zeros((), jnp.float32),
            inner_state=inner.init(params),
        )

    @jax.jit  # So that an eager call is compiled once, not one operation after another.
    def watch(value: jax.Array, state: DetectTasksState) -> DetectTasksState:
        """The state after a loss, with an inner state of None."""
        settled = state.steps_since_change >= jnp.asarray(min_steps, jnp.int32)
        usual = jnp.maximum(state.spread, _LEAST_SPREAD * jnp.abs(state.mean))
        usual = jnp.maximum(usual, jnp.finfo(jnp.float32).tiny)
        deviation = value - state.mean
        bounded = jnp.minimum(deviation, _CLIP * usual)
        evidence = jnp.maximum(state.evidence + bounded / usual - _SLACK, 0)
        changed = settled & (evidence > jnp.asarray(threshold, jnp.float32))

        n = jnp.where(changed, 0, state.steps_since_change)
        steps = n.astype(jnp.float32)
        # Once settled, a jump must not drag along the statistics that it is measured by.
        deviation = jnp.where(settled, bounded, deviation)
        mean = state.mean + _MEAN_RATE / (steps + _MEAN_RATE) * deviation
        to_spread = jnp.abs(deviation) - state.spread
        spread = state.spread + _SPREAD_RATE / (steps + _SPREAD_RATE) * to_spread
        new = DetectTasksState(
            task_id=jnp.minimum(state.task_id + changed.astype(jnp.int32), state.task_capacity - 1),
            task_capacity=state.task_capacity,
            steps_since_change=jnp.asarray(optax.safe_increment(n)),
            mean=jnp.where(n == 0, value, mean),
            spread=jnp.where(n == 0, 0, spread),
            evidence=jnp.where(settled & ~changed, evidence, 0),
            inner_state=None,
        )
        good = jnp.isfinite(value - state.mean)
        return jax.tree.map(lambda x, kept: jnp.where(good, x, kept), new, state)

    def update(
        updates: Updates,
        state: DetectTasksState,
        params: Params | None = None,
        *,
        value: jax.typing.ArrayLike | None = None,
        task_id: Any = None,
        **extra_args: Any,
    ) -> tuple[Updates, DetectTasksState]:
        del task_id
        if value is None:
            raise TypeError("detect_tasks watches the loss: pass value=loss to update.")
        if jnp.ndim(value):
            raise ValueError(
                f"value must be a scalar, the loss, and has the shape {jnp.shape(value)}."
            )
        watched = watch(jnp.asarray(value, jnp.float32), state._replace(inner_state=None))
        updates, inner_state = inner.update(
            updates,
            state.inner_state,
            params,
            task_id=watched.task_id,
            value=value,
            **extra_args,
        )
        return updates, watched._replace(inner_state=inner_state)

    return transformation(init, update)
