"""Finding states and leaves inside an optimizer state, whatever wraps them.

``chain``, ``inject_hyperparams``, ``masked``, ``partition`` and other wrappers all nest the states
of their parts as pytrees, so a search by type sees through every one of them.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax

from tag_optax._types import PyTree

StateType = TypeVar("StateType")
Path = tuple[Any, ...]


def find(opt_state: PyTree, kind: type[StateType]) -> list[StateType]:
    """All states of one type, in order."""
    leaves = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, kind))
    return [leaf for leaf in leaves if isinstance(leaf, kind)]


def require(opt_state: PyTree, kind: type[StateType], made_by: str) -> list[StateType]:
    """All states of one type, of which there must be one at least."""
    found = find(opt_state, kind)
    if not found:
        raise ValueError(f"this optimizer state holds no {kind.__name__}: was {made_by} used?")
    return found


def replace(
    opt_state: PyTree, kind: type[StateType], new: Callable[[StateType], StateType]
) -> PyTree:
    """The optimizer state with every state of one type replaced."""
    return jax.tree.map(
        lambda node: new(node) if isinstance(node, kind) else node,
        opt_state,
        is_leaf=lambda node: isinstance(node, kind),
    )


def select(tree: PyTree, like: PyTree) -> PyTree:
    """The leaves of ``tree`` that ``like`` has too, in the structure of ``like``.

    A transformation under ``masked`` or ``partition`` sees only some of the parameters; this takes
    the same part of any other parameter-shaped tree.
    """
    by_path = dict(jax.tree_util.tree_leaves_with_path(tree))
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    missing = [jax.tree_util.keystr(path) for path, _ in paths if path not in by_path]
    if missing:
        raise ValueError(f"the tree given lacks the leaves {', '.join(missing)} of the state.")
    return jax.tree.unflatten(structure, [by_path[path] for path, _ in paths])
