"""The exact banks, and the names that an argument ``bank=`` knows."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tag_optax import _checks, _rows
from tag_optax._bank import Bank, Change, Exchanged, Live, RowPerTask, Rows, direction
from tag_optax._compressed import compressed
from tag_optax._relatedness import NAMED as RELATEDNESS
from tag_optax._relatedness import Relatedness
from tag_optax._types import Params, PyTree


@dataclasses.dataclass(frozen=True)
class _Full(RowPerTask):
    mu_dtype: Any = None
    nu_dtype: Any = None
    split: bool = False

    def __post_init__(self) -> None:
        _checks.check_dtype("mu_dtype", self.mu_dtype)
        _checks.check_dtype("nu_dtype", self.nu_dtype)

    def storage(self, moment: str) -> jax.typing.DTypeLike | None:
        return self.nu_dtype if moment == "nu" else self.mu_dtype

    def init(self, live: Live, capacity: int) -> PyTree:
        return _rows.stack(live, capacity)

    def products(
        self, bank: PyTree, live: Live, active: jax.Array, scope: str, dtype: jnp.dtype
    ) -> jax.Array:
        return _rows.row_products(
            direction(bank), direction(live), active, scope, dtype, self.splits(bank)
        )

    def sum_past(self, bank: PyTree, weights: jax.Array, past: Params, active: jax.Array) -> Params:
        return _rows.weighted_rows(weights, bank["nu"], past, active, self.splits(bank))


@dataclasses.dataclass(frozen=True)
class _RunningSum(Bank):
    def check(self, relatedness: Relatedness) -> None:
        if not relatedness.sums_the_past:
            fitting = [name for name, make in RELATEDNESS.items() if make().sums_the_past]
            raise ValueError(
                f"bank='running_sum' keeps only the sum of the past tasks, and {relatedness} "
                "weighs each of them by itself: choose relatedness="
                f"{' or '.join(map(repr, fitting))}, or bank='full'."
            )

    def init(self, live: Live, capacity: int) -> PyTree:
        del live, capacity
        return ()  # The sum is the state's field `past`.

    def exchange(self, live: Live, past: Params, bank: PyTree, change: Change) -> Exchanged:
        def add(_: jax.Array, both: tuple[Live, Params]) -> tuple[Live, Params]:
            live, past = both
            # At most the largest number there is: the sum of two V of that size is infinite.
            past = jax.tree.map(
                lambda total, v: jnp.minimum(total + v, jnp.finfo(total.dtype).max),
                past,
                live["nu"],
            )
            return jax.tree.map(jnp.zeros_like, live), past

        live, past = lax.fori_loop(0, change.happens.astype(jnp.int32), add, (live, past))
        return Exchanged(live, past, bank, afresh=change.happens)

    def rows(self, bank: PyTree, others: jax.Array, learned: jax.Array) -> Rows:
        del bank
        return Rows(
            active=jnp.any(others)[None],
            counts=jnp.any(others & learned)[None],
            task=jnp.zeros((1,), jnp.int32),
        )

    def products(
        self, bank: PyTree, live: Live, active: jax.Array, scope: str, dtype: jnp.dtype
    ) -> jax.Array:
        raise NotImplementedError  # `check` lets no relatedness through that compares.

    def sum_past(self, bank: PyTree, weights: jax.Array, past: Params, active: jax.Array) -> Params:
        del bank, weights, active
        return past


def full(
    mu_dtype: jax.typing.DTypeLike | None = None,
    nu_dtype: jax.typing.DTypeLike | None = None,
    split: bool = False,
) -> Bank:
    """A row of moments for every task, exact.

    Args:
        mu_dtype: Storage of the first moments, and of the gradients that
            :func:`tag_optax.first_gradients` keeps. By default float32, or float64 for float64
            parameters. Arithmetic is in float32 at least, in any case.
        nu_dtype: Storage of the second moments, likewise. bfloat16 halves them, but a moving
            average in it stands still where ``1 - b2`` is far below its precision of 2^-8.
        split: Set it to True where devices hold different parts of the bank, be it that its tasks
            or that the parameters are split (an explicit mesh is recognised by itself): every
            device then reads what it holds in one product, and only sums travel. Without, a step
            reads only the rows in use, so that its cost follows the tasks seen.

    Returns:
        A value for ``bank=``.

    Examples:
        >>> import tag_optax
        >>> tx = tag_optax.tag_rmsprop(5.0, 20, bank=tag_optax.full(nu_dtype="bfloat16"))
    """
    return _Full(mu_dtype, nu_dtype, split)


def running_sum() -> Bank:
    """The sum of the past tasks' second moments, in place of a row for each.

    Memory does not grow with the tasks. It goes with :func:`tag_optax.own` and
    :func:`tag_optax.uniform`, under which the past enters W only as a sum. A task that comes back
    starts with fresh moments, while its old share stays in the sum.

    Returns:
        A value for ``bank=``.

    Examples:
        >>> import tag_optax
        >>> tx = tag_optax.tag_rmsprop(5.0, 1000, relatedness="own", bank="running_sum")
    """
    return _RunningSum()


NAMED = {"full": full, "running_sum": running_sum, "compressed": compressed}


def named(given: str | Bank) -> Bank:
    """The value that an argument ``bank=`` stands for."""
    if isinstance(given, Bank):
        return given
    _checks.check_choice("bank", given, NAMED, ", or one of these called, as tag_optax.full()")
    return NAMED[given]()
