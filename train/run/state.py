"""What a run carries from step to step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

# Named, so that a user's jax_default_prng_impl changes nothing in a resumed run.
_RANDOM = "threefry2x32"


class TrainState(NamedTuple):
    """Everything that a step reads and writes. With several seeds, leaves have a seed axis."""

    # int32[]: steps since the stream began. It may wrap to negative numbers, because only keys are
    # made of it, and `fold_in` takes its bits: 2^32 steps have a key of their own. Were it to stand
    # still at its end, every later step would drop the same units and draw the same examples.
    step: jax.Array
    rng: jax.Array  # uint32[2]: the key's data; a step folds its number in
    params: Any
    batch_stats: Any
    opt_state: optax.OptState
    memory: Any  # what the method keeps besides, of fixed shapes
    alpha_sum: jax.Array  # float32[T, T]: alpha(t, s) added up over the steps of task t


def random_key(seed: int) -> jax.Array:
    """A key as plain numbers, which any checkpoint can hold."""
    return jax.random.key_data(jax.random.key(seed, impl=_RANDOM))


def key_of_step(state: TrainState) -> jax.Array:
    """The key of the step that the state is about to take."""
    return jax.random.fold_in(jax.random.wrap_key_data(state.rng, impl=_RANDOM), state.step)


def init_state(
    tx: optax.GradientTransformationExtraArgs,
    num_tasks: int,
    memory: Any,
    rng: jax.Array,
    params: Any,
    batch_stats: Any,
) -> TrainState:
    return TrainState(
        step=jnp.int32(0),
        rng=rng,
        params=params,
        batch_stats=batch_stats,
        opt_state=tx.init(params),
        memory=memory,
        alpha_sum=jnp.zeros((num_tasks, num_tasks), jnp.float32),
    )
