"""Looking into TAG states, and making room in them."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from tag_optax import _checks, _rows, _search
from tag_optax._clustered import Clusters
from tag_optax._companions import ProjectOrthogonalState
from tag_optax._detect import DetectTasksState
from tag_optax._schedules import ScaleByTaskScheduleState
from tag_optax._tag import ScaleByTagState
from tag_optax._types import OptState, Params
from tag_optax._wrappers import StatefulTaskIdState

_TAG = "a TAG transformation"


def task_weights(opt_state: OptState) -> Any:
    """The weights alpha(t, .) that the last step gave to the tasks.

    Args:
        opt_state: A state with a TAG state anywhere in it.

    Returns:
        An array of ``[K]``, or where each leaf is compared by itself a tree of them like the
        parameters; 0 for tasks not seen. Where several TAG transformations work side by side, a
        list of these.

    Examples:
        >>> import jax.numpy as jnp, tag_optax
        >>> tx = tag_optax.tag_rmsprop(1.0, task_capacity=3)
        >>> state = tx.init(jnp.zeros(2))
        >>> for task, gradient in ((0, [1.0, 0.0]), (2, [-1.0, 0.0])):  # Opposed tasks.
        ...     _, state = tx.update(jnp.array(gradient), state, task_id=task)
        >>> tag_optax.task_weights(state).round(2)
        Array([2.72, 0.  , 0.37], dtype=float32)
    """

    def weights(state: ScaleByTagState) -> Any:
        (alpha,) = jax.tree.leaves(state.alpha)  # nnx.Optimizer wraps arrays in variables.
        if alpha.ndim == 1:
            return alpha
        structure = jax.tree.structure(state.live["nu"])
        return jax.tree.unflatten(structure, list(alpha[: structure.num_leaves]))

    found = [weights(state) for state in _search.require(opt_state, ScaleByTagState, _TAG)]
    return found[0] if len(found) == 1 else found


def grow(opt_state: OptState, task_capacity: int) -> OptState:
    """A larger bank: every row, the live one and the step counts are kept.

    The transformation that made the state goes on working with the grown one, which has other
    shapes, so a jitted step is compiled once more; JAX keeps the program of the old shapes until
    ``jax.clear_caches()``. The rows of :func:`project_orthogonal`, the counts of
    :func:`scale_by_task_schedule` and the capacity of :func:`detect_tasks` grow too.

    Args:
        opt_state: A state with one of these anywhere in it.
        task_capacity: The new number of rows, not below the present one.

    Returns:
        The optimizer state with room for ``task_capacity`` tasks.

    Examples:
        >>> import jax.numpy as jnp, tag_optax
        >>> tx = tag_optax.tag_rmsprop(5.0, task_capacity=1)
        >>> state = tx.init(jnp.zeros(2))
        >>> _, state = tx.update(jnp.array([1.0, 0.0]), state, task_id=0)
        >>> state = tag_optax.grow(state, 3)
        >>> _, state = tx.update(jnp.array([0.0, 1.0]), state, task_id=2)
        >>> tag_optax.task_weights(state).round(3)
        Array([1.   , 0.   , 0.007], dtype=float32)
    """
    task_capacity = _checks.check_size("task_capacity", task_capacity)

    def pad(tree: Any, rows: int, axis: int = 0) -> Any:
        def pad_leaf(x: jax.Array) -> jax.Array:
            widths = [(0, 0)] * x.ndim
            widths[axis] = (0, rows)
            return jnp.pad(x, widths)

        return jax.tree.map(pad_leaf, tree)

    def missing(rows: jax.Array) -> int:
        present = rows.shape[0]
        if task_capacity < present:
            raise ValueError(
                f"task_capacity={task_capacity} is below the present {present}, and would lose "
                f"rows: pass at least {present}."
            )
        return task_capacity - present

    def larger(state: ScaleByTagState) -> ScaleByTagState:
        rows = missing(state.steps)
        return state._replace(
            visited=pad(state.visited, rows),
            steps=pad(state.steps, rows),
            alpha=pad(state.alpha, rows, axis=-1),
            bank=larger_bank(state.bank, rows),
        )

    def larger_bank(bank: Any, rows: int) -> Any:
        if isinstance(bank, Clusters):  # Its rows stay as many as they are.
            return bank._replace(row_of=jnp.pad(bank.row_of, (0, rows), constant_values=-1))
        return pad(bank, rows)

    def larger_basis(state: ProjectOrthogonalState) -> ProjectOrthogonalState:
        rows = missing(state.stored)
        return ProjectOrthogonalState(
            basis=pad(state.basis, rows * state.directions_per_task()),
            stored=pad(state.stored, rows),
        )

    def larger_counts(state: ScaleByTaskScheduleState) -> ScaleByTaskScheduleState:
        return ScaleByTaskScheduleState(pad(state.counts, missing(state.counts)))

    def larger_number(state: DetectTasksState) -> DetectTasksState:
        number = jax.tree.map(lambda x: jnp.full_like(x, task_capacity), state.task_capacity)
        return state._replace(task_capacity=number)

    growing = {
        DetectTasksState: larger_number,
        ScaleByTagState: larger,
        ProjectOrthogonalState: larger_basis,
        ScaleByTaskScheduleState: larger_counts,
    }
    if not any(_search.find(opt_state, kind) for kind in growing):
        _search.require(opt_state, ScaleByTagState, _TAG)
    for kind, larger_state in growing.items():
        opt_state = _search.replace(opt_state, kind, larger_state)
    return opt_state


def rearrange(opt_state: OptState, like: OptState | None = None) -> OptState:
    """The state as it must be for another mesh.

    Where no device holds only a part of a bank, the small leaves of what represents a task are
    joined in one array; where tasks or parameters are split (``split=True``), every leaf is by
    itself. Save the state with ``rearrange(state)``, and what is restored fits any of them.

    Args:
        opt_state: Any state; only TAG states in it change.
        like: A state, or its shapes, whose leaves are joined as is wanted; by default none is.

    Returns:
        The same numbers, in the structure of ``like``.

    Examples:
        >>> import jax, jax.numpy as jnp, tag_optax
        >>> params = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
        >>> tx = tag_optax.tag_rmsprop(5.0, task_capacity=4)
        >>> state = tx.init(params)
        >>> saved = tag_optax.rearrange(state)
        >>> jax.tree.map(jnp.shape, saved[0].bank["direction"])
        {'b': (4, 2), 'w': (4, 3, 2)}
        >>> state = tag_optax.rearrange(saved, like=jax.eval_shape(tx.init, params))
        >>> state[0].bank["direction"].vector.shape
        (4, 8)
    """

    def is_joined(node: Any) -> bool:
        return isinstance(node, _rows.Joined)

    def parted(state: ScaleByTagState) -> ScaleByTagState:
        def part(node: Any) -> Any:
            return _rows.part(node, state.live["nu"]) if is_joined(node) else node

        return jax.tree.map(part, state, is_leaf=is_joined)

    def joined(state: ScaleByTagState) -> ScaleByTagState:
        def join(wanted: Any, node: Any) -> Any:
            return _rows.join(node, wanted.vector.ndim - 1) if is_joined(wanted) else node

        return jax.tree.map(join, next(wanted), state, is_leaf=is_joined)

    opt_state = _search.replace(opt_state, ScaleByTagState, parted)
    if like is None:
        return opt_state
    wanted = iter(_search.find(like, ScaleByTagState))
    return _search.replace(opt_state, ScaleByTagState, joined)


def state_bytes(tx: optax.GradientTransformation, params: Params) -> int:
    """What the state of any transformation will cost, without allocating it.

    Args:
        tx: The transformation.
        params: Parameters, or their ``jax.ShapeDtypeStruct``.

    Returns:
        The number of bytes of all arrays of ``tx.init(params)``.

    Examples:
        >>> import jax, jax.numpy as jnp, tag_optax
        >>> params = jax.ShapeDtypeStruct((1_000_000,), jnp.float32)
        >>> for kind in ("cosine", "own"):  # 2 (K + 1) copies of the parameters; K + 1; one more.
        ...     tag_optax.state_bytes(tag_optax.tag_rmsprop(5.0, 20, relatedness=kind), params)
        172000268
        88000184
        >>> tx = tag_optax.tag_rmsprop(5.0, 20, relatedness="own", bank="running_sum")
        >>> tag_optax.state_bytes(tx, params)  # 2 copies, whatever the number of tasks.
        8000184
    """
    shapes = jax.eval_shape(tx.init, params)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def vmap_axes(tx: optax.GradientTransformation, params: Params) -> OptState:
    """The ``in_axes`` and ``out_axes`` of a state whose members share one task.

    Under ``jax.vmap`` a task id that differs between members makes XLA rewrite the whole bank at
    every step. Members that learn the same stream (seeds, say) have one id and one count for all:
    these axes say so.

    Args:
        tx: The transformation.
        params: The parameters of one member, or their ``jax.ShapeDtypeStruct``.

    Returns:
        A tree like the state of ``tx``: ``None`` for what is shared, 0 for the rest.

    Examples:
        >>> import jax, jax.numpy as jnp, tag_optax
        >>> tx = tag_optax.tag_rmsprop(5.0, task_capacity=2)
        >>> params = jnp.zeros((5, 3))  # Five seeds of three parameters.
        >>> axes = tag_optax.vmap_axes(tx, params[0])
        >>> state = jax.vmap(tx.init, out_axes=axes)(params)
        >>> update = jax.vmap(
        ...     lambda g, s, task: tx.update(g, s, task_id=task), (0, axes, None), (0, axes)
        ... )
        >>> for task in (0, 1):
        ...     updates, state = update(jnp.ones((5, 3)), state, task)
        >>> updates.shape
        (5, 3)
    """

    def axes(node: Any) -> Any:
        if isinstance(node, ScaleByTagState):
            batched = jax.tree.map(lambda _: 0, node)
            return batched._replace(live_task=None, visited=None)
        if isinstance(node, ScaleByTaskScheduleState):
            return node._replace(counts=None)
        if isinstance(node, StatefulTaskIdState):
            inner = jax.tree.map(axes, node.inner_state, is_leaf=special)
            return node._replace(task_id=None, inner_state=inner)
        return jax.tree.map(lambda _: 0, node)

    def special(node: Any) -> bool:
        shared = ScaleByTagState | ScaleByTaskScheduleState | StatefulTaskIdState
        return isinstance(node, shared | DetectTasksState)  # There each member has its own task.

    return jax.tree.map(axes, jax.eval_shape(tx.init, params), is_leaf=special)
