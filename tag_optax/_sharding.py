"""Where every leaf of an optimizer state belongs on a mesh.

``optax.tree.map_params`` would give a bank its parameter's partition spec as it stands, whose first
mesh axis then splits the tasks. Here the bank's spec is the parameter's behind the task axis.
"""

from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tag_optax import _rows, _search
from tag_optax._clustered import Clusters
from tag_optax._companions import ProjectOrthogonalState
from tag_optax._schedules import ScaleByTaskScheduleState
from tag_optax._tag import ScaleByTagState
from tag_optax._types import OptState, Params

_Specs = dict[_search.Path, tuple[PartitionSpec, tuple[int, ...]]]


def state_sharding(
    tx_or_state: optax.GradientTransformation | OptState,
    params: Params,
    params_sharding: Any,
    *,
    mesh: Mesh | None = None,
    task_axis: str | None = None,
) -> Any:
    """The sharding of every leaf of an optimizer state with TAG in it.

    Live rows lie as their parameters do, and so do the states of other transformations that are
    shaped like parameters. A bank's rows lie as their parameters do too, behind the task axis,
    which is whole on every device or spread over one mesh axis. All else is replicated.

    Args:
        tx_or_state: The transformation, or its state (or the state's shapes).
        params: The parameters, or their shapes.
        params_sharding: A tree of ``NamedSharding`` or ``PartitionSpec`` like the parameters, or
            one for all of them.
        mesh: The mesh; needed where ``params_sharding`` has only specs.
        task_axis: The mesh axis that the tasks are spread over. Where tasks or parameters are
            split, build the transformation with ``bank=tag_optax.full(split=True)``, so that each
            device reads what it holds and only sums travel.

    Returns:
        A tree of ``NamedSharding`` like the state, for ``jit(tx.init, out_shardings=...)``: no
        device then ever holds more than its part.

    Examples:
        >>> import jax, jax.numpy as jnp, tag_optax
        >>> from jax.sharding import AxisType, NamedSharding, PartitionSpec
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
        >>> params = {"w": jnp.zeros((4, 2))}
        >>> tx = tag_optax.tag_rmsprop(5.0, task_capacity=8, bank=tag_optax.full(split=True))
        >>> everywhere = NamedSharding(mesh, PartitionSpec())
        >>> shardings = tag_optax.state_sharding(tx, params, everywhere, task_axis="data")
        >>> tuple(shardings[0].bank["nu"]["w"].spec)
        ('data', None, None)
        >>> state = jax.jit(tx.init, out_shardings=shardings)(params)
        >>> for task in (0, 1):
        ...     updates, state = tx.update(params, state, task_id=task)
    """
    specs, mesh = _specs(params, params_sharding, mesh)
    state = tx_or_state
    if isinstance(tx_or_state, optax.GradientTransformation):
        # The types of an explicit mesh, from which a bank sees whether parameters are split.
        places = [NamedSharding(mesh, spec) for spec, _ in specs.values()]
        shapes = jax.tree.map(
            lambda p, place: jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=place),
            params,
            jax.tree.unflatten(jax.tree.structure(params), places),
        )
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            state = jax.eval_shape(tx_or_state.init, shapes)
    if task_axis is not None and task_axis not in mesh.shape:
        raise ValueError(
            f"task_axis={task_axis!r} is no axis of the mesh: choose one of "
            f"{', '.join(mesh.axis_names)}."
        )

    def sharding(path: _search.Path, node: Any) -> Any:
        if isinstance(node, ScaleByTagState):
            return _tag_sharding(node, specs, mesh, task_axis)
        if isinstance(node, ProjectOrthogonalState):
            return _basis_sharding(node, specs, mesh)
        if isinstance(node, ScaleByTaskScheduleState):  # Counts, though a parameter be [K] too.
            everywhere: Any = NamedSharding(mesh, PartitionSpec())
            return ScaleByTaskScheduleState(counts=everywhere)
        spec, shape = _lookup(path, specs) or (PartitionSpec(), None)
        return NamedSharding(mesh, spec if node.shape == shape else PartitionSpec())

    kinds = ScaleByTagState | ProjectOrthogonalState | ScaleByTaskScheduleState
    return jax.tree_util.tree_map_with_path(
        sharding, state, is_leaf=lambda node: isinstance(node, kinds)
    )


def _tag_sharding(
    state: ScaleByTagState,
    specs: _Specs,
    mesh: Mesh,
    task_axis: str | None,
) -> ScaleByTagState:
    capacity = state.steps.shape[0]
    if task_axis is not None and capacity % (devices := mesh.shape[task_axis]):
        enough = -(-capacity // devices) * devices
        raise ValueError(
            f"task_capacity={capacity} cannot be spread evenly over the {devices} devices of mesh "
            f"axis {task_axis!r}: use task_capacity={enough}."
        )

    if task_axis is not None and isinstance(state.bank, Clusters):
        raise ValueError(
            "a clustered bank has few rows, which every device needs: leave task_axis out."
        )

    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, _rows.Joined))
    if any(isinstance(node, _rows.Joined) for node in nodes):
        for path, _ in jax.tree_util.tree_leaves_with_path(state.live["nu"]):
            spec, _ = _lookup(path, specs) or (PartitionSpec(), None)
            if any(axis is not None for axis in spec):
                raise ValueError(
                    f"the parameter {jax.tree_util.keystr(path)} is split as {spec}, and the bank "
                    "is not: build it with split=True, as in bank=tag_optax.full(split=True)."
                )

    def sharding(path: _search.Path, leaf: Any) -> NamedSharding:
        stacked = path[0].name == "bank"
        # A compressed bank keeps several arrays of a leaf, by attribute.
        found = _lookup(path, specs)
        coded = found is None and isinstance(path[-1], jax.tree_util.GetAttrKey)
        spec, shape = found or (coded and _lookup(path[:-1], specs)) or (PartitionSpec(), None)
        if path[-1] == jax.tree_util.DictKey("length") or (shape is None and not coded):
            return NamedSharding(mesh, PartitionSpec())
        if not stacked:
            return NamedSharding(mesh, spec if leaf.shape == shape else PartitionSpec())
        if (
            shape is None or leaf.ndim != len(shape) + 1
        ):  # Joined, or flat: whole but for the tasks.
            rows = leaf.ndim > 1 and not isinstance(state.bank, Clusters)
            return NamedSharding(mesh, PartitionSpec(task_axis) if rows else PartitionSpec())
        padded = (*spec, *[None] * (len(shape) - len(spec)))
        if task_axis is not None and task_axis in jax.tree.leaves(padded):
            raise ValueError(
                f"task_axis={task_axis!r} already splits the parameter "
                f"{jax.tree_util.keystr(path[2:])}: spread the tasks over another mesh axis."
            )
        if leaf.shape[1:] != shape:  # The units of groups along the last axis.
            padded = (*padded[:-1], None)
        return NamedSharding(mesh, PartitionSpec(task_axis, *padded))

    return jax.tree_util.tree_map_with_path(sharding, state)


def _basis_sharding(
    state: ProjectOrthogonalState,
    specs: _Specs,
    mesh: Mesh,
) -> ProjectOrthogonalState:
    """Rows as their parameters, all of them on every device: each step reads every row."""

    def sharding(path: _search.Path, leaf: Any) -> NamedSharding:
        del leaf
        spec, _ = specs.get(path, (PartitionSpec(), None))
        return NamedSharding(mesh, PartitionSpec(None, *spec))

    everywhere: Any = NamedSharding(mesh, PartitionSpec())
    return ProjectOrthogonalState(
        basis=jax.tree_util.tree_map_with_path(sharding, state.basis),
        stored=everywhere,
    )


def _specs(params: Params, params_sharding: Any, mesh: Mesh | None) -> tuple[_Specs, Mesh]:
    """Each parameter's spec and shape by its path, and the mesh."""

    def is_sharding(node: Any) -> bool:
        return isinstance(node, NamedSharding | PartitionSpec)

    full = jax.tree.broadcast(params_sharding, params, is_leaf=is_sharding)
    given = jax.tree.leaves(full, is_leaf=is_sharding)
    named = next((s for s in given if isinstance(s, NamedSharding)), None)
    if mesh is None:
        if named is None or not isinstance(named.mesh, Mesh):
            raise ValueError("params_sharding names no mesh: pass mesh=.")
        mesh = named.mesh
    specs = [s.spec if isinstance(s, NamedSharding) else s for s in given]
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {
        path: (spec, leaf.shape) for (path, leaf), spec in zip(leaves, specs, strict=True)
    }, mesh


def _lookup(path: _search.Path, specs: _Specs) -> tuple[PartitionSpec, tuple[int, ...]] | None:
    """The parameter whose path ends the given one: that is where wrappers leave it."""
    tails = (path[start:] for start in range(len(path) + 1))
    return next((specs[tail] for tail in tails if tail in specs), None)
