"""The state of a TAG transformation: a bank of task moments, and the row of the task at hand."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tag_optax import _bank
from tag_optax._types import Params

AlphaScope = Literal["global", "leaf"]


class ScaleByTagState(NamedTuple):
    """State of the TAG transformations, for K tasks.

    The row of the task at hand (the live row) lives outside the bank, because rewriting one stacked
    tree every step would make XLA copy the whole bank. It is written back when the task changes.
    What the chosen relatedness does not read is ``None``.
    """

    # Not named task_id, which optax.tree.set would also find here when it sets the task of
    # `stateful_task_id`, and the live row would then be taken for another task's.
    live_task: jax.Array  # int32 []: the task of the live row; -1 before the first step.
    visited: jax.Array  # bool [K]: tasks that had a step, be it one that was not finite.
    steps: jax.Array  # int32 [K]: finite steps of each task; 0 for a task not seen.
    alpha: jax.Array  # [K], or [leaves, K] for scope leaf: weights of the last step.
    mu: Params | None  # M[t], like the parameters.
    nu: Params  # V[t], like the parameters.
    unit: Params | None  # mean of the first B unit gradients of t, like the parameters.
    mu_bank: Params | None  # M, [K, ...] a leaf.
    nu_bank: Params | None  # V, [K, ...] a leaf.
    unit_bank: Params | None  # mean unit gradients, [K, ...] a leaf.
    nu_sum: Params | None  # sum of the past tasks' V, in place of a bank.
    norm: jax.Array | None  # [1, K] or [leaves, K]: the norms of the tasks' M, the live row's too.


def switch_task(
    state: ScaleByTagState, task: jax.Array, changed: jax.Array, spread: bool
) -> ScaleByTagState:
    """Puts the live row away and takes up the row of ``task``, if the task has changed."""
    live = (state.mu, state.nu, state.unit)
    banks = (state.mu_bank, state.nu_bank, state.unit_bank)
    left = jnp.maximum(state.live_task, 0)  # A fresh state puts zeros on zeros.

    # A loop of no or one round, because XLA keeps a loop's carry in place; and the new row is read
    # behind it, because reading and writing a bank in one branch makes XLA copy it.
    banks = lax.fori_loop(
        0,
        changed.astype(jnp.int32),
        lambda _, banks: _bank.set_row(banks, left, live, spread),
        banks,
    )
    mu, nu, unit = lax.cond(changed, lambda: _bank.get_row(banks, task, spread), lambda: live)
    return state._replace(
        live_task=jnp.where(changed, task, state.live_task),
        mu=mu,
        nu=nu,
        unit=unit,
        mu_bank=banks[0],
        nu_bank=banks[1],
        unit_bank=banks[2],
    )


def switch_task_without_bank(
    state: ScaleByTagState, task: jax.Array, changed: jax.Array
) -> ScaleByTagState:
    """Adds the live row to the sum and starts a fresh one, if the task has changed."""

    def start_afresh(state: ScaleByTagState) -> ScaleByTagState:
        return state._replace(
            steps=state.steps.at[task].set(0),
            mu=jax.tree.map(jnp.zeros_like, state.mu),
            nu=jax.tree.map(jnp.zeros_like, state.nu),
            nu_sum=jax.tree.map(
                # At most the largest number there is: the sum of two V of that size is infinite.
                lambda total, v: jnp.minimum(
                    total + v.astype(total.dtype), jnp.finfo(total.dtype).max
                ),
                state.nu_sum,
                state.nu,
            ),
        )

    state = lax.cond(changed, start_afresh, lambda state: state, state)
    return state._replace(live_task=jnp.where(changed, task, state.live_task))


def norms(tree: Params, scope: AlphaScope, dtype: jnp.dtype, split: bool) -> jax.Array:
    """Euclidean norms by group, ``[G]``."""
    return jnp.sqrt(_bank.inner_products(tree, tree, scope, dtype, split))
