"""What a bank must do: keep the moments of the tasks other than the present one.

A bank is a small frozen value whose functions the update calls; what it keeps is the field ``bank``
of the state. The row of the present task (the live row) lies outside the bank, because rewriting
one stacked tree at every step would make XLA copy the whole of it; it is exchanged when the task
changes. Which operations make XLA copy a bank is known to the banks and `_rows`, and nowhere else.
"""

import abc
import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tag_optax import _rows
from tag_optax._relatedness import Relatedness
from tag_optax._types import Params, PyTree

# The live row: "nu" is V[t]; "mu" is M[t]; "direction" is what represents the task in comparisons
# where "mu" does not; "length" is the direction's Euclidean length, where similarity is a cosine.
# What is not read is not there.
Live = dict[str, PyTree]


class Change(NamedTuple):
    """Of the task that the steps are for."""

    left: jax.Array  # int32 []: the task until now; -1 before the first step.
    task: jax.Array  # int32 []
    happens: jax.Array  # bool []


class Rows(NamedTuple):
    """What the rows of a bank stand for."""

    active: jax.Array  # bool [R]: rows of other tasks, to be read.
    counts: jax.Array  # bool [R]: those of them whose tasks have had a finite step.
    task: jax.Array  # int32 [R]: the task of a row.


class Exchanged(NamedTuple):
    live: Live
    past: Params
    bank: PyTree
    afresh: jax.Array  # bool []: the task taken up starts from zeros.


@dataclasses.dataclass(frozen=True)
class Bank(abc.ABC):
    """A way to keep the moments of past tasks; `tag_optax.full` and others make one."""

    # Adam's own M[t] is not what represents a task: the bank keeps something else of directions.
    separate_direction: ClassVar[bool] = False

    def check(self, relatedness: Relatedness) -> None:
        """Refuses a relatedness that the bank cannot serve."""
        del relatedness

    def storage(self, moment: str) -> jax.typing.DTypeLike | None:
        """What a moment of the live row is stored in; None for the dtype of the arithmetic."""
        del moment
        return None

    def splits(self, bank: PyTree) -> bool:
        """Whether devices hold different parts of the bank."""
        del bank
        return False

    def view(self, gradient: PyTree) -> PyTree:
        """What of a gradient enters the comparison of tasks."""
        return gradient

    @abc.abstractmethod
    def init(self, live: Live, capacity: int) -> PyTree:
        """The empty bank, given a live row of zeros."""

    @abc.abstractmethod
    def exchange(self, live: Live, past: Params, bank: PyTree, change: Change) -> Exchanged:
        """If the task has changed, puts away the row of the one left and takes up the other's."""

    def rows(self, bank: PyTree, others: jax.Array, learned: jax.Array) -> Rows:
        """The rows, given which other tasks have been visited and which have learned, ``[K]``.

        One a task, where a bank does not say otherwise. What is read follows from the visits alone,
        which all seeds of a `vmap` have in common: else each of them would read every row.
        """
        del bank
        tasks = jnp.arange(others.shape[0], dtype=jnp.int32)
        return Rows(others, others & learned, tasks)

    @abc.abstractmethod
    def products(
        self, bank: PyTree, live: Live, active: jax.Array, scope: str, dtype: jnp.dtype
    ) -> jax.Array:
        """Inner products of the rows' directions with the live one, ``[G, R]``."""

    def lengths(self, bank: PyTree) -> jax.Array:
        """The lengths of the rows' directions, ``[G, R]``."""
        return bank["length"].T

    def by_task(self, bank: PyTree, weights: jax.Array) -> jax.Array:
        """The weights of the tasks, ``[G, K]`` or ``[G, 1]`` for all, from those of the rows."""
        del bank
        return weights

    @abc.abstractmethod
    def sum_past(self, bank: PyTree, weights: jax.Array, past: Params, active: jax.Array) -> Params:
        """``sum_s alpha(t, s) V[s]``, written over ``past``; the weights come as ``[G, R]``."""


class RowPerTask(Bank):
    """A bank that keeps a row for every task, in whatever form."""

    split: bool

    def splits(self, bank: PyTree) -> bool:
        return self.split or _rows.is_split(bank)

    def encode(self, live: Live) -> PyTree:
        """The row that is kept of a live one."""
        return live

    def decode(self, row: PyTree, live: Live) -> Live:
        """The live row of what was kept, in the dtypes of a live one."""
        del live
        return row

    def exchange(self, live: Live, past: Params, bank: PyTree, change: Change) -> Exchanged:
        spread = self.split or _rows.is_spread(bank)

        def put(i: jax.Array, bank: PyTree) -> PyTree:
            # The barrier keeps XLA from encoding ahead of the loop, which would be at every step.
            row = self.encode(lax.optimization_barrier((live, i))[0])
            # A fresh state puts zeros on zeros.
            return _rows.set_row(bank, jnp.maximum(change.left, 0), row, spread)

        # A loop of no or one round, because XLA keeps a loop's carry in place, where the branches
        # of a condition copy what they pass on. The new row is read after it: read and written in
        # one body, a bank that is spread is copied.
        bank = lax.fori_loop(0, change.happens.astype(jnp.int32), put, bank)
        live = lax.cond(
            change.happens,
            lambda: self.decode(_rows.get_row(bank, change.task, spread), live),
            lambda: live,
        )
        return Exchanged(live, past, bank, afresh=jnp.zeros((), bool))


def direction(live: Live) -> PyTree:
    """What represents the present task in comparisons."""
    return live.get("direction", live.get("mu"))
