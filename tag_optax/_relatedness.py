r"""How related two tasks are, and the weight that this gives to a past task's second moment.

.. math::
    \alpha(t, s) = \exp(-b \cos(M_t, M_s)), \qquad \alpha(t, t) = \exp(-b)

The variants differ in what represents a task and in how a weight follows from the comparison.
"""

import dataclasses
import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from tag_optax import _checks

Scope = Literal["global", "leaf"]


@dataclasses.dataclass(frozen=True)
class Relatedness:
    """What represents a task, and what weight follows from comparing two; the paper's as it stands.

    To make one of your own, derive a frozen dataclass and override what differs. Values are
    compared by their fields, and are not callable, so ``optax.inject_hyperparams`` passes them on.

    Attributes:
        scope: One comparison over all parameters ("global") or one for each leaf ("leaf").
        compares: Whether tasks are compared at all. If not, no direction of a task is kept, and
            its weights are computed when the task changes rather than at every step.
        is_cosine: Whether the similarity is the cosine of two representations; else it is their
            inner product.
        sums_the_past: Whether every other task has weight 1, so that one running sum of their
            second moments can take the bank's place.

    Examples:
        Related tasks speed up nothing, opposed and unrelated ones slow down:

        >>> import dataclasses, jax.numpy as jnp, tag_optax
        >>> @dataclasses.dataclass(frozen=True)
        ... class Careful(tag_optax.Relatedness):
        ...     least: float = 1.0
        ...     def past(self, similarity, distance, b):
        ...         return jnp.maximum(self.least, jnp.exp(-b * similarity))
        >>> tx = tag_optax.tag_rmsprop(1.0, task_capacity=2, relatedness=Careful())
        >>> state = tx.init(jnp.zeros(2))
        >>> for task in (0, 1):  # The same direction twice.
        ...     _, state = tx.update(jnp.ones(2), state, task_id=task)
        >>> tag_optax.task_weights(state).round(2)
        Array([1.  , 0.37], dtype=float32)
    """

    scope: Scope = "global"

    compares: ClassVar[bool] = True
    is_cosine: ClassVar[bool] = True
    sums_the_past: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _checks.check_choice("scope", self.scope, ("global", "leaf"))

    def represent(
        self,
        kept: jax.Array,
        gradient: jax.Array,
        *,
        length: jax.Array,
        step: jax.Array,
        b1: jax.typing.ArrayLike,
    ) -> jax.Array:
        """The task's representation after one more gradient; here its momentum.

        It is called on arrays of any shape, several leaves of the parameters joined or a sketch of
        them, so it must treat all numbers alike, and a compressed bank needs it to be linear in
        ``kept`` and ``gradient``.

        Args:
            kept: The representation so far; zeros at first.
            gradient: The gradient, of the same shape.
            length: The Euclidean length of the gradient: of the whole, or of this leaf.
            step: How many steps the task has had before this one.
            b1: The optimizer's decay of first moments.

        Returns:
            The new representation.
        """
        del length, step
        return moving_average(b1, kept, gradient)

    def past(self, similarity: jax.Array, distance: jax.Array, b: jax.Array) -> jax.Array:
        """alpha(t, s) of another task, from scalars.

        Args:
            similarity: Of the two tasks; 0 where they are not compared.
            distance: How far their ids are apart.
            b: The optimizer's argument.

        Returns:
            The weight of that task's second moment in W.
        """
        del distance
        return bounded_exp(-b * similarity)

    def own(self, b: jax.Array) -> jax.Array:
        """alpha(t, t), the weight of the task's own second moment once there are others.

        Args:
            b: The optimizer's argument.

        Returns:
            The weight.
        """
        return bounded_exp(-b)


@dataclasses.dataclass(frozen=True)
class _FirstGradients(Relatedness):
    """The mean cosine over all pairs of two tasks' first gradients.

    It is the inner product of the tasks' mean unit gradients, so one row a task serves any number.
    """

    count: int = 1

    is_cosine: ClassVar[bool] = False

    def represent(
        self,
        kept: jax.Array,
        gradient: jax.Array,
        *,
        length: jax.Array,
        step: jax.Array,
        b1: jax.typing.ArrayLike,
    ) -> jax.Array:
        del b1
        unit = gradient / jnp.where(length == 0, jnp.ones_like(length), length)
        share = jnp.where(step < self.count, 1 / (step + 1).astype(kept.dtype), 0)
        return kept + share.astype(kept.dtype) * (unit - kept)


@dataclasses.dataclass(frozen=True)
class _Uniform(Relatedness):
    compares: ClassVar[bool] = False
    sums_the_past: ClassVar[bool] = True

    def past(self, similarity: jax.Array, distance: jax.Array, b: jax.Array) -> jax.Array:
        del distance, b
        return jnp.ones_like(similarity)

    def own(self, b: jax.Array) -> jax.Array:
        return jnp.ones_like(b)


@dataclasses.dataclass(frozen=True)
class _Own(_Uniform):
    def own(self, b: jax.Array) -> jax.Array:
        return bounded_exp(-b)


@dataclasses.dataclass(frozen=True)
class _Age(Relatedness):
    compares: ClassVar[bool] = False

    def past(self, similarity: jax.Array, distance: jax.Array, b: jax.Array) -> jax.Array:
        # The paper's t - s + 1 for ids in order of arrival; a task that comes back can have the
        # smaller id, where the plain difference would turn the weights negative.
        del b
        return distance.astype(similarity.dtype) + 1

    def own(self, b: jax.Array) -> jax.Array:
        return jnp.ones_like(b)


def cosine(scope: Scope = "global") -> Relatedness:
    r"""The paper's relatedness: :math:`\alpha(t, s) = \exp(-b \cos(M_t, M_s))`.

    Args:
        scope: One cosine over all parameters that the transformation sees ("global", the paper's
            equation) or one for each leaf ("leaf", the authors' code).

    Returns:
        A value for ``relatedness=``.

    Examples:
        >>> import tag_optax
        >>> tx = tag_optax.tag_rmsprop(5.0, 20, relatedness=tag_optax.cosine(scope="leaf"))
    """
    return Relatedness(scope)


def first_gradients(n: int = 1, scope: Scope = "global") -> Relatedness:
    """The paper's TAG-G: the mean cosine of the tasks' first gradients in place of their momenta's.

    Args:
        n: How many first gradients of a task stand for it (the paper's B); while it has shown
            fewer, those count.
        scope: "global" or "leaf", as for :func:`tag_optax.cosine`.

    Returns:
        A value for ``relatedness=``.

    Examples:
        >>> import tag_optax
        >>> tx = tag_optax.tag_rmsprop(5.0, 20, relatedness=tag_optax.first_gradients(3))
    """
    return _FirstGradients(scope, _checks.check_size("n", n))


def uniform() -> Relatedness:
    """The paper's TAG-1: weight 1 for every task, the present one included.

    Returns:
        A value for ``relatedness=``.

    Examples:
        >>> import tag_optax
        >>> tx = tag_optax.tag_rmsprop(5.0, 20, relatedness=tag_optax.uniform())
    """
    return _Uniform()


def age() -> Relatedness:
    """The paper's TAG-age: weight ``|t - s| + 1``, for ids in order of arrival.

    Returns:
        A value for ``relatedness=``.

    Examples:
        >>> import tag_optax
        >>> tx = tag_optax.tag_rmsprop(5.0, 20, relatedness=tag_optax.age())
    """
    return _Age()


def own() -> Relatedness:
    """Weight 1 for the other tasks and exp(-b) for the present one.

    It compares nothing, so with ``bank="running_sum"`` memory does not grow with the tasks. On
    Split-CIFAR100 it is as accurate as the cosine.

    Returns:
        A value for ``relatedness=``.

    Examples:
        >>> import tag_optax
        >>> tx = tag_optax.tag_rmsprop(5.0, 20, relatedness="own", bank="running_sum")
    """
    return _Own()


NAMED = {
    "cosine": cosine,
    "first_gradients": first_gradients,
    "uniform": uniform,
    "age": age,
    "own": own,
}


def named(given: "str | Relatedness") -> Relatedness:
    """The value that an argument ``relatedness=`` stands for."""
    if isinstance(given, Relatedness):
        return given
    if given == "self":
        raise ValueError('relatedness="self" is called "own" now.')
    _checks.check_choice("relatedness", given, NAMED, " or a tag_optax.Relatedness")
    return NAMED[given]()


def moving_average(decay: jax.typing.ArrayLike, average: jax.Array, value: jax.Array) -> jax.Array:
    dtype = average.dtype
    return jnp.asarray(decay, dtype) * average + jnp.asarray(1 - decay, dtype) * value


def bounded_exp(exponent: jax.Array) -> jax.Array:
    """``exp``, kept between 1 / sqrt(max) and sqrt(max) of the dtype.

    An infinite weight times an unused parameter's V = 0 would be NaN, and the root of the largest
    number leaves as much room again for what is made of weights: alpha V summed over the tasks, and
    alpha summed over the steps. In float32 only ``|b cos|`` above 44 feels it, where alpha is 1e19.
    """
    bound = math.log(float(jnp.finfo(exponent.dtype).max)) / 2
    return jnp.exp(jnp.clip(exponent, -bound, bound))


def cosine_of(product: jax.Array, length: jax.Array, other_length: jax.Array) -> jax.Array:
    """A cosine from an inner product; 0 where either vector is zero, as for an unused head."""
    # One after the other: the product of two lengths overflows, and vanishes, before either does.
    zero = (length == 0) | (other_length == 0)
    ratio = product / jnp.where(zero, 1, length) / jnp.where(zero, 1, other_length)
    return jnp.where(zero, 0, jnp.clip(ratio, -1, 1))
