"""The three TAG optimizers, ready to use: rescaling, decoupled weight decay, learning rate."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from tag_optax import _checks
from tag_optax._state import AlphaScope
from tag_optax._tag import (
    RelatednessName,
    scale_by_tag_adagrad,
    scale_by_tag_adam,
    scale_by_tag_rms,
)
from tag_optax._types import Params

Mask = Any | Callable[[Params], Any]


def tag_rmsprop(
    b: jax.typing.ArrayLike,
    task_capacity: int,
    learning_rate: optax.ScalarOrSchedule = 2.5e-4,
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
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
) -> optax.GradientTransformationExtraArgs:
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

    Args:
        b: How strongly relatedness changes the step; larger forgets less. Note that ``b`` and
            ``task_capacity`` come before the learning rate: they have no sensible default. Any
            finite ``b`` will do: alpha is kept within the root of the largest number and its
            inverse, which float32 reaches at ``b = 44``.
        task_capacity: Number of rows K in the bank; ids run from 0 to K - 1, in any order. It sets
            shapes, so it must be static: ``optax.inject_hyperparams(tag_rmsprop,
            static_args=("task_capacity",))``, and ``"mask"`` too where it is a function.
            :func:`tag_optax.grow` enlarges a bank later.
        learning_rate: A number or a schedule; the default is the paper's for Split-CIFAR100.
        b1: Decay of the first moment, which is what the cosine compares.
        b2: Decay of the second moment.
        eps: Keeps the root from zero.
        eps_in_sqrt: ``sqrt(W + eps)``, the paper's equation; else ``sqrt(W) + eps``, the authors'
            code.
        alpha_scope: One cosine over all parameters that the transformation sees ("global", the
            paper's equation) or one for each leaf ("leaf", the authors' code).
        relatedness: Where alpha comes from. "cosine": as above. "first_gradients": the mean cosine
            of the first ``num_gradients`` gradients of both tasks (the paper's TAG-G). "uniform":
            1 for every task (TAG-1). "age": ``|t - s| + 1`` (TAG-age, for ids in order of arrival).
            "self": 1 for the others and exp(-b) for the task itself.
        num_gradients: B, for "first_gradients"; while a task has shown fewer, those count.
        constant_memory: For "uniform" and "self", where the past enters W only as a sum: keep that
            sum in place of the bank, so that memory does not grow with the tasks. A task that comes
            back then starts with fresh moments, while its old share stays in the sum.
        skip_unseen: Read only the rows in use, so that a step's cost follows the tasks seen. Set it
            to False where devices hold different parts of the bank, be it that its tasks or that
            the parameters are split (an explicit mesh is recognised by itself): every device then
            reads what it holds in one product, and a step meets once for all weights.
        mu_dtype: Storage of the first moments (live and bank), and of the gradients that
            "first_gradients" keeps. By default float32, or float64 for float64 parameters.
            Arithmetic is in float32 at least, in any case.
        nu_dtype: Storage of the second moments, likewise. bfloat16 halves the bank, but a moving
            average in it stands still where ``1 - b2`` is far below its precision of 2^-8.
        weight_decay: Decoupled weight decay, multiplied by the learning rate but not by alpha.
        mask: A tree of booleans, or a function from parameters to one: what to decay.

    Returns:
        A transformation whose ``update`` needs the extra argument ``task_id``, an integer that may
        be traced. A concrete id out of range is a ``ValueError``; a traced one gives NaN updates
        and leaves bank, live row and counts as they were. So does a gradient that is not finite, or
        so long that its squares' sum is not: no bank ever holds such a number. Chain
        ``optax.zero_nans()`` behind to go on without the step. Donate the state to a jitted step,
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
    return _optimizer(
        scale_by_tag_rms(
            b,
            task_capacity,
            b1=b1,
            b2=b2,
            eps=eps,
            eps_in_sqrt=eps_in_sqrt,
            alpha_scope=alpha_scope,
            relatedness=relatedness,
            num_gradients=num_gradients,
            constant_memory=constant_memory,
            skip_unseen=skip_unseen,
            mu_dtype=mu_dtype,
            nu_dtype=nu_dtype,
        ),
        learning_rate,
        weight_decay,
        mask,
    )


def tag_adagrad(
    b: jax.typing.ArrayLike,
    task_capacity: int,
    learning_rate: optax.ScalarOrSchedule = 5e-3,
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
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""TAG-Adagrad: as :func:`tag_optax.tag_rmsprop`, with the squared gradients summed.

    .. math::
        V_t \leftarrow V_t + g^2

    Args:
        b: See :func:`tag_optax.tag_rmsprop`, as for all other arguments.
        task_capacity: Number of rows in the bank.
        learning_rate: A number or a schedule; the default is the paper's for Split-CIFAR100.
        b1: Decay of the first moment.
        eps: Keeps the root from zero.
        eps_in_sqrt: ``sqrt(W + eps)`` or ``sqrt(W) + eps``.
        alpha_scope: "global" or "leaf".
        relatedness: "cosine", "first_gradients", "uniform", "age" or "self".
        num_gradients: B, for "first_gradients".
        constant_memory: A running sum in place of the bank.
        skip_unseen: Read only the rows in use.
        mu_dtype: Storage of the first moments.
        nu_dtype: Storage of the second moments.
        weight_decay: Decoupled weight decay.
        mask: What to decay.

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
    return _optimizer(
        scale_by_tag_adagrad(
            b,
            task_capacity,
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
        ),
        learning_rate,
        weight_decay,
        mask,
    )


def tag_adam(
    b: jax.typing.ArrayLike,
    task_capacity: int,
    learning_rate: optax.ScalarOrSchedule = 5e-4,
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
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""TAG-Adam: as :func:`tag_optax.tag_rmsprop`, along the task's first moment.

    .. math::
        \theta \leftarrow \theta
            - \eta \frac{\sqrt{1 - \beta_2^n}}{1 - \beta_1^n} \frac{M_t}{\sqrt{W + \epsilon}}

    where :math:`n` counts the steps of task :math:`t`. With ``eps_in_sqrt=False`` eps is added to
    the bias-corrected root, as in the authors' code and in ``optax.adam``. The bank of first
    moments is kept for every relatedness, because a task that comes back steps along its own; only
    ``constant_memory`` does without.

    Args:
        b: See :func:`tag_optax.tag_rmsprop`, as for all other arguments.
        task_capacity: Number of rows in the bank.
        learning_rate: A number or a schedule; the default is the paper's for Split-CIFAR100.
        b1: Decay of the first moment.
        b2: Decay of the second moment.
        eps: Keeps the root from zero.
        eps_in_sqrt: eps inside or outside the root.
        alpha_scope: "global" or "leaf".
        relatedness: "cosine", "first_gradients", "uniform", "age" or "self".
        num_gradients: B, for "first_gradients".
        constant_memory: A running sum in place of the bank.
        skip_unseen: Read only the rows in use.
        mu_dtype: Storage of the first moments.
        nu_dtype: Storage of the second moments.
        weight_decay: Decoupled weight decay.
        mask: What to decay.

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
    return _optimizer(
        scale_by_tag_adam(
            b,
            task_capacity,
            b1=b1,
            b2=b2,
            eps=eps,
            eps_in_sqrt=eps_in_sqrt,
            alpha_scope=alpha_scope,
            relatedness=relatedness,
            num_gradients=num_gradients,
            constant_memory=constant_memory,
            skip_unseen=skip_unseen,
            mu_dtype=mu_dtype,
            nu_dtype=nu_dtype,
        ),
        learning_rate,
        weight_decay,
        mask,
    )


def _optimizer(
    rescale: optax.GradientTransformationExtraArgs,
    learning_rate: optax.ScalarOrSchedule,
    weight_decay: optax.ScalarOrSchedule,
    mask: Mask | None,
) -> optax.GradientTransformationExtraArgs:
    _checks.check_mask(mask)
    # Decay reads the parameters. Whoever wants none may leave them out of `update`.
    none = isinstance(weight_decay, int | float) and weight_decay == 0 and mask is None
    decay = optax.identity() if none else optax.add_decayed_weights(weight_decay, mask)
    return optax.chain(rescale, decay, optax.scale_by_learning_rate(learning_rate))
