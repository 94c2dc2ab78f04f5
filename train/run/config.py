"""What decides a run: one frozen record, checked before any work."""

import dataclasses
import hashlib
import json
import math
import pathlib
import re
import types
import typing
from typing import TYPE_CHECKING, Any, Literal

from train import files
from train.errors import UserError, nearest
from train.methods import METHODS
from train.run import presets

StreamName = Literal[
    "split-cifar100",
    "split-mini-imagenet",
    "split-cub",
    "five-datasets",
    "rotated-mnist",
    "permuted-mnist",
    "rotated-digits",
]
OptimizerName = Literal[
    "sgd",
    "adagrad",
    "rmsprop",
    "adam",
    "stable-sgd",
    "tag-rmsprop",
    "tag-adagrad",
    "tag-adam",
    "tag-uniform",
    "tag-age",
    "tag-g",
    "tag-self",
]
if TYPE_CHECKING:  # The registry has the names: a new method needs no line here.
    MethodName = str
else:
    MethodName = Literal[tuple(METHODS)]
ModelName = Literal["resnet18-reduced", "resnet18-reduced-2conv", "resnet18", "mlp"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """What decides the result. The defaults are the preset of stream, method and optimizer."""

    stream: StreamName = "split-cifar100"
    """Which tasks, in which order."""
    method: MethodName = "naive"
    """What is done against forgetting, besides what the optimizer does."""
    optimizer: OptimizerName = "tag-rmsprop"
    """How a gradient becomes a step."""
    model: ModelName = "resnet18-reduced"
    """Which network."""

    learning_rate: float = 2.5e-4
    """Step size."""
    b: float = 5.0
    """TAG: how strongly relatedness matters."""
    b1: float = 0.9
    """Decay of the first moments."""
    b2: float = 0.99
    """Decay of the second moments."""
    eps: float = 1e-8
    """Keeps divisions finite."""
    eps_in_sqrt: bool = True
    """Add eps inside the root, as the paper writes it; outside, as the authors' code does."""
    alpha_scope: Literal["global", "leaf"] = "global"
    """TAG: one cosine over all parameters (the paper), or one a tensor (its authors' code)."""
    num_gradients: int = 1
    """tag-g: how many first gradients of a task stand for it."""
    momentum: float = 0.0
    """sgd, stable-sgd: how much of a step the next one keeps."""
    decay: float = 1.0
    """stable-sgd: the rate falls by this factor with every task."""

    ewc_lambda: float = 1.0
    """ewc: how strongly earlier tasks hold their parameters."""
    fisher: Literal["examples", "batch"] = "examples"
    """ewc: the mean of the examples' squared gradients, or the square of one batch's mean gradient
    as in the authors' code (some 30 times smaller: the paper's lambdas of 1 and 100 go with it)."""
    fisher_samples: int | None = 200
    """ewc: its Fisher information is taken from at most so many examples of a task; None: all."""
    memory_per_class: int = 1
    """er, a-gem: examples kept for each class of each task."""
    memory_batch_size: int | None = None
    """er, a-gem: examples drawn from the memory in a step; None: as many as in the batch."""
    replay_current_task: bool = False
    """er: draw examples of the current task too, as the authors' code does."""
    statistics_twice: bool = False
    """a-gem: pass a batch through the network before the memory and once more behind it, as the
    authors' code does: it then moves the running statistics of the normalisation twice."""
    directions_per_task: int = 10
    """ogd: gradients kept of each task. Each costs one copy of the parameters."""
    multitask_order: Literal["shuffled", "in-turn"] = "shuffled"
    """multitask: all tasks in every batch, or one after the other in every epoch (the authors')."""

    epochs: int = 1
    """Passes over each task's data."""
    batch_size: int = 10
    """Examples in a step."""
    dropout: float = 0.0
    """Dropout after every normalisation or hidden layer."""
    hidden: tuple[int, ...] = (100, 100)
    """mlp: sizes of its hidden layers."""
    pretrained: str | None = None
    """resnet18: weights to start from (.safetensors, .npz, .pth, named as in torchvision)."""

    num_tasks: int = 20
    """How many tasks the stream is cut into."""
    order_seed: int | None = None
    """Shuffle classes (split streams) or tasks by this seed; None keeps the natural order."""
    shared_head: bool = False
    """All tasks answer with the same outputs (MNIST and digits streams only)."""
    evaluate_on: Literal["test", "validation"] = "test"
    """validation: hold out 10 % of the training data, evaluate on it, never touch the test data."""

    max_examples: int | None = None
    """Use at most so many examples of each part of a task: for a quick look."""

    on_nonfinite: Literal["stop", "skip"] = "stop"
    """A step whose loss or gradient is infinite or NaN: stop the run, or go on without the step and
    count it."""
    log_every: int = 50
    """Steps between two lines of losses."""
    steps_per_call: int | None = None
    """Steps inside one compiled call; None: what was measured best on the platform."""

    def __post_init__(self) -> None:
        for name, valid in CHOICES.items():
            value = getattr(self, name)
            if value not in valid:
                raise UserError(f"Unknown {name} {value!r}. {nearest(str(value), valid)}")
        for name in ("learning_rate", "eps"):
            _check(getattr(self, name) > 0, self, name, "must be above 0")
        for name in _COUNTS:
            value = getattr(self, name)
            _check(value is None or value >= 1, self, name, "must be at least 1")
            _check(value is None or value <= _MOST, self, name, f"must be at most {_MOST}")
        # The accuracy on each task after each task is kept, and written down.
        _check(self.num_tasks <= 10_000, self, "num_tasks", "must be at most 10000")
        for name in ("b1", "b2", "dropout", "momentum"):
            _check(0 <= getattr(self, name) < 1, self, name, "must lie in [0, 1)")
        _check(0 < self.decay <= 1, self, "decay", "must lie in (0, 1]")
        for name in ("b", "ewc_lambda"):
            _check(getattr(self, name) >= 0, self, name, "must not be negative")
        _check((self.pretrained or "").isprintable(), self, "pretrained", "must be printable")
        _check(all(size >= 1 for size in self.hidden), self, "hidden", "must be sizes above 0")
        for name, value in vars(self).items():
            infinite = isinstance(value, float) and not math.isfinite(value)
            _check(not infinite, self, name, "must be finite")
        _check(max(self.hidden, default=0) <= _MOST, self, "hidden", f"must be at most {_MOST}")

    def differences(self, other: "Config") -> list[str]:
        """The fields in which two configs differ, as lines for an error.

        >>> Config(b=5.0).differences(Config(b=7.0, epochs=2))
        ['b: 5.0, not 7.0', 'epochs: 1, not 2']
        """
        mine, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        return [f"{k}: {mine[k]}, not {theirs[k]}" for k in mine if mine[k] != theirs[k]]


_COUNTS = (
    *("epochs", "batch_size", "num_tasks", "num_gradients", "log_every", "max_examples"),
    *("steps_per_call", "memory_per_class", "memory_batch_size", "fisher_samples"),
    "directions_per_task",
)
_MOST = 2**31 - 1  # What an array can be long.
CHOICES: dict[str, tuple[str, ...]] = {
    "stream": typing.get_args(StreamName),
    "method": tuple(METHODS),
    "optimizer": typing.get_args(OptimizerName),
    "model": typing.get_args(ModelName),
    "alpha_scope": ("global", "leaf"),
    "fisher": ("examples", "batch"),
    "multitask_order": ("shuffled", "in-turn"),
    "evaluate_on": ("test", "validation"),
    "on_nonfinite": ("stop", "skip"),
}


def _check(holds: bool, config: Config, name: str, rule: str) -> None:
    if not holds:
        flag = "--" + name.replace("_", "-")
        raise UserError(f"{flag} {rule}, and is {getattr(config, name)}.")


def preset(stream: str, optimizer: str, method: str = "naive") -> Config:
    """The paper's settings for a stream, an optimizer and a method, or ours where it has none.

    >>> preset("five-datasets", "tag-rmsprop").b
    7.0
    """
    names: dict[str, Any] = dict(stream=stream, method=method, optimizer=optimizer)
    Config(**names)  # Checks them.
    return Config(**names, **presets.settings(stream, optimizer, method))


def usual(config: Config) -> Config:
    """The preset that a config starts from."""
    return preset(config.stream, config.optimizer, config.method)


def label(config: Config) -> str:
    """What a table or a plot calls it.

    >>> label(preset("split-cifar100", "tag-rmsprop", "er"))
    'er + tag-rmsprop'
    """
    return config.optimizer if config.method == "naive" else f"{config.method} + {config.optimizer}"


def variant(config: Config) -> str:
    """What a config changes in its preset, for the name of a directory; nothing for the preset.

    >>> variant(dataclasses.replace(preset("split-cifar100", "sgd", "er"), memory_per_class=5))
    'memory_per_class=5'
    """
    mine, theirs = dataclasses.asdict(config), dataclasses.asdict(usual(config))
    changed = [f"{name}={_brief(mine[name])}" for name in mine if mine[name] != theirs[name]]
    name = ",".join(changed)
    written = name.encode()  # A file system takes 255 bytes.
    if len(written) <= 200:
        return name
    beginning = written[:180].decode(errors="ignore")
    return f"{beginning},{hashlib.sha256(written).hexdigest()[:16]}"


def _brief(value: Any) -> str:
    text = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return re.sub(r"[^\w.+-]+", "_", text)


def to_json(config: Config) -> dict[str, Any]:
    return dataclasses.asdict(config)


def from_json(fields: dict[str, Any], source: pathlib.Path) -> Config:
    """The config of a file; unknown fields are named.

    >>> from_json({"epoch": 3}, pathlib.Path("a.json"))
    Traceback (most recent call last):
    train.errors.UserError: a.json: unknown field epoch. Did you mean epochs? Valid: ...
    """
    checked = check_fields(fields, source)
    try:
        return Config(**checked)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def check_fields(fields: dict[str, Any], source: object) -> dict[str, Any]:
    """Some fields of a config as read from a file, each known and in its own type.

    >>> check_fields({"b": 3, "hidden": [8, 8]}, "a.toml")
    {'b': 3.0, 'hidden': (8, 8)}
    """
    checked = {}
    for name, value in fields.items():
        hint = field_type(name, source)
        value = tuple(value) if isinstance(value, list) else value
        if not _is(value, hint):
            shown = json.dumps(value, default=str)  # TOML has dates.
            raise UserError(f"{source}: {name} must be {type_name(hint)}, and is {shown}.")
        # Else the same setting would name two directories, b=3 and b=3.0.
        checked[name] = _as_float(value) if hint is float else value
    return checked


def _as_float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:  # Of an int with hundreds of digits.
        return math.inf


def field_type(name: str, source: object) -> Any:
    """The type of a field; an unknown one is refused with the nearest name."""
    hints = typing.get_type_hints(Config)
    if name not in hints:
        raise UserError(f"{source}: unknown field {name}. {nearest(name, hints)}")
    return hints[name]


def type_name(hint: Any) -> str:
    """
    >>> type_name(int), type_name(int | None)
    ('int', 'int | None')
    """
    return getattr(hint, "__name__", str(hint))


def _is(value: Any, hint: Any) -> bool:
    """Whether a value read from JSON is of a field's type.

    >>> _is(3, float), _is(True, int), _is((1, 2), tuple[int, ...]), _is(None, int | None)
    (True, False, True, True)
    """
    if typing.get_origin(hint) is Literal:
        return True  # Config says which are valid, and which is the nearest.
    if typing.get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_is(v, typing.get_args(hint)[0]) for v in value)
    if isinstance(hint, types.UnionType):
        return any(_is(value, each) for each in typing.get_args(hint))
    if hint in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if hint is float else hint)


def read(path: pathlib.Path) -> Config:
    """The config of a `config.json`, a run's or one written by hand."""
    try:
        fields = files.read_json(path)
    except FileNotFoundError:
        raise UserError(f"There is no config file {path}.") from None
    if not isinstance(fields, dict):
        raise UserError(f"{path} must hold one JSON object of settings.")
    fields.pop("seed", None)  # A run's own file names its seed; a config serves any.
    return from_json(fields, path)
