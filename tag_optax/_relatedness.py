r"""How related two tasks are, and the weight that this gives to a past task's second moment.

.. math::
    \alpha(t, s) = \exp(-b \cos(M_t, M_s)), \qquad \alpha(t, t) = \exp(-b)

The variants differ in what stands in the exponent's place and in what they must remember of a
task, which is all that the optimizer's state then holds.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Relatedness:
    """One way to weigh tasks.

    ``past(similarity, distance, b)`` is alpha(t, s) and ``own(b)`` is alpha(t, t), given the
    similarity of s to t and the distance of their ids: scalars, for one pair of tasks.
    """

    past: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    own: Callable[[jax.Array], jax.Array]
    # What the similarity compares: first moments, mean unit gradients, or nothing.
    compares: str | None = None
    # Every past task has the same weight, so that the past enters W as one sum.
    sums_the_past: bool = False


def _similar(similarity: jax.Array, distance: jax.Array, b: jax.Array) -> jax.Array:
    del distance
    return bounded_exp(-b * similarity)


def _equal(similarity: jax.Array, distance: jax.Array, b: jax.Array) -> jax.Array:
    del distance, b
    return jnp.ones_like(similarity)


def _age(similarity: jax.Array, distance: jax.Array, b: jax.Array) -> jax.Array:
    # The paper's t - s + 1 for ids in order of arrival; a task that comes back can have the
    # smaller id, where the plain difference would turn the weights negative.
    del b
    return distance.astype(similarity.dtype) + 1


def _discounted(b: jax.Array) -> jax.Array:
    return bounded_exp(-b)


def _full(b: jax.Array) -> jax.Array:
    return jnp.ones_like(b)


RELATEDNESS = {
    "cosine": Relatedness(_similar, _discounted, compares="mu"),
    "first_gradients": Relatedness(_similar, _discounted, compares="unit"),
    "age": Relatedness(_age, _full),
    "uniform": Relatedness(_equal, _full, sums_the_past=True),
    "self": Relatedness(_equal, _discounted, sums_the_past=True),
}


def bounded_exp(exponent: jax.Array) -> jax.Array:
    """``exp``, kept between 1 / sqrt(max) and sqrt(max) of the dtype.

    An infinite weight times an unused parameter's V = 0 would be NaN, and the root of the largest
    number leaves as much room again for what is made of weights: alpha V summed over the tasks, and
    alpha summed over the steps. In float32 only ``|b cos|`` above 44 feels it, where alpha is 1e19.
    """
    bound = math.log(float(jnp.finfo(exponent.dtype).max)) / 2
    return jnp.exp(jnp.clip(exponent, -bound, bound))


def cosine(product: jax.Array, norm: jax.Array, other_norm: jax.Array) -> jax.Array:
    """A cosine from an inner product; 0 where either vector is zero, as for an unused head."""
    # One after the other: the product of two lengths overflows, and vanishes, before either does.
    zero = (norm == 0) | (other_norm == 0)
    ratio = product / jnp.where(zero, 1, norm) / jnp.where(zero, 1, other_norm)
    return jnp.where(zero, 0, jnp.clip(ratio, -1, 1))
