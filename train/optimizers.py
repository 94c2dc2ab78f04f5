"""Optimizers by name: optax transformations, given how many tasks there are, with their settings.

A user's own is any function of the number of tasks that returns an optax transformation. The task
reaches it as the extra argument `task_id`, and the loss of the batch as `value`, if it takes them.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax

import tag_optax
from train import settings
from train.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Steps along a direction, scaled by the rate."""

    learning_rate: float = 0.005
    """Step size."""
    weight_decay: float = 0.0
    """Pull every parameter to zero by this share of the rate, apart from the gradient."""

    def __post_init__(self) -> None:
        settings.check_numbers(self)
        for names, holds, rule in _RULES:
            for name in names:
                value = getattr(self, name, None)
                settings.check(value is None or holds(value), name, rule, value)

    def direction(self) -> optax.GradientTransformation:
        """What is done to a gradient before the rate scales it."""
        raise NotImplementedError

    def rate(self) -> optax.GradientTransformation:
        return optax.scale_by_learning_rate(self.learning_rate)

    def __call__(self, tasks: int) -> optax.GradientTransformation:
        decay = [optax.add_decayed_weights(self.weight_decay)] if self.weight_decay else []
        return optax.chain(self.direction(), *decay, self.rate())


_RULES: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("learning_rate", "eps"), lambda x: x > 0, "must be above 0"),
    (("weight_decay", "b", "anchor"), lambda x: x >= 0, "must not be negative"),
    (("b1", "b2", "momentum"), lambda x: 0 <= x < 1, "must lie in [0, 1)"),
    (("decay",), lambda x: 0 < x <= 1, "must lie in (0, 1]"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    learning_rate: float = 0.1
    """Step size."""
    momentum: float = 0.0
    """How much of a step the next one keeps."""

    def direction(self) -> optax.GradientTransformation:
        return optax.trace(self.momentum) if self.momentum else optax.identity()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StableSGD(SGD):
    """SGD at a rate that falls with every task (Mirzadeh et al., 2020)."""

    decay: float = 1.0
    """The rate falls by this factor with every task."""

    def rate(self) -> optax.GradientTransformation:
        def update(updates, state, params=None, *, task_id, **extra_args):
            del params, extra_args
            # As in the authors' code: the first task has the decayed rate, and there is a floor.
            rate = jnp.maximum(self.learning_rate * self.decay ** (task_id + 1.0), 5e-5)
            return optax.tree.scale(-rate, updates), state

        return optax.GradientTransformationExtraArgs(
            lambda params: optax.EmptyState(),
            update,  # type: ignore[arg-type]  # The task id is required.
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adagrad(Optimizer):
    eps: float = 1e-8
    """Keeps divisions finite."""

    def direction(self) -> optax.GradientTransformation:
        return optax.scale_by_rss(initial_accumulator_value=0.0, eps=self.eps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RMSProp(Adagrad):
    b2: float = 0.99
    """Decay of the second moments."""
    eps_in_sqrt: bool = True
    """Add eps inside the root, as the paper writes it; outside, as the authors' code does."""
    momentum: float = 0.0
    """How much of a step the next one keeps."""

    def direction(self) -> optax.GradientTransformation:
        scaled = optax.scale_by_rms(self.b2, eps=self.eps, eps_in_sqrt=self.eps_in_sqrt)
        return optax.chain(scaled, optax.trace(self.momentum)) if self.momentum else scaled


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    b1: float = 0.9
    """Decay of the first moments."""
    b2: float = 0.999
    """Decay of the second moments."""
    eps: float = 1e-8
    """Keeps divisions finite."""
    eps_in_sqrt: bool = True
    """Add eps inside the root, as the paper writes it; outside, as the authors' code does."""

    def direction(self) -> optax.GradientTransformation:
        inside, outside = (self.eps, 0.0) if self.eps_in_sqrt else (0.0, self.eps)
        return optax.scale_by_adam(self.b1, self.b2, eps=outside, eps_root=inside)


Storage = Literal["float32", "bfloat16", "float16"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagAdagrad(Optimizer):
    """TAG (Malviya et al., 2022) over sums of squared gradients."""

    alias: ClassVar[Callable[..., Any]] = staticmethod(tag_optax.tag_adagrad)

    relatedness: Literal["cosine", "first_gradients", "uniform", "age", "self"] = "cosine"
    """What weighs the other tasks: the cosine of the tasks' momenta, or of their first gradients;
    uniform and self: all alike, self with exp(-b) for the task at hand; age: how long ago."""
    b: float = 5.0
    """How strongly relatedness matters."""
    b1: float = 0.9
    """Decay of the first moments."""
    eps: float = 1e-8
    """Keeps divisions finite."""
    eps_in_sqrt: bool = True
    """Add eps inside the root, as the paper writes it; outside, as the authors' code does."""
    alpha_scope: Literal["global", "leaf"] = "global"
    """One cosine over all parameters (the paper), or one a tensor (its authors' code)."""
    num_gradients: int = 1
    """first_gradients: how many first gradients of a task stand for it."""
    bank: Literal["full", "compressed", "clustered"] = "full"
    """How the tasks' moments are kept: a row each; a row each at an eighth of the bytes; or as many
    rows as --rows, which the most related tasks share."""
    rows: int = 16
    """clustered: how many rows."""
    anchor: float = 0.0
    """How strongly parameters are pulled back to where the last task ended; 0: not at all."""
    mu_dtype: Storage = "float32"
    """What the tasks' first moments are kept in."""
    nu_dtype: Storage = "float32"
    """What the tasks' second moments are kept in."""

    def __post_init__(self) -> None:
        super().__post_init__()
        settings.check_counts(self, "num_gradients", "rows")
        compares = self.relatedness in ("cosine", "first_gradients")
        sums, full = self.relatedness == "self", self.bank == "full"
        for name, used, by in (
            ("b", self.relatedness not in ("uniform", "age"), "relatedness"),
            ("alpha_scope", compares, "relatedness"),
            ("num_gradients", self.relatedness == "first_gradients", "relatedness"),
            ("mu_dtype", compares or isinstance(self, TagAdam), "relatedness"),
            ("nu_dtype", not sums, "relatedness"),
            ("bank", not sums, "relatedness"),
            ("mu_dtype", full, "bank"),
            ("nu_dtype", full, "bank"),
            ("rows", self.bank == "clustered", "bank"),
        ):
            usual = getattr(TagAdagrad, name)
            if not used and getattr(self, name) != usual:
                raise UserError(
                    f"{settings.flag(name)} would change nothing with {settings.flag(by)} "
                    f"{getattr(self, by)}: leave it at {usual}."
                )
        try:
            self(1)
        except ValueError as error:  # The library knows which banks serve which relatedness.
            raise UserError(str(error)) from None

    def __call__(
        self, tasks: int, *, splits_bank: bool = False
    ) -> optax.GradientTransformationExtraArgs:
        """`splits_bank`: devices hold different parts of the tasks' moments."""
        shared = ("b1", "b2", "eps", "eps_in_sqrt", "anchor", "weight_decay")
        options = {name: getattr(self, name) for name in shared if hasattr(self, name)}
        options["relatedness"] = {
            "cosine": tag_optax.cosine(self.alpha_scope),
            "first_gradients": tag_optax.first_gradients(self.num_gradients, self.alpha_scope),
            "self": "own",
        }.get(self.relatedness, self.relatedness)
        options["bank"] = {
            "full": tag_optax.full(self.mu_dtype, self.nu_dtype, splits_bank),
            "compressed": tag_optax.compressed(split=splits_bank),
            "clustered": tag_optax.clustered(self.rows, splits_bank),
        }[self.bank]
        if self.relatedness == "self":  # No comparison asks for the tasks' own moments.
            options["bank"] = "running_sum"
        return self.alias(self.b, tasks, self.learning_rate, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagRMSProp(TagAdagrad):
    """TAG over moving averages of squared gradients."""

    learning_rate: float = 2.5e-4
    """Step size."""
    b2: float = 0.99
    """Decay of the second moments."""

    alias = staticmethod(tag_optax.tag_rmsprop)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagAdam(TagRMSProp):
    """TAG with Adam's momentum and correction of bias."""

    learning_rate: float = 5e-4
    """Step size."""
    b2: float = 0.999
    """Decay of the second moments."""

    alias = staticmethod(tag_optax.tag_adam)


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(),
    "adagrad": Adagrad(),
    "rmsprop": RMSProp(),
    "adam": Adam(),
    "stable-sgd": StableSGD(),
    "tag-rmsprop": TagRMSProp(),
    "tag-adagrad": TagAdagrad(),
    "tag-adam": TagAdam(),
    "tag-uniform": TagRMSProp(relatedness="uniform"),
    "tag-age": TagRMSProp(relatedness="age"),
    "tag-g": TagRMSProp(relatedness="first_gradients"),
    "tag-self": TagRMSProp(relatedness="self"),
    "tag-anchored": TagRMSProp(relatedness="self", b=7.0, anchor=10.0),
}


def make(given: Any, tasks: int, *, splits_bank: bool = False) -> Any:
    """The optax transformation that a user's function, or one of these, makes for so many tasks."""
    options = {"splits_bank": splits_bank} if isinstance(given, TagAdagrad) else {}
    try:
        inspect.signature(given).bind(tasks)
    except TypeError:  # It takes no tasks: a transformation, or something that is none.
        tx = given
    except ValueError:  # A function of another language, which does not say what it takes.
        tx = given(tasks)
    else:
        tx = given(tasks, **options)
    if not isinstance(tx, optax.GradientTransformation):
        raise UserError(
            "An optimizer must be an optax transformation, or a function that takes how many tasks "
            f"there are and returns one, as in lambda tasks: optax.sgd(0.1); this gave {tx!r:.80}."
        )
    return optax.with_extra_args_support(tx)


def keeps_tasks(opt_state: optax.OptState) -> bool:
    """Whether TAG is somewhere in an optimizer's state, and so weights of the tasks."""
    tag = tag_optax.ScaleByTagState
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, tag))
    return any(isinstance(node, tag) for node in nodes)
