"""Errors for arguments that could only go wrong: what was given, and what to do instead."""

import functools
import operator
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def is_traced(value: Any) -> bool:
    return isinstance(value, Tracer)


def check_choice(name: str, value: Any, choices: Iterable[str], or_else: str = "") -> None:
    choices = list(choices)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"{name}={value!r} is unknown: choose one of {', '.join(choices)}{or_else}."
        )


def check_size(name: str, value: Any, at_least: int = 1) -> int:
    """A static integer that shapes depend on."""
    if is_traced(value):
        raise ValueError(
            f"{name} sets array shapes, so it must be a Python int, not a traced value: under "
            f"optax.inject_hyperparams name it in static_args=({name!r},)."
        )
    try:
        size = operator.index(value)
    except TypeError:
        size = None
    if size is None or isinstance(value, bool) or size < at_least:
        raise ValueError(f"{name}={value!r} must be an integer of at least {at_least}.")
    return size


def check_b(b: Any) -> None:
    """The first argument must be finite; traced values (``inject_hyperparams``) pass unseen."""
    if is_traced(b):
        return
    if not np.all(np.isfinite(np.asarray(b))):
        raise ValueError(f"b={b} must be finite: choose a real number, such as 5.0.")
    if np.all((np.asarray(b) > 0) & (np.asarray(b) < 0.05)):
        warnings.warn(
            f"b={b} makes TAG weigh all tasks almost alike. The arguments are b, task_capacity, "
            "learning_rate: b, such as 5.0, comes before the rate.",
            stacklevel=_outside(),
        )


def _outside() -> int:
    """How many frames up the caller of this package is: that is whom a warning concerns."""
    package = __name__.partition(".")[0]
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(package):
        frame, depth = frame.f_back, depth + 1
    return depth


def check_anchor(anchor: Any) -> bool:
    """Whether there may be a pull: a number in Python that is 0 is known to be none."""
    if anchor is None or (isinstance(anchor, int | float) and anchor == 0):
        return False
    if not is_traced(anchor):
        value = np.asarray(anchor)
        if not np.all(np.isfinite(value) & (value >= 0)):
            raise ValueError(f"anchor={anchor} must not be negative, nor infinite, nor NaN.")
    return True


def check_dtype(name: str, value: Any) -> None:
    """A storage dtype, or None."""
    try:
        floating = value is None or jnp.issubdtype(jnp.dtype(value), jnp.floating)
    except TypeError:
        floating = False
    if not floating:
        raise ValueError(f"{name}={value!r} must be a floating dtype, such as 'bfloat16', or None.")


def check_mask(mask: Any) -> None:
    """``inject_hyperparams`` takes a function for a schedule too, and calls it."""
    if isinstance(mask, bool | jax.Array | np.ndarray | np.generic):
        raise ValueError(
            "mask must be a tree of booleans or a function that makes one: under "
            "optax.inject_hyperparams name it in static_args=('task_capacity', 'mask')."
        )


def check_task_id(task_id: Any, capacity: int) -> jax.Array:
    """The id as an int32 scalar. A concrete one must be a row of the bank."""
    if jnp.ndim(task_id) or not jnp.issubdtype(jnp.result_type(task_id), jnp.integer):
        raise ValueError(f"task_id={task_id} must be an integer scalar, the row of the task.")
    if not is_traced(task_id):
        row = int(task_id)
        if row < 0:
            raise ValueError(f"task_id={row} is negative: tasks are numbered from 0.")
        if row >= capacity:
            raise ValueError(
                f"task_id={row} does not fit a task_capacity of {capacity}: make room with "
                f"opt_state = tag_optax.grow(opt_state, {row + 1}), or build with "
                f"task_capacity={row + 1}."
            )
    return as_row(task_id, capacity)


def as_row(task_id: jax.typing.ArrayLike, capacity: int) -> jax.Array:
    """The id as int32, and -1 where it is no row: a wide integer must not wrap into one."""
    task = jnp.asarray(task_id)
    return jnp.where((task >= 0) & (task < capacity), task, -1).astype(jnp.int32)


def check_real(params: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if jnp.issubdtype(jnp.result_type(leaf), jnp.complexfloating):
            raise ValueError(
                f"parameter {jax.tree_util.keystr(path)} is complex, and TAG compares real "
                "directions: wrap the optimizer in optax.contrib.split_real_and_imaginary."
            )


_RETIRED = {
    "alpha_scope": 'relatedness=tag_optax.cosine(scope="leaf")',
    "num_gradients": "relatedness=tag_optax.first_gradients(n)",
    "constant_memory": 'bank="running_sum"',
    "skip_unseen": "bank=tag_optax.full(split=True)",
    "mu_dtype": "bank=tag_optax.full(mu_dtype=...)",
    "nu_dtype": "bank=tag_optax.full(nu_dtype=...)",
}

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def names_successors(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Lets an argument of version 0.1 fail with the name of what took its place."""

    @functools.wraps(function)
    def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        for name in kwargs.keys() & _RETIRED.keys():
            raise TypeError(f"{name} is no argument any more: give {_RETIRED[name]}.")
        return function(*args, **kwargs)

    return checked
