"""Stacks of parameter-shaped rows, one row a task, and the two ways of reading them.

A bank is the parameters' tree with a leading task axis on every leaf. It stays a tree (never one
flat matrix) so that every leaf keeps its parameter's sharding.

A step reads the bank twice: inner products of every row with one row (the relatedness), and a
weighted sum of the rows (the second moments). Both can be done in two ways:

* all rows in one matrix product a leaf, the fastest way to read a bank that is mostly in use;
* a loop over the rows in use, whose cost follows the tasks seen and not the capacity.

On a mesh a bank may be split: over the tasks, so that devices hold different rows, or along its
parameters, so that they hold parts of every row. Then all rows are read, each device reads what it
holds, and only sums travel: K numbers for the relatedness, and one row where the tasks are spread.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from tag_optax._types import PyTree

# One row read by the loop costs about as much as three rows of the matrix product, measured on CPU
# with ``python -m benchmarks.update_cost``: past a third of the capacity the product wins.
_LOOP_COST = 3


def zeros_like(params: PyTree, dtype: jax.typing.DTypeLike | None) -> PyTree:
    """One row of zeros, stored in ``dtype`` or else in the dtype that moments accumulate in."""
    return jax.tree.map(
        lambda p: jnp.zeros_like(p, dtype=accumulator_dtype(p) if dtype is None else dtype), params
    )


def stack(row: PyTree, capacity: int) -> PyTree:
    """A bank of ``capacity`` copies of ``row``, each leaf sharded as the row is."""
    return jax.tree.map(lambda r: jnp.broadcast_to(r[None], (capacity, *r.shape)), row)


def accumulator_dtype(*leaves: jax.typing.ArrayLike) -> jnp.dtype:
    """The dtype of arithmetic on leaves: float32, or float64 where one of them is float64."""
    is_double = any(jnp.result_type(leaf) == jnp.float64 for leaf in leaves)
    return jnp.dtype(jnp.float64 if is_double else jnp.float32)


def weights_dtype(tree: PyTree) -> jnp.dtype:
    """The dtype of numbers that all leaves share."""
    return accumulator_dtype(*jax.tree.leaves(tree))


def get_row(bank: PyTree, index: jax.Array, spread: bool = False) -> PyTree:
    """Row ``index`` of every leaf. ``spread``: the rows may lie on different devices."""

    def get(rows: jax.Array) -> jax.Array:
        if spread:
            here = jnp.arange(rows.shape[0], dtype=jnp.int32) == index
            spec = PartitionSpec(*jax.typeof(rows).sharding.spec[1:])
            return _combine(here.astype(rows.dtype), rows, spec)
        if rows.dtype != jnp.bfloat16:
            return lax.dynamic_index_in_dim(rows, index, 0, False)
        # Where bfloat16 is not native XLA widens the whole bank to slice it, so the bits are
        # sliced; the barrier keeps it from copying the whole bank's bits ahead of a loop.
        rows, i = lax.optimization_barrier((rows, index))
        bits = lax.bitcast_convert_type(rows, jnp.uint16)
        return lax.bitcast_convert_type(lax.dynamic_index_in_dim(bits, i, 0, False), rows.dtype)

    return jax.tree.map(get, bank)


def set_row(bank: PyTree, index: jax.Array, row: PyTree, spread: bool = False) -> PyTree:
    """The bank with row ``index`` replaced, in place where the bank is donated."""

    def put(rows: jax.Array, r: jax.Array) -> jax.Array:
        if not spread and rows.dtype != jnp.bfloat16:
            return lax.dynamic_update_index_in_dim(rows, r, index, 0)
        # A slice update of a spread bank has no explicit type, and one in bfloat16 is widened. A
        # selection needs neither, and is in place too.
        out = _explicit(rows, jax.typeof(rows).sharding.spec)
        everywhere = lax.broadcast_in_dim(r, rows.shape, range(1, rows.ndim), out_sharding=out)
        here = lax.broadcasted_iota(jnp.int32, rows.shape, 0, out_sharding=out) == index
        return jnp.where(here, everywhere, rows)

    return jax.tree.map(put, bank, row)


def is_spread(bank: PyTree, skip_unseen: bool) -> bool:
    """Whether the rows may lie on different devices: as told, or as the types of the leaves say.

    Only explicit meshes put shardings into types.
    """
    return not skip_unseen or any(
        jax.typeof(rows).sharding.spec[0] is not None for rows in jax.tree.leaves(bank)
    )


def is_split(bank: PyTree, skip_unseen: bool) -> bool:
    """Whether devices may hold different rows, or different parts of a row."""
    return not skip_unseen or any(
        axis is not None
        for rows in jax.tree.leaves(bank)
        for axis in jax.typeof(rows).sharding.spec
    )


def group_count(tree: PyTree, scope: str) -> int:
    """G, how many weights a task has: one, or one for each leaf."""
    return max(len(jax.tree.leaves(tree)), 1) if scope == "leaf" else 1


def group_sums(leaf_values: Sequence[jax.Array], scope: str, dtype: jnp.dtype) -> jax.Array:
    """Leaf by leaf values as ``[G, ...]``: summed ("global", G = 1) or stacked ("leaf")."""
    values = [value.astype(dtype) for value in leaf_values]
    if scope == "leaf" and values:
        return jnp.stack(values)
    return sum(values, jnp.zeros((), dtype))[None]


def per_leaf(groups: jax.Array, leaf_count: int) -> list[jax.Array]:
    """The inverse of :func:`group_sums` for weights: each leaf's row of ``[G, ...]``."""
    return [groups[leaf if groups.shape[0] > 1 else 0] for leaf in range(leaf_count)]


def inner_products(
    a: PyTree, b: PyTree, scope: str, dtype: jnp.dtype, split: bool = False
) -> jax.Array:
    """``<a, b>`` by group, ``[G]``; ``a`` may also be a bank, which gives ``[G, K]``."""
    pairs = list(zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    if scope == "global" and not split:  # Joined, split vectors would be gathered first.
        pairs = _join_short(pairs)
    return group_sums([_inner(x, y) for x, y in pairs], scope, dtype)


def _join_short(pairs: list[tuple[jax.Array, jax.Array]]) -> list[tuple[jax.Array, jax.Array]]:
    """Joins the short vectors (biases, normalisation scales) of a network into one.

    Most leaves of a network are such vectors, and a product apiece costs more than its arithmetic.
    """

    def is_short(pair: tuple[jax.Array, jax.Array]) -> bool:
        x, y = pair
        return y.ndim == 1 and y.size <= 4096 and x.dtype == y.dtype == jnp.float32

    short = [pair for pair in pairs if is_short(pair)]
    if len(short) < 2:
        return pairs
    joined = tuple(jnp.concatenate(vectors, axis=-1) for vectors in zip(*short, strict=True))
    return [pair for pair in pairs if not is_short(pair)] + [(joined[0], joined[1])]


def row_products(
    bank: PyTree, row: PyTree, active: jax.Array, scope: str, dtype: jnp.dtype, split: bool
) -> jax.Array:
    """``<bank[s], row>`` for every active task s, ``[G, K]``; 0 for the others."""

    def all_rows() -> jax.Array:
        products = inner_products(bank, row, scope, dtype, split)
        if split:
            products = everywhere(products)
        return jnp.where(active[None], products, jnp.zeros((), dtype))

    def active_rows(tasks: jax.Array, count: jax.Array) -> jax.Array:
        def add(i: jax.Array, products: jax.Array) -> jax.Array:
            task = tasks[i]
            product = inner_products(get_row(bank, task), row, scope, dtype)
            return products.at[:, task].set(product)

        return lax.fori_loop(0, count, add, no_rows())

    def no_rows() -> jax.Array:
        return jnp.zeros((group_count(row, scope), active.shape[0]), dtype)

    return _read(bank, row, active, split, all_rows, active_rows, no_rows)


def weighted_rows(
    weights: jax.Array, bank: PyTree, like: PyTree, active: jax.Array, split: bool
) -> PyTree:
    """``sum_s weights[s] bank[s]`` over the active tasks, a row ``like`` the given one.

    The weights come by group, ``[G, K]``.
    """
    rows_like, structure = jax.tree.flatten(like)
    banks = jax.tree.leaves(bank)
    weights = jnp.where(active[None], weights, jnp.zeros_like(weights))
    by_leaf = [
        w.astype(r.dtype) for w, r in zip(per_leaf(weights, len(rows_like)), rows_like, strict=True)
    ]

    def all_rows() -> list[jax.Array]:
        return [
            _combine(w, rows, jax.typeof(r).sharding.spec)
            for w, rows, r in zip(by_leaf, banks, rows_like, strict=True)
        ]

    def active_rows(tasks: jax.Array, count: jax.Array) -> list[jax.Array]:
        def weighted(task: jax.Array) -> list[jax.Array]:
            rows = zip(by_leaf, get_row(banks, task), strict=True)
            return [w[task] * row.astype(w.dtype) for w, row in rows]

        def add(i: jax.Array, totals: list[jax.Array]) -> list[jax.Array]:
            return jax.tree.map(jnp.add, totals, weighted(tasks[i]))

        # From the first row on: that saves a pass of zeros.
        return lax.fori_loop(1, count, add, weighted(tasks[0]))

    def no_rows() -> list[jax.Array]:
        return [jnp.zeros_like(r) for r in rows_like]

    summed = _read(banks, rows_like, active, split, all_rows, active_rows, no_rows)
    return jax.tree.unflatten(structure, summed)


def _read(
    bank: PyTree,
    row: PyTree,
    active: jax.Array,
    split: bool,
    all_rows: Callable[[], PyTree],
    active_rows: Callable[[jax.Array, jax.Array], PyTree],
    no_rows: Callable[[], PyTree],
) -> PyTree:
    """Reads a bank in the cheaper of the two ways: all rows, or the active ones by their number."""
    if split:  # Row by row, devices would have to meet at every row.
        return all_rows()
    tasks = jnp.argsort(~active)  # The active ones first.
    count = jnp.sum(active, dtype=jnp.int32)
    ways = [no_rows, lambda: active_rows(tasks, count)]
    way = (count > 0).astype(jnp.int32)
    # A matrix product of a narrower bank would first widen a copy of the whole bank.
    leaves = zip(jax.tree.leaves(bank), jax.tree.leaves(row), strict=True)
    if all(rows.dtype == accumulator_dtype(r) for rows, r in leaves):
        ways.append(all_rows)
        way += (_LOOP_COST * count > active.shape[0]).astype(jnp.int32)
    return lax.switch(way, ways)


def _inner(a: jax.Array, b: jax.Array) -> jax.Array:
    # A dot, not sum(a * b): on CPU that sum is ten times slower. Accelerators would round the
    # operands to bfloat16 at the default precision.
    dtype = accumulator_dtype(b)
    task_axes = jax.typeof(a).sharding.spec[: a.ndim - b.ndim]
    return jnp.tensordot(
        a.astype(dtype),
        b.astype(dtype),
        b.ndim,
        precision=lax.Precision.HIGHEST,
        out_sharding=_explicit(b, PartitionSpec(*task_axes)),
    )


def _combine(weights: jax.Array, rows: jax.Array, spec: PartitionSpec) -> jax.Array:
    """``sum_s weights[s] rows[s]``, laid out as ``spec`` says."""
    # Each weight to its row: else JAX would gather the rows to where the weights are.
    weights = _lay(weights, PartitionSpec(*jax.typeof(rows).sharding.spec[:1]))
    return jnp.tensordot(
        weights,
        rows.astype(weights.dtype),
        1,
        precision=lax.Precision.HIGHEST,
        out_sharding=_explicit(rows, spec),
    )


def everywhere(x: jax.Array) -> jax.Array:
    """The same numbers on every device, so that what follows from them is computed and not sent."""
    x = _lay(x, PartitionSpec())
    mesh = jax.typeof(x).sharding.mesh
    if jax.sharding.AxisType.Auto in mesh.axis_types:
        x = lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, PartitionSpec()))
    return x


def _lay(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    """``x`` as ``spec`` says on the explicit axes of a mesh."""
    sharding = _explicit(x, spec)
    return x if sharding is None else jax.sharding.reshard(x, sharding)


def _explicit(x: jax.Array, spec: PartitionSpec) -> jax.sharding.NamedSharding | None:
    """``spec`` on the mesh of ``x`` where its axes are explicit: there a contraction must say."""
    mesh = jax.typeof(x).sharding.mesh
    explicit = jax.sharding.AxisType.Explicit in mesh.axis_types
    return jax.sharding.NamedSharding(mesh, spec) if explicit else None
