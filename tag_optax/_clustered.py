"""A bank of a few rows for any number of tasks: the most related ones share a row."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tag_optax import _checks, _rows
from tag_optax._bank import Bank, Change, Exchanged, Live, Rows, direction
from tag_optax._relatedness import Relatedness, cosine_of
from tag_optax._types import Params, PyTree


class Clusters(NamedTuple):
    """R rows for K tasks."""

    rows: Live  # [R, ...]: V summed over a row's tasks, and the mean of their directions.
    row_of: jax.Array  # int32 [K]: the row of each task; -1 for none.
    sizes: jax.Array  # int32 [R]: how many tasks a row has taken in; 0 for a free row.


class _Place(NamedTuple):
    """Where the row of a task that ends goes."""

    row: jax.Array
    # Before that, ``first`` takes in ``second``: rows, or R for the task that ends.
    merges: jax.Array
    first: jax.Array
    second: jax.Array


@dataclasses.dataclass(frozen=True)
class _Clustered(Bank):
    count: int
    split: bool

    def check(self, relatedness: Relatedness) -> None:
        if not relatedness.compares:
            raise ValueError(
                f"bank=clustered({self.count}) joins the tasks that are most related, and "
                f"{relatedness} compares none: choose relatedness='cosine', or bank='full' or "
                "'running_sum'."
            )

    def splits(self, bank: PyTree) -> bool:
        return self.split or _rows.is_split(bank)

    def init(self, live: Live, capacity: int) -> PyTree:
        return Clusters(
            rows=_rows.stack(live, self.count),
            row_of=jnp.full((capacity,), -1, jnp.int32),
            sizes=jnp.zeros((self.count,), jnp.int32),
        )

    def exchange(self, live: Live, past: Params, bank: Clusters, change: Change) -> Exchanged:
        left, task, changed = change
        bank = lax.fori_loop(
            0,
            (changed & (left >= 0)).astype(jnp.int32),
            lambda _, bank: self._put(bank, live, left),
            bank,
        )
        # A task alone in its row takes it up again. One that shares its row starts afresh, and its
        # old share stays there.
        row = bank.row_of[task]
        alone = (row >= 0) & (bank.sizes[row] == 1)

        def take() -> Live:
            kept = _rows.get_row(bank.rows, row)
            return jax.tree.map(lambda x: jnp.where(alone, x, jnp.zeros_like(x)), kept)

        live = lax.cond(changed, take, lambda: live)
        here = jnp.arange(bank.row_of.shape[0], dtype=jnp.int32) == task
        row_of = jnp.where(here & changed & ~alone, -1, bank.row_of)
        return Exchanged(live, past, bank._replace(row_of=row_of), afresh=changed & ~alone)

    def _put(self, bank: Clusters, live: Live, task: jax.Array) -> Clusters:
        """The bank with the row of a task that ends."""
        row, merges, first, second = self._place(bank, live, task)
        takes_in_live = second == self.count
        kept = jnp.minimum(second, self.count - 1)
        grows = jnp.where(takes_in_live, 1, bank.sizes[kept])

        # Two rows are written whatever happens: rounds of a loop that differ between seeds side by
        # side, each of which merges other tasks, would copy all rows.
        old = _rows.get_row(bank.rows, first)
        other = jax.tree.map(
            lambda x, y: jnp.where(takes_in_live, x, y), live, _rows.get_row(bank.rows, kept)
        )
        both = _merged(old, other, bank.sizes[first], grows)
        both = jax.tree.map(lambda x, y: jnp.where(merges, x, y), both, old)
        puts = ~(merges & takes_in_live)

        def write(i: jax.Array, rows: Live) -> Live:
            # Where nothing is put, row and first are one.
            new = jax.tree.map(lambda x, y: jnp.where(puts & (i == 1), x, y), live, both)
            return _rows.set_row(rows, jnp.where(i == 1, row, first), new)

        rows = lax.fori_loop(0, 2, write, bank.rows)

        index = jnp.arange(self.count, dtype=jnp.int32)
        tasks = jnp.arange(bank.row_of.shape[0], dtype=jnp.int32)
        row_of = jnp.where(merges & (bank.row_of == second), first, bank.row_of)
        sizes = jnp.where(merges & (index == first), bank.sizes + grows, bank.sizes)
        sizes = jnp.where(puts & (index == row), 1, sizes)
        return Clusters(rows, jnp.where(tasks == task, row, row_of), sizes)

    def _place(self, bank: Clusters, live: Live, task: jax.Array) -> _Place:
        own, free = bank.row_of[task], bank.sizes == 0
        merges = (own < 0) & ~jnp.any(free)
        best = lax.cond(
            merges,
            lambda: jnp.argmax(_similarities(bank.rows, live)).astype(jnp.int32),
            lambda: jnp.zeros((), jnp.int32),
        )
        first, second = jnp.divmod(best, jnp.int32(self.count + 1))
        row = jnp.where(merges, jnp.where(second == self.count, first, second), own)
        unused = jnp.argmax(free).astype(jnp.int32)
        return _Place(jnp.where((own < 0) & ~merges, unused, row), merges, first, second)

    def rows(self, bank: Clusters, others: jax.Array, learned: jax.Array) -> Rows:
        index = jnp.arange(self.count, dtype=jnp.int32)
        members = bank.row_of[None] == index[:, None]
        # A row counts for the tasks in it but the present one, those that have left it included.
        of_others = bank.sizes - jnp.sum(members & ~others[None], axis=1, dtype=jnp.int32)
        idle = jnp.sum(members & (others & ~learned)[None], axis=1, dtype=jnp.int32)
        tasks = jnp.arange(others.shape[0], dtype=jnp.int32)
        latest = jnp.max(jnp.where(members & others[None], tasks[None], 0), axis=1)
        return Rows(active=of_others > 0, counts=of_others > idle, task=latest)

    def products(
        self, bank: Clusters, live: Live, active: jax.Array, scope: str, dtype: jnp.dtype
    ) -> jax.Array:
        rows = direction(bank.rows)
        split = self.splits(bank.rows)
        return _rows.row_products(rows, direction(live), active, scope, dtype, split)

    def lengths(self, bank: Clusters) -> jax.Array:
        return bank.rows["length"].T

    def by_task(self, bank: Clusters, weights: jax.Array) -> jax.Array:
        return jnp.where(bank.row_of[None] >= 0, weights[:, bank.row_of], 0)

    def sum_past(
        self, bank: Clusters, weights: jax.Array, past: Params, active: jax.Array
    ) -> Params:
        split = self.splits(bank.rows)
        return _rows.weighted_rows(weights, bank.rows["nu"], past, active, split)


def _merged(row: Live, other: Live, size: jax.Array, other_size: jax.Array) -> Live:
    """Two rows in one: V added, directions averaged over the tasks."""

    def add(v: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.minimum(v + w, jnp.finfo(v.dtype).max)

    def mean(m: jax.Array, n: jax.Array) -> jax.Array:
        share = other_size.astype(m.dtype) / (size + other_size).astype(m.dtype)
        return m + share * (n - m)

    both = {
        name: jax.tree.map(add if name == "nu" else mean, row[name], other[name])
        for name in row
        if name != "length"
    }
    if "length" in row:
        length = row["length"]
        scope = "global" if length.shape[0] == 1 else "leaf"
        both["length"] = _rows.lengths(direction(both), scope, length.dtype)
    return both


def _similarities(rows: Live, live: Live) -> jax.Array:
    """Cosines between all rows and the live one (the last), ``[R + 1, R + 1]``; -inf for i >= j."""
    kept, present = direction(rows), direction(live)
    dtype = _rows.weights_dtype(present)
    count = jax.tree.leaves(rows)[0].shape[0]

    def products(stack: PyTree, row: PyTree) -> jax.Array:
        return _rows.everywhere(_rows.inner_products(stack, row, "global", dtype)[0])

    # Row by row: of one product of the stack with itself XLA would first lay a copy.
    def add(i: jax.Array, inner: jax.Array) -> jax.Array:
        return inner.at[i].set(products(kept, _rows.get_row(kept, i)))

    inner = lax.fori_loop(0, count, add, jnp.zeros((count, count), dtype))
    across, own = products(kept, present)[:, None], products(present, present)
    inner = jnp.block([[inner, across], [across.T, own[None, None]]])
    length = jnp.sqrt(jnp.diagonal(inner))
    similarity = cosine_of(inner, length[:, None], length[None])
    index = jnp.arange(length.shape[0], dtype=jnp.int32)
    return jnp.where(index[:, None] < index[None], similarity, -jnp.inf)


def clustered(rows: int, split: bool = False) -> Bank:
    """At most ``rows`` rows of moments, however many tasks.

    When all rows are taken, the two most related tasks become one: their second moments are added
    and their directions averaged. With as many rows as tasks it is :func:`tag_optax.full`; with
    one row, :func:`tag_optax.running_sum` but for alpha. A task that comes back takes up its row
    if it is alone in it, and else starts afresh, while its old share stays in the row.

    Args:
        rows: How many rows there are.
        split: Set it to True where devices hold different parts of the parameters, as for
            :func:`tag_optax.full`.

    Returns:
        A value for ``bank=``.

    Examples:
        >>> import jax.numpy as jnp, tag_optax
        >>> tx = tag_optax.tag_rmsprop(5.0, 1000, bank=tag_optax.clustered(2))
        >>> state = tx.init(jnp.zeros(2))
        >>> for task, gradient in enumerate([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]]):
        ...     _, state = tx.update(jnp.array(gradient), state, task_id=task)
        >>> state[0].bank.row_of[:4]  # Tasks 0 and 2 are alike; task 3 is not in the bank yet.
        Array([ 0,  1,  0, -1], dtype=int32)
    """
    return _Clustered(_checks.check_size("rows", rows), split)
