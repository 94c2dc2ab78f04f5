"""A number for every array of a state, by which a checkpoint that was damaged is known.

Computed where the arrays are: they may be split over devices and hosts, and nothing but the numbers
travels. Rows of zeros at an array's end change nothing, so a bank that is restored with more or
fewer rows behind its tasks keeps its number.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# Odd, and without a pattern: the golden ratio's fraction and more of its kind, one for each axis.
_MULTIPLIERS = np.array([2654435769, 2246822519, 3266489917, 668265263, 374761393, 3340351787])


def fingerprint(array: jax.Array) -> jax.Array:
    """uint32[]: the sum of all words, each mixed with its place.

    Mixing loses no bit, so a change of a single word always shows, and others all but once in four
    thousand million times. A zero stays zero.

    >>> x = jnp.arange(6.0).reshape(2, 3)
    >>> more = jnp.concatenate([x, jnp.zeros((1, 3))])
    >>> bool(fingerprint(x) == fingerprint(more)), bool(fingerprint(x) == fingerprint(-x))
    (True, False)
    """
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    # Numbers of eight bytes become two words.
    unsigned = {1: jnp.uint8, 2: jnp.uint16}.get(array.dtype.itemsize, jnp.uint32)
    words = lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32)
    place = jnp.zeros(words.shape, jnp.uint32)
    for axis in range(words.ndim):
        along = lax.broadcasted_iota(jnp.uint32, words.shape, axis) + jnp.uint32(1)
        place += along * jnp.uint32(_MULTIPLIERS[axis % len(_MULTIPLIERS)])
    return jnp.sum(_mixed(words * (place | jnp.uint32(1))), dtype=jnp.uint32)


def fingerprints(tree: Any) -> dict[str, jax.Array]:
    """The fingerprint of every array, by its name."""
    return {
        jax.tree_util.keystr(path): fingerprint(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _mixed(words: jax.Array) -> jax.Array:
    """One to one, and every bit of a word decides every bit of the result: MurmurHash3's end.

    Without it all signs of an array could turn, and the highest bits of its sum cancel.
    """
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        words = (words ^ (words >> jnp.uint32(shift))) * jnp.uint32(factor)
    return words ^ (words >> jnp.uint32(16))
