"""Continual-learning methods that act on the gradient, to chain before TAG or any optimizer."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tag_optax import _checks, _rows, _search
from tag_optax._types import OptState, Params, Updates, transformation


class AddEwcPenaltyState(NamedTuple):
    """State of :func:`add_ewc_penalty`: two parameter copies, whatever the number of tasks.

    The sum of the tasks' quadratic penalties is one quadratic: its curvature is the sum of the
    Fisher terms, and its minimum their weighted mean of the tasks' parameters. Keeping the minimum
    rather than the products' sum keeps the penalty's gradient exact where the parameters are close
    to it.
    """

    fisher: Params  # sum over the tasks of F, like the parameters.
    anchor: Params  # sum of F theta* over the sum of F, like the parameters.


def add_ewc_penalty(strength: jax.typing.ArrayLike) -> optax.GradientTransformationExtraArgs:
    r"""Adds the gradient of elastic weight consolidation's penalty.

    .. math::
        \frac{\lambda}{2} \sum_s F_s (\theta - \theta^*_s)^2

    over the finished tasks, which :func:`consolidate_ewc` adds one by one.

    Args:
        strength: lambda.

    Returns:
        A transformation whose ``update`` needs ``params``.

    Examples:
        >>> import jax.numpy as jnp, optax, tag_optax
        >>> tx = optax.chain(tag_optax.add_ewc_penalty(10.0), tag_optax.tag_rmsprop(5.0, 2))
        >>> params = jnp.array([1.0, 1.0])
        >>> state = tx.init(params)
        >>> _, state = tx.update(jnp.ones(2), state, params, task_id=0)
        >>> state = tag_optax.consolidate_ewc(state, params, fisher=jnp.array([1.0, 0.0]))
        >>> params = jnp.array([1.5, 1.5])
        >>> updates, state = tx.update(jnp.zeros(2), state, params, task_id=1)
        >>> (updates < 0)  # Only the parameter that task 0 needs is pulled back.
        Array([ True, False], dtype=bool)

    References:
        Kirkpatrick et al., `Overcoming catastrophic forgetting in neural networks
        <https://arxiv.org/abs/1612.00796>`_, 2017.
    """

    def init(params: Params) -> AddEwcPenaltyState:
        # Two trees: a buffer that stands twice in a state cannot be donated.
        return AddEwcPenaltyState(
            fisher=_rows.zeros_like(params, None), anchor=_rows.zeros_like(params, None)
        )

    def update(
        updates: Updates,
        state: AddEwcPenaltyState,
        params: Params | None = None,
        **extra_args: Any,
    ) -> tuple[Updates, AddEwcPenaltyState]:
        del extra_args
        if params is None:
            raise ValueError("add_ewc_penalty pulls at the parameters: pass params to update.")

        def pull(g: jax.Array, p: jax.Array, fisher: jax.Array, anchor: jax.Array) -> jax.Array:
            penalty = (
                jnp.asarray(strength, fisher.dtype) * fisher * (p.astype(fisher.dtype) - anchor)
            )
            return (g.astype(fisher.dtype) + penalty).astype(g.dtype)

        return jax.tree.map(pull, updates, params, state.fisher, state.anchor), state

    return transformation(init, update)


def consolidate_ewc(opt_state: OptState, params: Params, fisher: Params) -> OptState:
    """Adds a finished task to the penalty of every :func:`add_ewc_penalty` in the state.

    Args:
        opt_state: The optimizer state.
        params: The parameters at the end of the task.
        fisher: The diagonal of the task's Fisher information, like the parameters.

    Returns:
        The new optimizer state.

    Examples:
        >>> import jax.numpy as jnp, tag_optax
        >>> tx = tag_optax.add_ewc_penalty(1.0)
        >>> state = tx.init(jnp.zeros(1))
        >>> for task, end in enumerate([2.0, 4.0]):
        ...     state = tag_optax.consolidate_ewc(state, jnp.array([end]), jnp.array([0.5]))
        >>> state.fisher, state.anchor
        (Array([1.], dtype=float32), Array([3.], dtype=float32))
    """

    def add(state: AddEwcPenaltyState) -> AddEwcPenaltyState:
        p = _search.select(params, state.fisher)
        f = _search.select(fisher, state.fisher)
        total = jax.tree.map(lambda old, new: old + new.astype(old.dtype), state.fisher, f)

        def move(anchor: jax.Array, p: jax.Array, f: jax.Array, total: jax.Array) -> jax.Array:
            share = f.astype(total.dtype) / jnp.where(total == 0, jnp.ones_like(total), total)
            return anchor + share * (p.astype(anchor.dtype) - anchor)

        return AddEwcPenaltyState(total, jax.tree.map(move, state.anchor, p, f, total))

    _search.require(opt_state, AddEwcPenaltyState, "add_ewc_penalty")
    return _search.replace(opt_state, AddEwcPenaltyState, add)


def project_agem() -> optax.GradientTransformationExtraArgs:
    r"""A-GEM: turns a gradient that points against the memory's onto its boundary.

    .. math::
        g \leftarrow g - \frac{\min(0, \langle g, r \rangle)}{\langle r, r \rangle} r

    with :math:`r` the gradient on a batch from the episodic memory.

    Returns:
        A transformation whose ``update`` needs the extra argument ``memory_grad``, like the
        updates; zeros (or ``None``) while there is no memory.

    Examples:
        >>> import jax.numpy as jnp, optax, tag_optax
        >>> tx = optax.chain(tag_optax.project_agem(), tag_optax.tag_rmsprop(5.0, 2))
        >>> state = tx.init(jnp.zeros(2))
        >>> g = jnp.array([1.0, -1.0])
        >>> for task, memory in ((0, jnp.zeros(2)), (1, jnp.array([0.0, 1.0]))):
        ...     updates, state = tx.update(g, state, task_id=task, memory_grad=memory)
        ...     print(task, jnp.sign(updates))
        0 [-1.  1.]
        1 [-1. -0.]

    References:
        Chaudhry et al., `Efficient lifelong learning with A-GEM
        <https://arxiv.org/abs/1812.00420>`_, 2019.
    """

    def update(
        updates: Updates,
        state: optax.EmptyState,
        params: Params | None = None,
        *,
        memory_grad: Updates | None,
        **extra_args: Any,
    ) -> tuple[Updates, optax.EmptyState]:
        del params, extra_args
        if memory_grad is None:
            return updates, state
        reference = _search.select(memory_grad, updates)
        along = _inner(updates, reference)
        length = _inner(reference, reference)
        share = jnp.minimum(along, 0) / jnp.where(length == 0, jnp.ones_like(length), length)
        return _subtract(updates, share, reference), state

    return transformation(optax.init_empty_state, update)


class ProjectOrthogonalState(NamedTuple):
    """State of :func:`project_orthogonal`, for K tasks of N directions."""

    basis: Params  # [K * N, ...] a leaf: orthonormal rows, zeros where none is stored.
    stored: jax.Array  # int32 [K]: how many of its N rows each task has filled.

    def directions_per_task(self) -> int:
        """N."""
        rows = jax.tree.leaves(self.basis)
        return rows[0].shape[0] // self.stored.shape[0] if rows else 1


def project_orthogonal(
    directions_per_task: int, task_capacity: int
) -> optax.GradientTransformationExtraArgs:
    """Orthogonal gradient descent (OGD): keeps updates off the directions stored.

    :func:`store_direction` adds one, typically the gradient of a finished task's output on one of
    its examples.

    Args:
        directions_per_task: N, how many directions each task may store.
        task_capacity: How many tasks may store some. The state holds N times as many copies of the
            parameters.

    Returns:
        A transformation that subtracts from the gradient its projection on all directions stored.

    Examples:
        >>> import jax.numpy as jnp, optax, tag_optax
        >>> tx = optax.chain(tag_optax.project_orthogonal(1, 2), tag_optax.tag_rmsprop(5.0, 2))
        >>> state = tx.init(jnp.zeros(2))
        >>> for task in (0, 1):
        ...     updates, state = tx.update(jnp.array([1.0, 1.0]), state, task_id=task)
        ...     print(task, jnp.sign(updates))
        ...     state = tag_optax.store_direction(state, jnp.array([3.0, 0.0]), task_id=task)
        0 [-1. -1.]
        1 [-0. -1.]

    References:
        Farajtabar et al., `Orthogonal gradient descent for continual learning
        <https://arxiv.org/abs/1910.07104>`_, 2020.
    """
    directions = _checks.check_size("directions_per_task", directions_per_task)
    tasks = _checks.check_size("task_capacity", task_capacity)

    def init(params: Params) -> ProjectOrthogonalState:
        return ProjectOrthogonalState(
            basis=_rows.stack(_rows.zeros_like(params, None), directions * tasks),
            stored=jnp.zeros((tasks,), jnp.int32),
        )

    @jax.jit
    def project(updates: Updates, state: ProjectOrthogonalState) -> Updates:
        return _off_basis(updates, state)

    def update(
        updates: Updates,
        state: ProjectOrthogonalState,
        params: Params | None = None,
        **extra_args: Any,
    ) -> tuple[Updates, ProjectOrthogonalState]:
        del params, extra_args
        return project(updates, state), state

    return transformation(init, update)


def store_direction(
    opt_state: OptState, direction: Updates, *, task_id: jax.typing.ArrayLike
) -> OptState:
    """Stores a direction for every :func:`project_orthogonal` in the state.

    What the basis already holds is taken out of it first (twice, so that rounding leaves the rows
    orthogonal). Nothing is stored where the rest is only rounding error, where the task has no row
    left, or where a traced id is out of range.

    Args:
        opt_state: The optimizer state.
        direction: A gradient, like the parameters.
        task_id: The task whose rows it takes; may be traced.

    Returns:
        The new optimizer state.

    Examples:
        >>> import jax.numpy as jnp, tag_optax
        >>> tx = tag_optax.project_orthogonal(directions_per_task=1, task_capacity=2)
        >>> state = tx.init(jnp.zeros(2))
        >>> for task in (0, 1):
        ...     state = tag_optax.store_direction(state, jnp.array([3.0, task]), task_id=task)
        >>> state.basis
        Array([[1., 0.],
               [0., 1.]], dtype=float32)
    """

    def store(state: ProjectOrthogonalState) -> ProjectOrthogonalState:
        tasks = state.stored.shape[0]
        per_task = state.directions_per_task()
        task = _checks.check_task_id(task_id, tasks)
        d = jax.tree.map(
            lambda x, r: x.astype(r.dtype), _search.select(direction, state.basis), state.basis
        )
        rest = _off_basis(_off_basis(d, state), state)
        length, given = jnp.sqrt(_inner(rest, rest)), jnp.sqrt(_inner(d, d))
        tiny = 100 * jnp.finfo(length.dtype).eps * given
        room = (task >= 0) & (task < tasks) & (state.stored[task] < per_task) & (length > tiny)
        unit = jax.tree.map(
            lambda x: x / jnp.where(length > 0, length, jnp.ones_like(length)).astype(x.dtype), rest
        )
        here = task * per_task + state.stored[task]
        slot = jnp.where(room, here, 0)
        kept = _rows.get_row(state.basis, slot)
        row = jax.tree.map(lambda new, old: jnp.where(room, new, old), unit, kept)
        ids = jnp.arange(tasks, dtype=jnp.int32)
        return ProjectOrthogonalState(
            basis=_rows.set_row(state.basis, slot, row),
            stored=state.stored + ((ids == task) & room).astype(jnp.int32),
        )

    _search.require(opt_state, ProjectOrthogonalState, "project_orthogonal")
    return _search.replace(opt_state, ProjectOrthogonalState, store)


def _off_basis(updates: Updates, state: ProjectOrthogonalState) -> Updates:
    """What the updates keep beside their projection on the rows stored."""
    slots = jnp.arange(state.directions_per_task(), dtype=jnp.int32)
    filled = slots[None] < state.stored[:, None]
    used = filled.reshape(-1)
    g = jax.tree.map(lambda x: x.astype(_rows.accumulator_dtype(x)), updates)
    dtype = _rows.weights_dtype(g)
    split = _rows.is_split(state.basis)
    along = _rows.row_products(state.basis, g, used, "global", dtype, split)
    none = jax.tree.map(jnp.zeros_like, g)
    inside = _rows.weighted_rows(along, state.basis, none, used, split)
    return jax.tree.map(lambda u, x, i: (x - i).astype(u.dtype), updates, g, inside)


def _inner(a: Updates, b: Updates) -> jax.Array:
    return _rows.inner_products(a, b, "global", _rows.weights_dtype(b))[0]


def _subtract(updates: Updates, share: jax.Array, direction: Updates) -> Updates:
    def subtract(u: jax.Array, d: jax.Array) -> jax.Array:
        dtype = _rows.accumulator_dtype(u)
        return (u.astype(dtype) - share.astype(dtype) * d.astype(dtype)).astype(u.dtype)

    return jax.tree.map(subtract, updates, direction)
