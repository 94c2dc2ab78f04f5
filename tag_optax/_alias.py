"""The three TAG optimizers: as rescalings to chain, and ready to use with decay and a rate."""

from __future__ import annotations  # So that help() shows the names of types, not their expansion.

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax

from tag_optax._bank import Bank
from tag_optax._checks import check_mask, names_successors
from tag_optax._relatedness import Relatedness, moving_average
from tag_optax._tag import Rule, scale_by_rule
from tag_optax._types import Numeric, Params

Transformation = optax.GradientTransformationExtraArgs
Rate = optax.ScalarOrSchedule
Mask = Any | Callable[[Params], Any] | None


@names_successors
def scale_by_tag_rms(
    b: Numeric,
    task_capacity: int,
    *,
    b1: Numeric = 0.9,
    b2: Numeric = 0.99,
    eps: Numeric = 1e-8,
    eps_in_sqrt: bool = True,
    relatedness: str | Relatedness = "cosine",
    bank: str | Bank = "full",
    anchor: Numeric | None = None,
) -> Transformation:
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
    rule = Rule(lambda v, g: moving_average(b2, v, g**2))
    return scale_by_rule(b, task_capacity, rule, b1, eps, eps_in_sqrt, relatedness, bank, anchor)


@names_successors
def scale_by_tag_adagrad(
    b: Numeric,
    task_capacity: int,
    *,
    b1: Numeric = 0.9,
    eps: Numeric = 1e-8,
    eps_in_sqrt: bool = True,
    relatedness: str | Relatedness = "cosine",
    bank: str | Bank = "full",
    anchor: Numeric | None = None,
) -> Transformation:
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
    # At most the largest number there is: a sum may grow beyond.
    rule = Rule(lambda v, g: jnp.minimum(v + g**2, jnp.finfo(v.dtype).max))
    return scale_by_rule(b, task_capacity, rule, b1, eps, eps_in_sqrt, relatedness, bank, anchor)


@names_successors
def scale_by_tag_adam(
    b: Numeric,
    task_capacity: int,
    *,
    b1: Numeric = 0.9,
    b2: Numeric = 0.999,
    eps: Numeric = 1e-8,
    eps_in_sqrt: bool = True,
    relatedness: str | Relatedness = "cosine",
    bank: str | Bank = "full",
    anchor: Numeric | None = None,
) -> Transformation:
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
    rule = Rule(lambda v, g: moving_average(b2, v, g**2), bias_corrected=(b1, b2))
    return scale_by_rule(b, task_capacity, rule, b1, eps, eps_in_sqrt, relatedness, bank, anchor)


@names_successors
def tag_rmsprop(
    b: Numeric,
    task_capacity: int,
    learning_rate: Rate = 2.5e-4,
    *,
    b1: Numeric = 0.9,
    b2: Numeric = 0.99,
    eps: Numeric = 1e-8,
    eps_in_sqrt: bool = True,
    relatedness: str | Relatedness = "cosine",
    bank: str | Bank = "full",
    anchor: Numeric | None = None,
    weight_decay: Rate = 0.0,
    mask: Mask = None,
) -> Transformation:
    r"""TAG-RMSProp: RMSProp that remembers every task and learns related ones faster.

    For a gradient :math:`g` of task :math:`t`, and :math:`s` over the other tasks seen,

    .. math::
        M_t &\leftarrow \beta_1 M_t + (1 - \beta_1) g \\
        V_t &\leftarrow \beta_2 V_t + (1 - \beta_2) g^2 \\
        \alpha(t, s) &= \exp(-b \cos(M_t, M_s)), \quad \alpha(t, t) = \exp(-b) \\
        W &= \alpha(t, t) V_t + \sum_s \alpha(t, s) V_s \\
        \theta &\leftarrow \theta - \eta \, g / \sqrt{W + \epsilon}

    and :math:`W = V_t` while no other task was seen. A finished task's moments never change; a task
    that comes back takes up its own moments and step count.

    With ``anchor`` :math:`= \lambda`, what the past contributes to W, :math:`P`, is also what holds
    the parameters to those with which the last task ended, :math:`\theta^*`:

    .. math::
        P = \sum_s \alpha(t, s) V_s, \qquad
        \theta \leftarrow \theta - \eta \, (g + \lambda P (\theta - \theta^*)) / \sqrt{W + \epsilon}

    It is EWC's penalty with the optimizer's second moments as Fisher information, in TAG's metric.

    Args:
        b: How strongly relatedness changes the step; larger forgets less. It moves the effective
            step too: in the second task parameters without a past step exp(b / 2) times as far.
        task_capacity: Number of tasks K; ids run from 0 to K - 1, in any order. It sets shapes, so
            it must be static: ``optax.inject_hyperparams(tag_rmsprop, static_args=
            ("task_capacity",))``, and ``"mask"`` too where it is a function.
            :func:`tag_optax.grow` makes room later.
        learning_rate: A number or a schedule, which counts the steps of all tasks;
            :func:`tag_optax.scale_by_task_schedule` counts those of each. The default is the
            paper's for Split-CIFAR100.
        b1: Decay of the first moment, which is what the cosine compares.
        b2: Decay of the second moment.
        eps: Keeps the root from zero.
        eps_in_sqrt: ``sqrt(W + eps)``, the paper's equation; else ``sqrt(W) + eps``, the authors'
            code.
        relatedness: Where alpha comes from: "cosine", "first_gradients", "uniform", "age", "own",
            or a value such as :func:`tag_optax.cosine` makes, or a :class:`tag_optax.Relatedness`
            of your own.
        bank: How past tasks are kept: "full" or "running_sum", or a value such as
            :func:`tag_optax.full` makes.
        anchor: How strongly parameters are pulled back to where the last task ended, in the metric
            of the past: see above. None, or 0, is no pull; more keeps one more copy of the
            parameters.
        weight_decay: Decoupled weight decay, multiplied by the learning rate but not by alpha.
        mask: A tree of booleans, or a function from parameters to one: what to decay.

    Returns:
        A transformation whose ``update`` needs the extra argument ``task_id``, an integer that may
        be traced. A concrete id out of range is a ``ValueError``; a traced one gives NaN updates
        and leaves bank, live row and counts as they were. So does a gradient that is not finite, or
        so long that its squares' sum is not: no bank ever holds such a number. Chain
        ``optax.zero_nans()`` after it to go on without the step. Donate the state to a jitted step,
        or every step copies the bank. ``update`` has no reverse-mode derivative (``jax.grad``
        through it), because it loops over the tasks seen.

    Examples:
        >>> import jax, jax.numpy as jnp, optax, tag_optax
        >>> targets = jnp.array([[1.0, 0.0], [0.0, 1.0]])  # Two tasks, one point each.
        >>> loss = lambda params, task: jnp.sum((params - targets[task]) ** 2)
        >>> tx = tag_optax.tag_rmsprop(1.0, task_capacity=2, learning_rate=0.01)
        >>> params = jnp.zeros(2)
        >>> state = tx.init(params)
        >>> @jax.jit
        ... def step(params, state, task):
        ...     gradient = jax.grad(loss)(params, task)
        ...     updates, state = tx.update(gradient, state, params, task_id=task)
        ...     return optax.apply_updates(params, updates), state
        >>> for task in (0, 1):
        ...     for _ in range(20):
        ...         params, state = step(params, state, task)
        ...     print(task, params.round(2), tag_optax.task_weights(state).round(2))
        0 [0.63 0.  ] [1. 0.]
        1 [0.37 0.86] [2.3  0.37]

    References:
        Malviya, Ravindran and Chandar, `TAG: Task-based Accumulated Gradients for Lifelong learning
        <https://arxiv.org/abs/2105.05155>`_, 2022.
    """
    rescale = scale_by_tag_rms(
        b,
        task_capacity,
        b1=b1,
        b2=b2,
        eps=eps,
        eps_in_sqrt=eps_in_sqrt,
        relatedness=relatedness,
        bank=bank,
        anchor=anchor,
    )
    return _optimizer(rescale, learning_rate, weight_decay, mask)


@names_successors
def tag_adagrad(
    b: Numeric,
    task_capacity: int,
    learning_rate: Rate = 5e-3,
    *,
    b1: Numeric = 0.9,
    eps: Numeric = 1e-8,
    eps_in_sqrt: bool = True,
    relatedness: str | Relatedness = "cosine",
    bank: str | Bank = "full",
    anchor: Numeric | None = None,
    weight_decay: Rate = 0.0,
    mask: Mask = None,
) -> Transformation:
    r"""TAG-Adagrad: as :func:`tag_optax.tag_rmsprop`, with the squared gradients summed.

    .. math::
        V_t \leftarrow V_t + g^2

    The arguments are those of :func:`tag_optax.tag_rmsprop`, but for ``b2``.

    Returns:
        A transformation whose ``update`` needs the extra argument ``task_id``.

    Examples:
        >>> import jax.numpy as jnp, tag_optax
        >>> tx = tag_optax.tag_adagrad(5.0, task_capacity=2, learning_rate=0.1)
        >>> state = tx.init(jnp.zeros(2))
        >>> for task in (0, 1):
        ...     updates, state = tx.update(jnp.array([3.0, 4.0]), state, task_id=task)
        ...     print(task, updates.round(3))
        0 [-0.1 -0.1]
        1 [-0.861 -0.861]
    """
    rescale = scale_by_tag_adagrad(
        b,
        task_capacity,
        b1=b1,
        eps=eps,
        eps_in_sqrt=eps_in_sqrt,
        relatedness=relatedness,
        bank=bank,
        anchor=anchor,
    )
    return _optimizer(rescale, learning_rate, weight_decay, mask)


@names_successors
def tag_adam(
    b: Numeric,
    task_capacity: int,
    learning_rate: Rate = 5e-4,
    *,
    b1: Numeric = 0.9,
    b2: Numeric = 0.999,
    eps: Numeric = 1e-8,
    eps_in_sqrt: bool = True,
    relatedness: str | Relatedness = "cosine",
    bank: str | Bank = "full",
    anchor: Numeric | None = None,
    weight_decay: Rate = 0.0,
    mask: Mask = None,
) -> Transformation:
    r"""TAG-Adam: as :func:`tag_optax.tag_rmsprop`, along the task's first moment.

    .. math::
        \theta \leftarrow \theta
            - \eta \frac{\sqrt{1 - \beta_2^n}}{1 - \beta_1^n} \frac{M_t}{\sqrt{W + \epsilon}}

    where :math:`n` counts the steps of task :math:`t` alone: the correction of bias is the task's,
    where a learning rate schedule counts all steps. With ``eps_in_sqrt=False`` eps is added to
    the bias-corrected root, as in the authors' code and in ``optax.adam``. The full bank keeps
    first moments for every relatedness, because a task that comes back steps along its own.

    The arguments are those of :func:`tag_optax.tag_rmsprop`.

    Returns:
        A transformation whose ``update`` needs the extra argument ``task_id``.

    Examples:
        >>> import jax.numpy as jnp, tag_optax
        >>> tx = tag_optax.tag_adam(5.0, task_capacity=2, learning_rate=0.1)
        >>> state = tx.init(jnp.zeros(2))
        >>> for task in (0, 1):
        ...     updates, state = tx.update(jnp.array([3.0, 4.0]), state, task_id=task)
        ...     print(task, updates.round(3))
        0 [-0.1 -0.1]
        1 [-0.861 -0.861]
    """
    rescale = scale_by_tag_adam(
        b,
        task_capacity,
        b1=b1,
        b2=b2,
        eps=eps,
        eps_in_sqrt=eps_in_sqrt,
        relatedness=relatedness,
        bank=bank,
        anchor=anchor,
    )
    return _optimizer(rescale, learning_rate, weight_decay, mask)


def _optimizer(
    rescale: Transformation, learning_rate: Rate, weight_decay: Rate, mask: Mask
) -> Transformation:
    check_mask(mask)
    # Decay reads the parameters. Whoever wants none may leave them out of `update`.
    none = isinstance(weight_decay, int | float) and weight_decay == 0 and mask is None
    decay = optax.identity() if none else optax.add_decayed_weights(weight_decay, mask)
    return optax.chain(rescale, decay, optax.scale_by_learning_rate(learning_rate))
