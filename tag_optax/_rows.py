"""Stacks of rows, one row a task, and how a step reads them.

A stack is a tree of arrays with a leading task axis. It stays a tree (never one flat matrix) so
that every leaf keeps its parameter's sharding, and because XLA compiles one kernel for all leaves
of a shape, but one for every slice of a vector. Only what represents a task in comparisons, which
no step parts again, has its small leaves joined in one vector (`join`).

A step reads stacks twice: inner products of every row with one row (the relatedness), and a
weighted sum of the rows (the second moments). Both follow the tasks seen and not the capacity.

On a mesh a stack may be split: over the tasks, so that devices hold different rows, or along its
parameters, so that they hold parts of every row. Then all rows are read, each device reads what it
holds, and only sums travel: K numbers for the relatedness, and one row where the tasks are spread.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from tag_optax._types import PyTree

# Measured on CPU with ``python -m benchmarks.update_cost``. The product of one row costs as much as
# this many rows of one matrix product, which reads them all.
_ROW_COST = 4
# Rows that are added to the sum in one pass over it: the more, the less traffic, and the more to
# compile, which grows with the number of leaves too.
_CHUNK = 5
_CHUNKS = 200
# The most numbers of a leaf that is joined with others: above, joining costs a pass over memory and
# gains nothing.
_JOINED = 2**18


class Joined(NamedTuple):
    """A parameter-shaped tree with its small leaves joined in one vector."""

    vector: jax.Array
    large: PyTree  # The other leaves, in the tree's structure, with () for a leaf that was joined.


def join(tree: PyTree, lead: int = 0) -> PyTree:
    """Joins the small leaves of a tree, if there are several; of a stack with ``lead=1``."""
    leaves, structure = jax.tree.flatten(tree)
    is_small = [_is_small(leaf.shape[lead:]) for leaf in leaves]
    small = [leaf for leaf, joins in zip(leaves, is_small, strict=True) if joins]
    if len(small) < 2:
        return tree
    large = [() if joins else leaf for leaf, joins in zip(leaves, is_small, strict=True)]
    return Joined(_concatenated(small, lead), jax.tree.unflatten(structure, large))


def part(joined: Joined, like: PyTree) -> PyTree:
    """What was joined, or a stack of it, leaf by leaf in the shapes of a row like this."""
    leaves, structure = jax.tree.flatten(like)
    parts = iter(_parted(joined.vector, tuple(x.shape for x in leaves if _is_small(x.shape))))
    parted = [
        next(parts) if _is_small(leaf.shape) else large
        for leaf, large in zip(leaves, structure.flatten_up_to(joined.large), strict=True)
    ]
    return jax.tree.unflatten(structure, parted)


def by_size(tree: PyTree) -> tuple[list[jax.Array], list[jax.Array]]:
    """The small leaves of a row, or what they are joined in, and the large ones."""
    if isinstance(tree, Joined):
        return [tree.vector], jax.tree.leaves(tree.large)
    leaves = jax.tree.leaves(tree)
    return (
        [leaf for leaf in leaves if _is_small(leaf.shape)],
        [leaf for leaf in leaves if not _is_small(leaf.shape)],
    )


def _is_small(shape: tuple[int, ...]) -> bool:
    return math.prod(shape) <= _JOINED


# Compiled as one, for states that are rearranged outside of a jitted function.
@functools.partial(jax.jit, static_argnums=1)
def _concatenated(leaves: list[jax.Array], lead: int) -> jax.Array:
    same = len({leaf.dtype for leaf in leaves}) == 1
    dtype = leaves[0].dtype if same else accumulator_dtype(*leaves)
    return jnp.concatenate([x.reshape(*x.shape[:lead], -1).astype(dtype) for x in leaves], -1)


@functools.partial(jax.jit, static_argnums=1)
def _parted(vector: jax.Array, shapes: tuple[tuple[int, ...], ...]) -> list[jax.Array]:
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))
    starts, lead = [0, *ends], vector.shape[:-1]
    return [
        lax.slice_in_dim(vector, start, end, axis=-1).reshape(*lead, *shape)
        for start, end, shape in zip(starts, ends, shapes, strict=False)
    ]


def zeros_like(params: PyTree, dtype: jax.typing.DTypeLike | None) -> PyTree:
    """One row of zeros, stored in ``dtype`` or else in the dtype that moments accumulate in."""
    return jax.tree.map(
        lambda p: jnp.zeros_like(p, dtype=accumulator_dtype(p) if dtype is None else dtype), params
    )


def narrowed(tree: PyTree, like: PyTree) -> PyTree:
    """A tree in the dtypes of another, its numbers kept within what these can hold."""

    def narrow(x: jax.Array, y: jax.Array) -> jax.Array:
        if jnp.finfo(y.dtype).max < jnp.finfo(x.dtype).max:
            x = jnp.clip(
                x, jnp.finfo(y.dtype).min.astype(x.dtype), jnp.finfo(y.dtype).max.astype(x.dtype)
            )
        return x.astype(y.dtype)

    return jax.tree.map(narrow, tree, like)


def stack(row: PyTree, capacity: int) -> PyTree:
    """``capacity`` copies of ``row``, each leaf sharded as the row is."""
    return jax.tree.map(lambda r: jnp.broadcast_to(r[None], (capacity, *r.shape)), row)


def accumulator_dtype(*leaves: jax.typing.ArrayLike) -> jnp.dtype:
    """The dtype of arithmetic on leaves: float32, or float64 where one of them is float64."""
    is_double = any(jnp.result_type(leaf) == jnp.float64 for leaf in leaves)
    return jnp.dtype(jnp.float64 if is_double else jnp.float32)


def weights_dtype(tree: PyTree) -> jnp.dtype:
    """The dtype of numbers that all leaves share."""
    return accumulator_dtype(*jax.tree.leaves(tree))


def get_row(stacked: PyTree, index: jax.Array, spread: bool = False) -> PyTree:
    """Row ``index`` of every leaf. ``spread``: the rows may lie on different devices."""
    # An unsigned index, for which JAX compiles no test of negative ones: there are many slices.
    index = index.astype(jnp.uint32)

    def get(rows: jax.Array) -> jax.Array:
        if spread:
            # A product: before it sums a selection, XLA would store it, a bank's size.
            here = jnp.arange(rows.shape[0], dtype=jnp.uint32) == index
            return _combine(here.astype(rows.dtype), rows, jax.typeof(rows).sharding.spec[1:])
        if rows.dtype != jnp.bfloat16:
            return _slice(rows, index)
        # Where bfloat16 is not native XLA widens the whole stack to slice it, so the bits are
        # sliced; the barrier keeps it from copying the whole stack's bits ahead of a loop.
        rows, i = lax.optimization_barrier((rows, index))
        bits = lax.bitcast_convert_type(rows, jnp.uint16)
        return lax.bitcast_convert_type(_slice(bits, i), rows.dtype)

    return jax.tree.map(get, stacked)


def _slice(rows: jax.Array, index: jax.Array) -> jax.Array:
    zero = np.uint32(0)
    row = lax.dynamic_slice(rows, (index, *[zero] * (rows.ndim - 1)), (1, *rows.shape[1:]))
    return lax.squeeze(row, (0,))


def _is_row(rows: jax.Array, index: jax.Array) -> jax.Array:
    """True in one row and False in the others, laid out as they are."""
    out = _explicit(rows, jax.typeof(rows).sharding.spec)
    return lax.broadcasted_iota(jnp.uint32, rows.shape, 0, out_sharding=out) == index


def set_row(stacked: PyTree, index: jax.Array, row: PyTree, spread: bool = False) -> PyTree:
    """The stack with row ``index`` replaced, in place where the stack is donated."""
    index = index.astype(jnp.uint32)

    def put(rows: jax.Array, r: jax.Array) -> jax.Array:
        if not spread and rows.dtype != jnp.bfloat16:
            zeros = [np.uint32(0)] * r.ndim
            return lax.dynamic_update_slice(rows, r[None], (index, *zeros))
        # A slice update of a spread stack has no explicit type, and one in bfloat16 is widened. A
        # selection needs neither, and is in place too.
        out = _explicit(rows, jax.typeof(rows).sharding.spec)
        everywhere = lax.broadcast_in_dim(r, rows.shape, range(1, rows.ndim), out_sharding=out)
        return jnp.where(_is_row(rows, index), everywhere, rows)

    return jax.tree.map(put, stacked, row)


def is_spread(stacked: PyTree) -> bool:
    """Whether the rows lie on different devices, as far as the types of the leaves say.

    Only explicit meshes put shardings into types.
    """
    return any(
        jax.typeof(rows).sharding.spec[:1] not in [(), (None,)] for rows in jax.tree.leaves(stacked)
    )


def is_split(tree: PyTree) -> bool:
    """Whether devices hold different parts of it, as far as the types of the leaves say."""
    return any(
        axis is not None
        for leaf in jax.tree.leaves(tree)
        for axis in jax.typeof(leaf).sharding.spec
    )


def group_count(tree: PyTree, scope: str) -> int:
    """G, how many weights a task has: one, or one for each leaf."""
    return max(len(jax.tree.leaves(tree)), 1) if scope == "leaf" else 1


def by_leaf(groups: jax.Array, like: PyTree) -> PyTree:
    """Each leaf's own of ``[G, ...]``, in the structure of ``like``."""
    leaves, structure = jax.tree.flatten(like)
    one = groups.shape[0] == 1
    each = [groups[0]] * len(leaves) if one else [groups[i] for i in range(len(leaves))]
    return jax.tree.unflatten(structure, each)


def inner_products(a: PyTree, b: PyTree, scope: str, dtype: jnp.dtype) -> jax.Array:
    """``<a, b>`` by group, ``[G]``; ``a`` may also be a stack, which gives ``[G, K]``."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    values = [_inner(x, y).astype(dtype) for x, y in pairs]
    if scope == "leaf" and values:
        return jnp.stack(values)
    return sum(values, jnp.zeros((), dtype))[None]


def lengths(tree: PyTree, scope: str, dtype: jnp.dtype) -> jax.Array:
    """Euclidean lengths by group, ``[G]``."""
    return jnp.sqrt(inner_products(tree, tree, scope, dtype))


def row_products(
    stacked: PyTree, row: PyTree, active: jax.Array, scope: str, dtype: jnp.dtype, split: bool
) -> jax.Array:
    """``<stacked[s], row>`` for every active task s, ``[G, K]``; 0 for the others."""

    def all_rows() -> jax.Array:
        products = inner_products(stacked, row, scope, dtype)
        if split:
            products = everywhere(products)
        return jnp.where(active[None], products, jnp.zeros((), dtype))

    if split:  # Row by row, each row would be an all-reduce.
        return all_rows()
    tasks = jnp.argsort(~active)  # The active ones first.
    count = jnp.sum(active, dtype=jnp.int32)

    def active_rows() -> jax.Array:
        def add(i: jax.Array, products: jax.Array) -> jax.Array:
            product = inner_products(get_row(stacked, tasks[i]), row, scope, dtype)
            return products.at[:, tasks[i]].set(product)

        none = jnp.zeros((group_count(row, scope), active.shape[0]), dtype)
        return lax.fori_loop(0, count, add, none)

    # A matrix product of a narrower stack would first widen a copy of all of it.
    pairs = zip(jax.tree.leaves(stacked), jax.tree.leaves(row), strict=True)
    if any(rows.dtype != accumulator_dtype(r) for rows, r in pairs):
        return active_rows()
    return lax.cond(_ROW_COST * count > active.shape[0], all_rows, active_rows)


def weighted_rows(
    weights: jax.Array,
    stacked: PyTree,
    total: PyTree,
    active: jax.Array,
    split: bool,
    decode: Callable[[PyTree], PyTree] | None = None,
) -> PyTree:
    """``sum_s weights[s] decode(stacked[s])`` over the active tasks, written over ``total``.

    The weights come by group, ``[G, K]``. With no active task ``total`` stays as it is.
    """
    weights = jnp.where(active[None], weights, jnp.zeros_like(weights))

    def bounded(x: jax.Array) -> jax.Array:
        """A weight times a V that is large may be infinite."""
        return jnp.minimum(x, jnp.finfo(x.dtype).max)

    def combine(w: jax.Array, rows: jax.Array, t: jax.Array) -> jax.Array:
        if decode is None:
            return bounded(_combine(w.astype(t.dtype), rows, jax.typeof(t).sharding.spec))
        # No product: it would store all rows decoded, where a sum decodes as it goes.
        w = _lay(w.astype(t.dtype), PartitionSpec(*jax.typeof(rows).sharding.spec[:1]))
        weighted = lax.expand_dims(w, range(1, rows.ndim)) * rows.astype(t.dtype)
        return bounded(jnp.sum(weighted, axis=0))

    if split:
        rows = stacked if decode is None else jax.vmap(decode)(stacked)
        return jax.tree.map(combine, by_leaf(weights, total), rows, total)
    size = max(1, min(_CHUNK, _CHUNKS // max(len(jax.tree.leaves(total)), 1)))
    count = jnp.sum(active, dtype=jnp.int32)
    # The last chunk is filled up with the last active task at weight 0: it is in the cache already.
    places = jnp.arange(active.shape[0] + size, dtype=jnp.int32)
    tasks = jnp.argsort(~active)[jnp.clip(places, 0, jnp.maximum(count - 1, 0))]

    def add(chunk: jax.Array, totals: PyTree) -> PyTree:
        at = chunk * size + jnp.arange(size, dtype=jnp.int32)
        here = tasks[at]
        w = jnp.where(at < count, weights[:, here], 0)
        totals = jax.tree.map(lambda t: jnp.where(chunk == 0, jnp.zeros_like(t), t), totals)
        for place in range(size):
            of_leaf = by_leaf(w[:, place], total)
            rows = get_row(stacked, here[place])
            totals = jax.tree.map(
                lambda t, a, r: t + a.astype(t.dtype) * r.astype(t.dtype),
                totals,
                of_leaf,
                rows if decode is None else decode(rows),
            )
        return jax.tree.map(bounded, totals)

    return lax.fori_loop(0, (count + size - 1) // size, add, total)


def _inner(a: jax.Array, b: jax.Array) -> jax.Array:
    """``<a, b>``, or for a stack of rows ``a`` one product a row."""
    dtype = accumulator_dtype(b)
    a, b = a.astype(dtype), b.astype(dtype)
    if (a.ndim, b.ndim) != (2, 1):
        lead = a.ndim - b.ndim
        return jnp.sum(a * lax.expand_dims(b, range(lead)), axis=tuple(range(lead, a.ndim)))
    # Vectors, where the small leaves are: half the time of the sum, five times as long to compile.
    # Accelerators would round the operands to bfloat16 at the default precision.
    spec = PartitionSpec(*jax.typeof(a).sharding.spec[:1])
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST, out_sharding=_explicit(b, spec))


def _combine(weights: jax.Array, rows: jax.Array, spec: Iterable[Any]) -> jax.Array:
    """``sum_s weights[s] rows[s]``, laid out as ``spec`` says."""
    # Each weight to its row: else JAX would gather the rows to where the weights are.
    weights = _lay(weights, PartitionSpec(*jax.typeof(rows).sharding.spec[:1]))
    return jnp.tensordot(
        weights,
        rows.astype(weights.dtype),
        1,
        precision=lax.Precision.HIGHEST,
        out_sharding=_explicit(rows, PartitionSpec(*spec)),
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
