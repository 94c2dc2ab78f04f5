"""A bank at an eighth of the bytes: second moments in 8 bits, directions as sketches.

A row is encoded once, when its task ends, so that errors do not add up over the steps.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tag_optax import _checks, _rows
from tag_optax._bank import Bank, Live, RowPerTask, direction
from tag_optax._relatedness import Relatedness
from tag_optax._types import Params, PyTree

# Leaves below this stay as they are: they cost little, and a network is sensitive to them.
_CODED = 1024
# The most second moments that share a unit.
_GROUP = 64
# Its square, rounded up, is still a finite float32.
_LARGEST = np.float32(0.99 * np.sqrt(np.finfo(np.float32).max))


class Roots(NamedTuple):
    """Second moments V as codes of sqrt(V), in units that a group of them shares."""

    codes: jax.Array  # uint8, like the leaf.
    # The bits of a bfloat16, as uint16: [groups], or [..., groups] where they lie along the last
    # axis. A float16 would not reach the roots of small gradients, and where bfloat16 is not
    # native XLA would widen the whole bank to read a row.
    units: jax.Array


class Sketch(NamedTuple):
    """The inner products of a long vector with random signs, which keep angles."""

    sums: jax.Array  # [S]


class SketchCodes(NamedTuple):
    codes: jax.Array  # int8 [S]
    peak: jax.Array  # []: the largest absolute value.


def encode_roots(v: jax.Array, split: bool) -> Roots:
    """Every code is rounded up, because a V that is too large protects what a task has learned.

    Where the leaf may be split, its groups lie along its last axis, so that it is not flattened.
    """
    # Room to be rounded up into, below the root of the largest number there is.
    root = jnp.minimum(jnp.sqrt(v).astype(jnp.float32), _LARGEST)
    lead, length = (v.shape[:-1], v.shape[-1]) if split else ((), v.size)
    size = next(size for size in range(_GROUP, 0, -1) if length % size == 0)
    groups = root.reshape(*lead, length // size, size)
    units = _bits_rounded_up(jnp.max(groups, axis=-1) / 255)
    unit = _from_bits(units)[..., None]
    codes = jnp.clip(jnp.ceil(groups / jnp.where(unit == 0, 1, unit)), 0, 255)
    return Roots(codes.astype(jnp.uint8).reshape(v.shape), units)


def decode_roots(roots: Roots) -> jax.Array:
    groups = roots.codes.reshape(*roots.units.shape, -1).astype(jnp.float32)
    return jnp.square(groups * _from_bits(roots.units)[..., None]).reshape(roots.codes.shape)


def _bits_rounded_up(x: jax.Array) -> jax.Array:
    """The least bfloat16 that is not below a number, as its bits: the upper half of a float32's."""
    return ((lax.bitcast_convert_type(x, jnp.uint32) + np.uint32(0xFFFF)) >> 16).astype(jnp.uint16)


def _from_bits(bits: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(bits.astype(jnp.uint32) << 16, jnp.float32)


def sketch(tree: PyTree, size: int) -> Sketch:
    """Each number is added, with a random sign, to one of ``size`` sums.

    The signs are a hash of the number's place, so nothing is stored. ``size`` is a prime, so that
    the columns of a matrix, of whatever width, fall on all sums alike.
    """
    total = jnp.zeros((size,), _rows.weights_dtype(tree))

    def add(total: jax.Array, x: jax.Array, start: int) -> jax.Array:
        before = start % size
        rows = -(-(before + x.size) // size)
        padding = (before, rows * size - before - x.size)
        filled = jnp.pad(_rows.everywhere(x).reshape(-1), padding).reshape(rows, size)
        place = lax.iota(jnp.uint32, rows * size).reshape(rows, size)
        signs = _hash(place + np.uint32((start - before) % 2**32)) >> 31
        signed = jnp.where(signs == 1, -filled, filled)
        return total + jnp.sum(signed, axis=0).astype(total.dtype)

    # The same of a tree whose small leaves are joined and of one where they are not.
    small, large = _rows.by_size(tree)
    start = 0
    for x in small:
        total, start = add(total, x, start), start + x.size
    for x in large:
        start = -(-start // size) * size
        total, start = add(total, x, start), start + x.size
    # It can be longer than its vector, and its square, and products of two, must be finite.
    bound = jnp.asarray(np.sqrt(float(jnp.finfo(total.dtype).max) / (2 * size)), total.dtype)
    return Sketch(jnp.clip(total, -bound, bound))


def _hash(x: jax.Array) -> jax.Array:
    """A mixing of 32 bits in which every bit of the result depends on all of them."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def encode_sketch(sketched: Sketch) -> SketchCodes:
    peak = jnp.max(jnp.abs(sketched.sums))
    codes = jnp.round(sketched.sums / jnp.where(peak == 0, 1, peak) * 127)
    return SketchCodes(codes.astype(jnp.int8), peak)


def decode_sketch(codes: SketchCodes) -> Sketch:
    return Sketch(codes.codes.astype(codes.peak.dtype) * (codes.peak / 127))


def _encode(live: Live, split: bool) -> dict[str, PyTree]:
    """The row that is kept of a live one. Adam's first moment is not."""
    row = {
        "nu": jax.tree.map(lambda v: encode_roots(v, split) if v.size >= _CODED else v, live["nu"])
    }
    if "direction" in live:
        seen = live["direction"]
        row["direction"] = encode_sketch(seen) if isinstance(seen, Sketch) else seen
    if "length" in live:
        kept = _decode(row["direction"])
        row["length"] = _rows.lengths(kept, "global", live["length"].dtype)
    return row


def _decode(row: PyTree) -> PyTree:
    decoders = {Roots: decode_roots, SketchCodes: decode_sketch}
    return jax.tree.map(
        lambda x: decoders.get(type(x), lambda x: x)(x), row, is_leaf=lambda x: type(x) in decoders
    )


@dataclasses.dataclass(frozen=True)
class _Compressed(RowPerTask):
    sketch_size: int
    split: bool

    separate_direction: ClassVar[bool] = True

    def check(self, relatedness: Relatedness) -> None:
        if relatedness.compares and relatedness.scope == "leaf":
            raise ValueError(
                "bank='compressed' keeps one sketch of all parameters, and scope='leaf' compares "
                "each leaf by itself: choose scope='global', or bank='full'."
            )

    def view(self, gradient: PyTree) -> PyTree:
        size = sum(x.size for x in jax.tree.leaves(gradient))
        return sketch(gradient, self.sketch_size) if size > self.sketch_size else gradient

    def init(self, live: Live, capacity: int) -> PyTree:
        empty = jax.tree.map(jnp.zeros_like, self.encode(live))
        return _rows.stack(empty, capacity)

    def encode(self, live: Live) -> PyTree:
        return _encode(live, self.splits(live["nu"]))

    def decode(self, row: PyTree, live: Live) -> Live:
        afresh = {"mu": jax.tree.map(jnp.zeros_like, live["mu"])} if "mu" in live else {}
        return _rows.narrowed(_decode(row) | afresh, live)

    def products(
        self, bank: PyTree, live: Live, active: jax.Array, scope: str, dtype: jnp.dtype
    ) -> jax.Array:
        kept, split = bank["direction"], self.splits(bank)
        if not isinstance(kept, SketchCodes):
            return _rows.row_products(kept, direction(live), active, scope, dtype, split)
        sums = direction(live).sums
        products = _rows.row_products(kept.codes, sums, active, scope, dtype, split)
        return products * (kept.peak / 127)[None]

    def sum_past(self, bank: PyTree, weights: jax.Array, past: Params, active: jax.Array) -> Params:
        split = self.splits(bank)
        return _rows.weighted_rows(weights, bank["nu"], past, active, split, _decode)


def compressed(sketch_size: int = 16381, split: bool = False) -> Bank:
    """A row of moments for every task at an eighth of the bytes of :func:`tag_optax.full`.

    Second moments are kept as 8-bit codes of their square roots, in groups of up to 64 that share a
    16-bit unit, and rounded up, so that an error protects rather than exposes; first moments as
    sketches in 8 bits, from which a cosine is known to a standard deviation of
    ``1 / sqrt(sketch_size)``. Leaves below 1024 numbers keep their float32. A task is encoded once,
    when it ends. A task that comes back takes up what was kept of it; under
    :func:`tag_optax.tag_adam` its first moment starts from zero, so that its first steps are small.

    Args:
        sketch_size: How many numbers represent a task in comparisons; best a prime. Directions of
            fewer numbers are kept as they are.
        split: Set it to True where the tasks are spread over devices, as for
            :func:`tag_optax.full`. Parameters that are split are gathered for the sketch.

    Returns:
        A value for ``bank=``.

    Examples:
        >>> import jax, jax.numpy as jnp, tag_optax
        >>> params = jax.ShapeDtypeStruct((1000, 1000), jnp.float32)
        >>> for bank in ("full", "compressed"):
        ...     small, large = (
        ...         tag_optax.state_bytes(tag_optax.tag_rmsprop(5.0, tasks, bank=bank), params)
        ...         for tasks in (10, 110)
        ...     )
        ...     print(f"{bank}: {(large - small) / 100 / 1_000_000:.2f} bytes a parameter and task")
        full: 8.00 bytes a parameter and task
        compressed: 1.05 bytes a parameter and task
    """
    return _Compressed(_checks.check_size("sketch_size", sketch_size), split)
