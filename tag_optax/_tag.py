"""The TAG update: the paper's equations over the live row and a bank of past tasks."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from tag_optax import _bank, _banks, _checks, _relatedness, _rows
from tag_optax._bank import Bank, Live
from tag_optax._relatedness import Relatedness, cosine_of, moving_average
from tag_optax._types import Numeric, Params, Updates, transformation


class ScaleByTagState(NamedTuple):
    """State of the TAG transformations, for K tasks.

    The row of the present task (the live row) lies outside the bank, and is exchanged when the task
    changes. What the relatedness and the bank do not read is not there.
    """

    # Not named task_id, which optax.tree.set would also find here when it sets the task of
    # `stateful_task_id`, and the live row would then be taken for another task's.
    live_task: jax.Array  # int32 []: the task of the live row; -1 before the first step.
    visited: jax.Array  # bool [K]: tasks that had a step, be it one that was not finite.
    steps: jax.Array  # int32 [K]: finite steps of each task; 0 for a task not seen.
    alpha: jax.Array  # [K], or [leaves, K] for scope leaf: weights of the last step.
    live: Live  # "nu", "mu", "direction", "length" of the present task, as far as they are read.
    past: Params  # sum_s alpha(t, s) V[s] of the last step, like the parameters.
    anchor: Params  # The parameters when the last task ended; () where nothing is pulled to them.
    bank: Any  # What the bank keeps of the tasks; the full one the live row, stacked: [K, ...].


@dataclasses.dataclass(frozen=True)
class Rule:
    """What tells TAG-RMSProp, TAG-Adagrad, TAG-Adam and `protect` apart."""

    accumulate: Callable[[jax.Array, jax.Array], jax.Array]  # V[t], g -> the new V[t]
    # Adam steps along M[t] and corrects both moments for their start at zero: (b1, b2).
    bias_corrected: tuple[Numeric, Numeric] | None = None
    # Not g / sqrt(W) but sqrt(V[t] / W), for the steps of another optimizer.
    is_factor: bool = False


def scale_by_rule(
    b: Numeric,
    task_capacity: int,
    rule: Rule,
    b1: Numeric,
    eps: Numeric,
    eps_in_sqrt: bool,
    relatedness: str | Relatedness,
    bank: str | Bank,
    anchor: Numeric | None = None,
) -> optax.GradientTransformationExtraArgs:
    task_capacity = _checks.check_size("task_capacity", task_capacity)
    _checks.check_b(b)
    pulls = _checks.check_anchor(anchor)
    related, kind = _relatedness.named(relatedness), _banks.named(bank)
    kind.check(related)
    scope = related.scope if related.compares else "global"
    # Adam's own M[t] is what is compared, unless the relatedness represents tasks otherwise.
    compares_mu = rule.bias_corrected is not None and not (
        kind.separate_direction or type(related).represent is not Relatedness.represent
    )

    def whole(tree: Any, params: Params) -> Any:
        """A gradient as it is compared: joined, where devices do not hold parts of it."""
        return tree if scope == "leaf" or kind.splits(params) else _rows.join(tree)

    def known(x: jax.Array, bank: Any) -> jax.Array:
        """Numbers of the tasks: computed on every device, where the bank is split, and not sent."""
        return _rows.everywhere(x) if kind.splits(bank) else x

    def init(params: Params) -> ScaleByTagState:
        _checks.check_real(params)
        dtype = _rows.weights_dtype(params)
        groups = _rows.group_count(params, scope)
        live = {"nu": _rows.zeros_like(params, kind.storage("nu"))}
        if rule.bias_corrected is not None:
            live["mu"] = _rows.zeros_like(params, kind.storage("mu"))
        if related.compares and not compares_mu:
            seen = kind.view(whole(_rows.zeros_like(params, None), params))
            live["direction"] = _rows.zeros_like(seen, kind.storage("direction"))
        if related.compares and related.is_cosine:
            live["length"] = jnp.zeros((groups,), dtype)
        return ScaleByTagState(
            live_task=jnp.full((), -1, jnp.int32),
            visited=jnp.zeros((task_capacity,), bool),
            steps=jnp.zeros((task_capacity,), jnp.int32),
            alpha=jnp.zeros((groups, task_capacity)[scope == "global" :], dtype),
            live=live,
            past=_rows.zeros_like(params, None),
            anchor=jax.tree.map(jnp.zeros_like, params) if pulls else (),
            bank=kind.init(live, task_capacity),
        )

    @jax.jit  # So that an eager call is compiled once, not at every step.
    def step(
        updates: Updates, state: ScaleByTagState, params: Params, task: jax.Array
    ) -> tuple[Updates, ScaleByTagState]:
        dtype = state.alpha.dtype
        here = jnp.arange(state.steps.shape[0], dtype=jnp.int32) == task
        valid = (task >= 0) & (task < state.steps.shape[0])
        changed = valid & (task != state.live_task)
        change = _bank.Change(state.live_task, task, changed)
        old, past, bank, afresh = kind.exchange(state.live, state.past, state.bank, change)
        steps = known(jnp.where(here & afresh, 0, state.steps), bank)
        # A loop of no or one round, which copies nothing while the task stays the same.
        anchored = lax.fori_loop(
            0,
            changed.astype(jnp.int32),
            lambda _, kept: jax.tree.map(lambda x, p: jnp.asarray(p, x.dtype), kept, params),
            state.anchor,
        )

        moments = [old[name] for name in ("nu", "mu") if name in old]
        g = jax.tree.map(
            lambda x, *ms: x.astype(_rows.accumulator_dtype(x, *ms)), updates, *moments
        )
        joined = whole(g, past)

        # A number that is not finite would stay in the bank, and so in every step of every task.
        # One in a gradient is one in its length, which is a dot: ten times as fast as looking.
        # The barrier keeps XLA from sharing g * g with V[t], for which it would store all of it.
        length = _rows.lengths(lax.optimization_barrier(joined), scope, dtype)
        good = valid & jnp.all(jnp.isfinite(length))

        def advance(moment: Any, new: Callable[..., jax.Array], *trees: Any) -> Any:
            """Moves a moment on in the arithmetic's dtype; a bad step leaves it as it is."""

            def move(kept: jax.Array, x: jax.Array, *rest: jax.Array) -> jax.Array:
                row = kept.astype(_rows.accumulator_dtype(x, kept))
                return jnp.where(good, new(row, x.astype(row.dtype), *rest), row)

            return jax.tree.map(move, moment, *trees)

        def represent(kept: jax.Array, x: jax.Array, length: jax.Array) -> jax.Array:
            length, n = length.astype(x.dtype), steps[task]
            return related.represent(kept, x, length=length, step=n, b1=b1)

        live = {"nu": advance(old["nu"], rule.accumulate, g)}
        if "mu" in old:
            live["mu"] = advance(old["mu"], lambda m, x: moving_average(b1, m, x), g)
        if "direction" in old:
            seen = kind.view(joined)
            live["direction"] = advance(
                old["direction"], represent, seen, _rows.by_leaf(length, seen)
            )
        # As it will be kept, so that a task's cosine with itself is 1 in any storage dtype.
        stored = {name: _rows.narrowed(live[name], old[name]) for name in live}
        if "length" in old:
            stored["length"] = _rows.lengths(_bank.direction(stored), scope, dtype)

        rows = kind.rows(bank, known(state.visited & ~here, bank), known(steps > 0, bank))
        weights = known(weigh(bank, stored, rows, task, dtype), bank)
        strength = jnp.asarray(b, dtype)
        own = jnp.where(jnp.any(rows.counts), related.own(strength), 1).astype(dtype)
        # Weights that follow from no comparison are the same for all steps until the task changes.
        stale = rows.active & (valid if related.compares else changed)
        past = kind.sum_past(bank, weights, past, stale)
        alpha = jnp.where(here, own, jnp.where(steps > 0, kind.by_task(bank, weights), 0))

        # W = alpha(t, t) V[t] + sum_s alpha(t, s) V[s]. In a bad step it is NaN, and so the update.
        of_own = jnp.where(good, own, jnp.nan)
        w = jax.tree.map(
            lambda v, p: of_own.astype(v.dtype) * v + p.astype(v.dtype), live["nu"], past
        )
        steps = jnp.where(here & good, optax.safe_increment(steps), steps)
        n = steps[task]
        along = g if rule.bias_corrected is None else live["mu"]
        if rule.is_factor:
            along = jax.tree.map(lambda v: _root(v, eps, eps_in_sqrt), live["nu"])

        def rescale(
            u: jax.Array, x: jax.Array, v: jax.Array, p: jax.Array, *place: jax.Array
        ) -> jax.Array:
            x, root = _corrected(x, v, n, rule, eps, eps_in_sqrt)
            scaled = _over(x, root)
            if pulls:
                now, then = (each.astype(v.dtype) for each in place)
                # P / root first, which is finite: P times a distance need not be.
                pull = _over(p.astype(v.dtype), root) * (now - then)
                scaled += jnp.asarray(anchor, v.dtype) * pull
            return scaled.astype(u.dtype)

        places = (params, anchored) if pulls else ()
        scaled = jax.tree.map(rescale, updates, along, w, past, *places)
        return scaled, ScaleByTagState(
            live_task=jnp.where(changed, task, state.live_task),
            visited=state.visited | here,
            steps=steps,
            alpha=jnp.where(good, alpha.reshape(state.alpha.shape), state.alpha),
            live=stored,
            past=past,
            anchor=anchored,
            bank=bank,
        )

    def weigh(
        bank: Any, live: Live, rows: _bank.Rows, task: jax.Array, dtype: jnp.dtype
    ) -> jax.Array:
        """alpha(t, s) for the rows of the other tasks, ``[G, R]``."""
        groups = _rows.group_count(live["nu"], scope)
        similarity = jnp.zeros((groups, rows.active.shape[0]), dtype)
        if related.compares:
            similarity = kind.products(bank, live, rows.active, scope, dtype)
        if "length" in live:
            others = known(kind.lengths(bank), bank)
            similarity = cosine_of(similarity, live["length"][:, None], others)
        distance = jnp.broadcast_to(jnp.abs(task - rows.task), similarity.shape)
        past = jax.vmap(jax.vmap(related.past, (0, 0, None)), (0, 0, None))
        alpha = past(similarity, distance, jnp.asarray(b, dtype))
        return jnp.where(rows.counts, alpha, 0)

    def update(
        updates: Updates,
        state: ScaleByTagState,
        params: Params | None = None,
        *,
        task_id: jax.typing.ArrayLike,
        **extra_args: Any,
    ) -> tuple[Updates, ScaleByTagState]:
        del extra_args
        if pulls and params is None:
            raise ValueError("anchor= needs the parameters: tx.update(grads, state, params, ...).")
        task = _checks.check_task_id(task_id, state.steps.shape[0])
        # As in optax, a leaf may come without a gradient. It counts as zero, and gets no update.
        g = jax.tree.map(lambda p, u: jnp.zeros_like(p) if u is None else u, state.past, updates)
        scaled, state = step(g, state, params if pulls else (), task)
        return jax.tree.map(lambda x, u: None if u is None else x, scaled, updates), state

    return transformation(init, update)


def _corrected(
    direction: jax.Array, w: jax.Array, n: jax.Array, rule: Rule, eps: Numeric, eps_in_sqrt: bool
) -> tuple[jax.Array, jax.Array]:
    """A direction and ``sqrt(W + eps)`` or ``sqrt(W) + eps``, both bias-corrected in Adam."""
    correction: Any = 1
    if rule.bias_corrected is not None:
        b1, b2 = rule.bias_corrected
        direction = direction / _bias(b1, n, w.dtype)
        correction = jnp.sqrt(_bias(b2, n, w.dtype))
    return direction, _root(w, eps, eps_in_sqrt, correction)


def _over(x: jax.Array, root: jax.Array) -> jax.Array:
    # With eps = 0 a parameter that never had a gradient would be 0 / 0.
    return jnp.where(root == 0, jnp.zeros_like(x), x / root)


def _root(v: jax.Array, eps: Numeric, eps_in_sqrt: bool, correction: Any = 1) -> jax.Array:
    eps = jnp.asarray(eps, v.dtype)
    return jnp.sqrt(v + eps) / correction if eps_in_sqrt else jnp.sqrt(v) / correction + eps


def _bias(decay: Numeric, step: jax.Array, dtype: jnp.dtype) -> jax.Array:
    # 1 - decay^n, without the cancellation that costs float32 three digits at n = 1.
    return -jnp.expm1(step.astype(dtype) * jnp.log1p(-jnp.asarray(1 - decay, dtype)))
