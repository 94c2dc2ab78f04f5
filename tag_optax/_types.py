"""Names for trees in signatures, and the one place where optax's own types are too narrow."""

from collections.abc import Callable
from typing import Any

import jax
import optax

# optax types these as unions of arrays and containers, which no state NamedTuple fits.
PyTree = Any
Params = PyTree
Updates = PyTree
OptState = PyTree
Numeric = jax.typing.ArrayLike


def transformation(
    init: Callable[[Params], OptState], update: Callable[..., tuple[Updates, OptState]]
) -> optax.GradientTransformationExtraArgs:
    """A transformation whose ``update`` requires extra arguments, which optax's type denies."""
    functions: Any = (init, update)
    return optax.GradientTransformationExtraArgs(*functions)
