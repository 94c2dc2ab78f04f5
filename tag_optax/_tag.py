"""The TAG update: the paper's equations over a bank of task moments."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from tag_optax import _bank, _checks
from tag_optax._relatedness import RELATEDNESS, cosine
from tag_optax._state import (
    AlphaScope,
    ScaleByTagState,
    norms,
    switch_task,
    switch_task_without_bank,
)
from tag_optax._types import Params, Updates, transformation

RelatednessName = Literal["cosine", "uniform", "age", "first_gradients", "self"]


@dataclasses.dataclass(frozen=True)
class _Rule:
    """What tells TAG-RMSProp, TAG-Adagrad and TAG-Adam apart."""

    accumulate: Callable[[jax.Array, jax.Array], jax.Array]  # V[t], g -> the new V[t]
    # Adam steps along M[t] and corrects both moments for their start at zero: (b1, b2).
    bias_corrected: tuple[jax.typing.ArrayLike, jax.typing.ArrayLike] | None = None


def _moving_average(decay: jax.typing.ArrayLike, average: jax.Array, value: jax.Array) -> jax.Array:
    dtype = average.dtype
    return jnp.asarray(decay, dtype) * average + jnp.asarray(1 - decay, dtype) * value


def _bias(decay: jax.typing.ArrayLike, step: jax.Array, dtype: jnp.dtype) -> jax.Array:
    # 1 - decay^n, without the cancellation that costs float32 three digits at n = 1.
    return -jnp.expm1(step.astype(dtype) * jnp.log1p(-jnp.asarray(1 - decay, dtype)))


def _scale_by_tag(
    b: jax.typing.ArrayLike,
    task_capacity: int,
    rule: _Rule,
    *,
    b1: jax.typing.ArrayLike,
    eps: jax.typing.ArrayLike,
    eps_in_sqrt: bool,
    alpha_scope: AlphaScope,
    relatedness: RelatednessName,
    num_gradients: jax.typing.ArrayLike,
    constant_memory: bool,
    skip_unseen: bool,
    mu_dtype: jax.typing.DTypeLike | None,
    nu_dtype: jax.typing.DTypeLike | None,
) -> optax.GradientTransformationExtraArgs:
    task_capacity = _checks.check_size("task_capacity", task_capacity)
    _checks.check_finite("b", b)
    if not _checks.is_traced(num_gradients):
        _checks.check_size("num_gradients", num_gradients)
    _checks.check_dtype("mu_dtype", mu_dtype)
    _checks.check_dtype("nu_dtype", nu_dtype)
    _checks.check_choice("alpha_scope", alpha_scope, ("global", "leaf"))
    _checks.check_choice("relatedness", relatedness, RELATEDNESS)
    related = RELATEDNESS[relatedness]
    if constant_memory and not related.sums_the_past:
        needless = ", ".join(name for name, r in RELATEDNESS.items() if r.sums_the_past)
        raise ValueError(
            f"constant_memory=True sums the past tasks, but relatedness={relatedness!r} weighs "
            f"each of them by itself: choose relatedness from {needless}, or keep the bank."
        )
    # Adam reads M[t] itself, and a task that comes back must find it again.
    uses_mu = related.compares == "mu" or rule.bias_corrected is not None
    uses_unit = related.compares == "unit"

    def init(params: Params) -> ScaleByTagState:
        _checks.check_real(params)
        dtype = _bank.weights_dtype(params)
        groups = _bank.group_count(params, alpha_scope)
        mu = _bank.zeros_like(params, mu_dtype) if uses_mu else None
        nu = _bank.zeros_like(params, nu_dtype)
        unit = _bank.zeros_like(params, mu_dtype) if uses_unit else None

        def bank(row: Params | None) -> Params | None:
            return None if constant_memory else _bank.stack(row, task_capacity)

        return ScaleByTagState(
            live_task=jnp.full((), -1, jnp.int32),
            visited=jnp.zeros((task_capacity,), bool),
            steps=jnp.zeros((task_capacity,), jnp.int32),
            alpha=jnp.zeros((groups, task_capacity)[alpha_scope == "global" :], dtype),
            mu=mu,
            nu=nu,
            unit=unit,
            mu_bank=bank(mu),
            nu_bank=bank(nu),
            unit_bank=bank(unit),
            # A sum over many tasks would stand still in a narrow dtype.
            nu_sum=_bank.zeros_like(params, None) if constant_memory else None,
            norm=jnp.zeros((groups, task_capacity), dtype) if related.compares == "mu" else None,
        )

    def weigh(
        state: ScaleByTagState,
        direction: Params | None,
        task: jax.Array,
        past: jax.Array,
        split: bool,
    ) -> tuple[jax.Array, jax.Array | None]:
        """alpha(t, s) for every s of the past and for t itself, [G, K]; and the norms they need."""
        dtype = state.alpha.dtype
        strength = jnp.asarray(b, dtype)
        tasks = jnp.arange(past.shape[0], dtype=jnp.int32)
        products = jnp.zeros((_bank.group_count(state.nu, alpha_scope), past.shape[0]), dtype)
        own_norm, norm = None, state.norm
        if related.compares is not None:
            bank = state.mu_bank if related.compares == "mu" else state.unit_bank
            products = _bank.row_products(bank, direction, past, alpha_scope, dtype, split)
        if norm is not None:
            # Kept at every step, and not when the task ends: split over devices, this sum travels
            # with the inner products and needs no meeting of its own.
            own_norm = norms(direction, alpha_scope, dtype, split)
            norm = jnp.where(tasks == task, own_norm[:, None], norm)

        def weight(product: jax.Array, distance: jax.Array, own_norm: Any, norm: Any) -> jax.Array:
            similarity = product if norm is None else cosine(product, own_norm, norm)
            return related.past(similarity, distance, strength)

        over_tasks = jax.vmap(weight, in_axes=(0, 0, None, 0))
        over_groups = jax.vmap(over_tasks, in_axes=(0, None, 0, 0))
        alpha = over_groups(products, jnp.abs(task - tasks), own_norm, norm)
        one = jnp.ones((), dtype)
        seen = past & (state.steps > 0)
        own = jnp.where(jnp.any(seen), related.own(strength), one)
        alpha = jnp.where(seen[None], alpha, jnp.where(tasks == task, own, 0 * one)[None])
        return _bank.everywhere(alpha) if split else alpha, norm

    @jax.jit  # So that an eager call is compiled once, not at every step.
    def step(
        updates: Updates, state: ScaleByTagState, task: jax.Array
    ) -> tuple[Updates, ScaleByTagState]:
        valid = (task >= 0) & (task < state.steps.shape[0])
        changed = valid & (task != state.live_task)
        split = _bank.is_split(state.nu_bank, skip_unseen)
        if constant_memory:
            state = switch_task_without_bank(state, task, changed)
        else:
            spread = _bank.is_spread(state.nu_bank, skip_unseen)
            state = switch_task(state, task, changed, spread)
        tasks = jnp.arange(state.steps.shape[0], dtype=jnp.int32)
        # What is read depends on the tasks visited, which are the same for all seeds of a vmap:
        # else each of them would read every row. What counts are the tasks that have a finite step.
        past = state.visited & (tasks != task)
        if split:
            past = _bank.everywhere(past)
        moments = [m for m in (state.mu, state.nu, state.unit) if m is not None]
        g = jax.tree.map(
            lambda x, *ms: x.astype(_bank.accumulator_dtype(x, *ms)), updates, *moments
        )

        # A number that is not finite would stay in the bank, and so in every step of every task.
        # One in a gradient is one in its length, which is a dot: ten times as fast as looking.
        length = norms(g, alpha_scope, state.alpha.dtype, split)
        good = valid & jnp.all(jnp.isfinite(length))

        def advance(moment: Params, new: Callable[..., jax.Array], *rest: Any) -> Any:
            """Moves a live row on in the arithmetic's dtype; a bad step leaves it as it is."""

            def move(kept: jax.Array, x: jax.Array, *rest: jax.Array) -> jax.Array:
                row = kept.astype(x.dtype)
                largest = jnp.asarray(jnp.finfo(kept.dtype).max, x.dtype)
                return jnp.where(good, jnp.clip(new(row, x, *rest), -largest, largest), row)

            return jax.tree.map(move, moment, g, *rest)

        mu = unit = None
        if uses_mu:
            mu = advance(state.mu, lambda m, x: _moving_average(b1, m, x))
        nu = advance(state.nu, rule.accumulate)
        if uses_unit:
            seen_here = state.steps[task]
            unit = advance(
                state.unit,
                lambda u, x, norm: _mean_unit(u, x, norm, seen_here, num_gradients),
                _per_leaf_tree(length, g),
            )

        # The rows as they will be kept: a task's cosine with itself is 1 in any storage dtype.
        directions = {"mu": (mu, state.mu), "unit": (unit, state.unit), None: (None, None)}
        direction, kept = directions[related.compares]
        direction = jax.tree.map(lambda x, y: x.astype(y.dtype).astype(x.dtype), direction, kept)
        alpha, norm = weigh(state, direction, task, past, split)

        # W = alpha(t, t) V[t] + sum_s alpha(t, s) V[s]
        if constant_memory:
            past_sum = state.nu_sum
        else:
            past_sum = _bank.weighted_rows(alpha, state.nu_bank, nu, past, split)
        own = _per_leaf_tree(jnp.sum(alpha, where=(tasks == task)[None], axis=-1), nu)
        w = jax.tree.map(
            lambda a, v, p: a.astype(v.dtype) * v + p.astype(v.dtype), own, nu, past_sum
        )

        steps = jnp.where((tasks == task) & good, optax.safe_increment(state.steps), state.steps)
        n = steps[task]
        new_updates = jax.tree.map(
            lambda u, x, v: jnp.where(
                good, _scaled(x, v, n, rule, eps, eps_in_sqrt), jnp.nan
            ).astype(u.dtype),
            updates,
            g if rule.bias_corrected is None else mu,
            w,
        )

        def stored(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda x, y: x.astype(y.dtype), new, old)

        return new_updates, state._replace(
            visited=state.visited | (tasks == task),
            steps=steps,
            alpha=jnp.where(good, alpha.reshape(state.alpha.shape), state.alpha),
            mu=stored(mu, state.mu),
            nu=stored(nu, state.nu),
            unit=stored(unit, state.unit),
            norm=jax.tree.map(lambda new, old: jnp.where(good, new, old), norm, state.norm),
        )

    def update(
        updates: Updates,
        state: ScaleByTagState,
        params: Params | None = None,
        *,
        task_id: jax.typing.ArrayLike,
        **extra_args: Any,
    ) -> tuple[Updates, ScaleByTagState]:
        del params, extra_args
        task = _checks.check_task_id(task_id, state.steps.shape[0])
        # As in optax, a leaf may come without a gradient. It counts as zero, and gets no update.
        g = jax.tree.map(lambda v, u: jnp.zeros_like(v) if u is None else u, state.nu, updates)
        scaled, state = step(g, state, task)
        return jax.tree.map(lambda x, u: None if u is None else x, scaled, updates), state

    return transformation(init, update)


def _scaled(
    direction: jax.Array,
    w: jax.Array,
    n: jax.Array,
    rule: _Rule,
    eps: jax.typing.ArrayLike,
    eps_in_sqrt: bool,
) -> jax.Array:
    """``direction / sqrt(W + eps)`` or ``direction / (sqrt(W) + eps)``, bias-corrected in Adam."""
    eps = jnp.asarray(eps, w.dtype)
    root = jnp.sqrt(w + eps) if eps_in_sqrt else jnp.sqrt(w)
    if rule.bias_corrected is not None:
        b1, b2 = rule.bias_corrected
        direction = direction / _bias(b1, n, w.dtype)
        root = root / jnp.sqrt(_bias(b2, n, w.dtype))
    if not eps_in_sqrt:
        root = root + eps
    # With eps = 0 a parameter that never had a gradient would be 0 / 0.
    return jnp.where(root == 0, jnp.zeros_like(direction), direction / root)


def _mean_unit(
    mean: jax.Array,
    g: jax.Array,
    norm: jax.Array,
    n: jax.Array,
    num_gradients: jax.typing.ArrayLike,
) -> jax.Array:
    """The mean of the task's first unit gradients, given its n steps before this one.

    The mean cosine over all pairs of two tasks' gradients is the inner product of these means, so
    one row a task serves any number of gradients.
    """
    norm = norm.astype(g.dtype)
    direction = g / jnp.where(norm == 0, jnp.ones_like(norm), norm)
    share = jnp.where(n < num_gradients, 1 / (n + 1).astype(g.dtype), jnp.zeros((), g.dtype))
    return mean + share * (direction - mean)


def _per_leaf_tree(groups: jax.Array, like: Params) -> Params:
    leaves, structure = jax.tree.flatten(like)
    return jax.tree.unflatten(structure, _bank.per_leaf(groups, len(leaves)))


def scale_by_tag_rms(
    b: jax.typing.ArrayLike,
    task_capacity: int,
    *,
    b1: jax.typing.ArrayLike = 0.9,
    b2: jax.typing.ArrayLike = 0.99,
    eps: jax.typing.ArrayLike = 1e-8,
    eps_in_sqrt: bool = True,
    alpha_scope: AlphaScope = "global",
    relatedness: RelatednessName = "cosine",
    num_gradients: jax.typing.ArrayLike = 1,
    constant_memory: bool = False,
    skip_unseen: bool = True,
    mu_dtype: jax.typing.DTypeLike | None = None,
    nu_dtype: jax.typing.DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Rescales gradients by TAG-RMSProp; see :func:`tag_optax.tag_rmsprop` for the arguments.

    Returns:
        A transformation whose ``update`` needs the extra argument ``task_id``.

    Examples:
        >>> import jax.numpy as jnp, optax, tag_optax
        >>> tx = optax.chain(tag_optax.scale_by_tag_rms(5.0, 2), optax.scale(-0.1))
        >>> state = tx.init(jnp.zeros(2))
        >>> for task, gradient in enumerate([jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])]):
        ...     updates, state = tx.update(gradient, state, task_id=task)
        ...     print(task, f"{updates[task]:.2f}")
        0 -1.00
        1 -12.18
    """
    return _scale_by_tag(
        b,
        task_capacity,
        _Rule(lambda v, g: _moving_average(b2, v, g**2)),
        b1=b1,
        eps=eps,
        eps_in_sqrt=eps_in_sqrt,
        alpha_scope=alpha_scope,
        relatedness=relatedness,
        num_gradients=num_gradients,
        constant_memory=constant_memory,
        skip_unseen=skip_unseen,
        mu_dtype=mu_dtype,
        nu_dtype=nu_dtype,
    )


def scale_by_tag_adagrad(
    b: jax.typing.ArrayLike,
    task_capacity: int,
    *,
    b1: jax.typing.ArrayLike = 0.9,
    eps: jax.typing.ArrayLike = 1e-8,
    eps_in_sqrt: bool = True,
    alpha_scope: AlphaScope = "global",
    relatedness: RelatednessName = "cosine",
    num_gradients: jax.typing.ArrayLike = 1,
    constant_memory: bool = False,
    skip_unseen: bool = True,
    mu_dtype: jax.typing.DTypeLike | None = None,
    nu_dtype: jax.typing.DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Rescales gradients by TAG-Adagrad; see :func:`tag_optax.tag_adagrad` for the arguments.

    Returns:
        A transformation whose ``update`` needs the extra argument ``task_id``.

    Examples:
        >>> import jax.numpy as jnp, optax, tag_optax
        >>> tx = optax.chain(tag_optax.scale_by_tag_adagrad(5.0, 2), optax.scale(-0.1))
        >>> state = tx.init(jnp.zeros(2))
        >>> for task, gradient in enumerate([jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])]):
        ...     updates, state = tx.update(gradient, state, task_id=task)
        ...     print(task, f"{updates[task]:.2f}")
        0 -0.10
        1 -1.22
    """
    return _scale_by_tag(
        b,
        task_capacity,
        _Rule(lambda v, g: v + g**2),
        b1=b1,
        eps=eps,
        eps_in_sqrt=eps_in_sqrt,
        alpha_scope=alpha_scope,
        relatedness=relatedness,
        num_gradients=num_gradients,
        constant_memory=constant_memory,
        skip_unseen=skip_unseen,
        mu_dtype=mu_dtype,
        nu_dtype=nu_dtype,
    )


def scale_by_tag_adam(
    b: jax.typing.ArrayLike,
    task_capacity: int,
    *,
    b1: jax.typing.ArrayLike = 0.9,
    b2: jax.typing.ArrayLike = 0.999,
    eps: jax.typing.ArrayLike = 1e-8,
    eps_in_sqrt: bool = True,
    alpha_scope: AlphaScope = "global",
    relatedness: RelatednessName = "cosine",
    num_gradients: jax.typing.ArrayLike = 1,
    constant_memory: bool = False,
    skip_unseen: bool = True,
    mu_dtype: jax.typing.DTypeLike | None = None,
    nu_dtype: jax.typing.DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Rescales gradients by TAG-Adam; see :func:`tag_optax.tag_adam` for the arguments.

    Returns:
        A transformation whose ``update`` needs the extra argument ``task_id``.

    Examples:
        >>> import jax.numpy as jnp, optax, tag_optax
        >>> tx = optax.chain(tag_optax.scale_by_tag_adam(5.0, 2), optax.scale(-0.1))
        >>> state = tx.init(jnp.zeros(2))
        >>> for task, gradient in enumerate([jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])]):
        ...     updates, state = tx.update(gradient, state, task_id=task)
        ...     print(task, f"{updates[task]:.2f}")
        0 -0.10
        1 -1.22
    """
    return _scale_by_tag(
        b,
        task_capacity,
        _Rule(lambda v, g: _moving_average(b2, v, g**2), bias_corrected=(b1, b2)),
        b1=b1,
        eps=eps,
        eps_in_sqrt=eps_in_sqrt,
        alpha_scope=alpha_scope,
        relatedness=relatedness,
        num_gradients=num_gradients,
        constant_memory=constant_memory,
        skip_unseen=skip_unseen,
        mu_dtype=mu_dtype,
        nu_dtype=nu_dtype,
    )
