"""Which settings change something: some belong to one method, optimizer or model alone."""

import dataclasses
from collections.abc import Callable

from train.errors import UserError
from train.run import config as configs
from train.run.config import Config


def _has_tag(config: Config) -> bool:
    return config.optimizer.startswith("tag-")


def _has_b(config: Config) -> bool:
    return _has_tag(config) and config.optimizer not in ("tag-uniform", "tag-age")


def _has_memory(config: Config) -> bool:
    return config.method in ("er", "a-gem")


def _has_second_moments(config: Config) -> bool:
    return _has_tag(config) or config.optimizer in ("adagrad", "rmsprop", "adam")


# Settings that only some configs use: what they need, and whether a config has it.
_NEEDS: dict[str, tuple[str, Callable[[Config], bool]]] = {
    "b": ("a TAG optimizer other than tag-uniform and tag-age", _has_b),
    "alpha_scope": ("a TAG optimizer", _has_tag),
    "num_gradients": ("--optimizer tag-g", lambda config: config.optimizer == "tag-g"),
    "b1": ("Adam or a TAG optimizer", lambda c: _has_tag(c) or c.optimizer == "adam"),
    "b2": (
        "an optimizer with decaying moments",
        lambda c: _has_second_moments(c) and not c.optimizer.endswith("adagrad"),
    ),
    "eps": ("an adaptive optimizer", _has_second_moments),
    "eps_in_sqrt": (
        "RMSProp, Adam or a TAG optimizer",
        lambda c: _has_second_moments(c) and c.optimizer != "adagrad",
    ),
    "momentum": ("SGD or Stable SGD", lambda c: c.optimizer in ("sgd", "stable-sgd")),
    "decay": ("--optimizer stable-sgd", lambda config: config.optimizer == "stable-sgd"),
    "ewc_lambda": ("--method ewc", lambda config: config.method == "ewc"),
    "fisher": ("--method ewc", lambda config: config.method == "ewc"),
    "fisher_samples": ("--method ewc", lambda config: config.method == "ewc"),
    "memory_per_class": ("--method er or a-gem", _has_memory),
    "memory_batch_size": ("--method er or a-gem", _has_memory),
    "replay_current_task": ("--method er", lambda config: config.method == "er"),
    "statistics_twice": (
        "--method a-gem and a network with batch normalisation",
        lambda config: config.method == "a-gem" and config.model != "mlp",
    ),
    "directions_per_task": ("--method ogd", lambda config: config.method == "ogd"),
    "multitask_order": ("--method multitask", lambda config: config.method == "multitask"),
    "hidden": ("--model mlp", lambda config: config.model == "mlp"),
    "pretrained": ("--model resnet18", lambda config: config.model == "resnet18"),
}


def check_used(config: Config) -> None:
    """Refuses a setting that differs from the preset and would change nothing.

    >>> check_used(dataclasses.replace(configs.preset("split-cifar100", "sgd"), b=3.0))
    Traceback (most recent call last):
    train.errors.UserError: --b needs a TAG optimizer other than ...; with naive, sgd and ...
    """
    unchanged = configs.usual(config)
    for name in unused(config):
        if getattr(config, name) != getattr(unchanged, name):
            flag, (need, _) = "--" + name.replace("_", "-"), _NEEDS[name]
            raise UserError(
                f"{flag} needs {need}; with {config.method}, {config.optimizer} and "
                f"{config.model} it would change nothing."
            )


def unused(config: Config) -> list[str]:
    """The settings that change nothing.

    >>> "b" in unused(configs.preset("split-cifar100", "sgd"))
    True
    """
    return [name for name, (_, has) in _NEEDS.items() if not has(config)]


def without_unused(config: Config) -> Config:
    """The same run, told from the others by what decides it alone.

    >>> configs.preset("split-cifar100", "sgd") == without_unused(Config(optimizer="sgd", b=3.0,
    ...     learning_rate=0.1))
    True
    """
    unchanged = configs.usual(config)
    return dataclasses.replace(
        config, **{name: getattr(unchanged, name) for name in unused(config)}
    )
