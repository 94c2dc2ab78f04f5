"""What decides a run: a stream, a method, an optimizer and a model, each with its settings, and the
settings of the run itself. As text all settings stand side by side, so their names differ."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from train import files, settings
from train.errors import UserError, nearest
from train.methods import METHODS, Method
from train.methods.problem import LOSSES, SCORES, USUAL, usual_names
from train.models import MODELS
from train.optimizers import OPTIMIZERS
from train.settings import Part
from train.streams import STREAMS


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What belongs to the run, whatever it learns and how."""

    epochs: int = 1
    """Passes over each task's data."""
    batch_size: int = 10
    """Examples in a step."""
    clip: float | None = None
    """Scale a gradient down to this norm where it is longer."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate falls to 0, if it does."""
    warmup: float = 0.0
    """Share of the steps in which the rate rises from 0 to what it is."""
    schedule_over: Literal["stream", "task"] = "stream"
    """Schedule and warm-up go once over the stream, or start anew with every task."""
    average: float = 0.0
    """Evaluate with an exponential average of the parameters that decays by this at every step."""
    compute_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """What the network computes in; its parameters are float32."""
    capacity: int | None = None
    """How many tasks the optimizer has room for; None: as many as the stream has."""
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
        settings.check_numbers(self)
        settings.check_counts(
            self,
            *("epochs", "batch_size", "capacity", "max_examples", "log_every", "steps_per_call"),
        )
        for name in ("warmup", "average"):
            value = getattr(self, name)
            settings.check(0 <= value < 1, name, "must lie in [0, 1)", value)
        settings.check(self.clip is None or self.clip > 0, "clip", "must be above 0", self.clip)
        if self.schedule_over == "task" and self.schedule == "constant" and not self.warmup:
            raise UserError("--schedule-over task needs a --schedule or a --warmup.")


KINDS: dict[str, tuple[Mapping[str, Any], str]] = {
    "stream": (STREAMS, "a train.Stream, or a function that returns one"),
    "method": (METHODS, "a train.Method, or a class of one"),
    "optimizer": (
        OPTIMIZERS,
        "a function that takes how many tasks there are and returns an optax transformation",
    ),
    "model": (
        MODELS,
        "a train.Model, or a function that takes rngs and returns an NNX module (see train.fit)",
    ),
    "loss": (LOSSES, "a function (outputs, targets) that returns one loss for each example"),
    "score": (SCORES, "a function (outputs, targets) that returns one score for each example"),
}
"""What has a name: the built-in ones, and what one from outside must be."""
NAIVE = Part("naive", METHODS["naive"])
AUTO = Part("auto", None)
"""A loss or a score that follows from what the targets are."""
_ORDER = ("optimizer", "method", "run", "model", "stream", "loss", "score")
"""Of settings, in a file and in a directory's name."""


def find(kind: str, name: str) -> Part:
    """What has a name: a built-in stream, method, ..., or `package.module:attribute`."""
    known, must_be = KINDS[kind]
    if name in known:
        return Part(name, known[name])
    if ":" not in name:
        choices = nearest(name, known).removesuffix(".")
        raise UserError(f"Unknown {kind} {name!r}. {choices}, and package.module:attribute.")
    option = f"{settings.flag(kind)} {name}"
    value = settings.with_settings(settings.imported(option, name), option, must_be)
    if not fits(kind, value):
        raise UserError(f"{option} must be {must_be}.")
    return Part(name, value)


def fits(kind: str, value: Any) -> bool:
    """Whether a value can be of a kind. A stream, model or optimizer is judged when it is made."""
    if kind == "method":
        return isinstance(value, Method)
    return kind not in ("loss", "score") or callable(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    stream: Part
    optimizer: Part
    model: Part
    method: Part = NAIVE
    loss: Part = AUTO
    score: Part = AUTO
    run: RunSettings = RunSettings()

    def __post_init__(self) -> None:
        owners: dict[str, str] = dict.fromkeys(KINDS, "what has a name")
        for owner, part in self.parts().items():
            for name in settings.hints(part):
                if name in owners:
                    raise UserError(
                        f"The setting {name} of the {owner} has the name of a setting of "
                        f"{owners[name]}: rename one."
                    )
                owners[name] = f"the {owner}"

    def parts(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in _ORDER}
        return {name: part.value if name in KINDS else part for name, part in found.items()}

    def names(self) -> dict[str, str]:
        return {kind: getattr(self, kind).name for kind in KINDS}

    def flat(self) -> dict[str, Any]:
        """The names of all parts and all settings, side by side."""
        found: dict[str, Any] = self.names()
        for part in self.parts().values():
            found |= settings.values(part)
        return found

    @property
    def record(self) -> "Record":
        """What is written down of it."""
        return Record(self.flat())

    def __getitem__(self, name: str) -> Any:
        return self.flat()[name]

    def changed(self, changes: Mapping[str, Any], source: object = "") -> "Config":
        """With other settings, each given to the part that has it."""
        parts = self.parts()
        mine: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            mine.setdefault(self.owner(name, source), {})[name] = value
        try:
            new = {owner: dataclasses.replace(parts[owner], **mine[owner]) for owner in mine}
        except UserError as error:
            raise UserError(f"{source}: {error}" if source else str(error)) from None
        named = {kind: Part(getattr(self, kind).name, new[kind]) for kind in new if kind in KINDS}
        return dataclasses.replace(self, **(new | named))

    def resolved(self, target_dtype: Any) -> "Config":
        """With the loss and the score that `auto` stands for."""
        loss, score = usual_names(target_dtype)
        return dataclasses.replace(
            self,
            loss=find("loss", loss) if self.loss == AUTO else self.loss,
            score=find("score", score) if self.score == AUTO else self.score,
        )

    def owner(self, name: str, source: object = "") -> str:
        """Which part has a setting."""
        for owner, part in self.parts().items():
            if name in settings.hints(part):
                return owner
        known = [each for part in self.parts().values() for each in settings.hints(part)]
        start = f"{source}: " if source else ""
        those = ", ".join(self.names()[k] for k in ("stream", "method", "optimizer", "model"))
        raise UserError(f"{start}{name} is no setting of {those}. {nearest(name, known)}")

    def hint(self, name: str, source: object = "") -> Any:
        """The type of a setting."""
        return settings.hints(self.parts()[self.owner(name, source)])[name]

    def with_fields(self, fields: Mapping[str, Any], source: object) -> "Config":
        """With the settings of a file, each checked to be of its type."""
        typed = {
            name: settings.typed(name, value, self.hint(name, source), source)
            for name, value in fields.items()
        }
        return self.changed(typed, source)


class Record(Mapping[str, Any]):
    """The settings of a run as its config.json has them. Nothing is imported to read it."""

    def __init__(self, fields: Mapping[str, Any]):
        self._fields = {name: _frozen(value) for name, value in fields.items()}
        hash(self)  # Else it could not be compared.

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __hash__(self) -> int:
        return hash(frozenset(self._fields.items()))

    def __repr__(self) -> str:
        return f"Record({self._fields})"

    @property
    def label(self) -> str:
        """What a table or a plot calls it."""
        method, optimizer = self["method"], self["optimizer"]
        return optimizer if method == "naive" else f"{method} + {optimizer}"

    def differences(self, other: "Record") -> list[str]:
        """Where the two differ, as lines for an error."""
        nothing = "not there"
        return [
            f"{name}: {self.get(name, nothing)}, not {other.get(name, nothing)}"
            for name in dict.fromkeys([*self, *other])
            if not _alike(name, self.get(name, nothing), other.get(name, nothing))
        ]


def _frozen(value: Any) -> Any:
    """A value as JSON has it, its lists as the tuples that settings are."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _alike(name: str, one: Any, other: Any) -> bool:
    """A loss or a score that is named alike, or one that `auto` may stand for."""
    usual = {"auto", *USUAL.get(name, ())}
    return one == other or ("auto" in (one, other) and {one, other} <= usual)


def read_record(fields: Any, source: object) -> Record:
    """What a config.json holds, checked; settings that a built-in part did not have yet when it was
    written have their defaults."""
    if not isinstance(fields, dict):
        raise UserError(f"{source} must hold one JSON object of settings.")
    fields = dict(fields)
    parts: dict[str, Any] = {"run": RunSettings()}
    found: dict[str, Any] = {}
    for kind, (known, _) in KINDS.items():
        default = {"method": "naive", "loss": "auto", "score": "auto"}.get(kind)
        name = fields.pop(kind, default)
        if not isinstance(name, str) or not name.isprintable():
            raise UserError(f"{source} names no {kind}.")
        parts[kind] = known.get(name)
        found[kind] = name
    for owner in _ORDER:
        part = parts[owner]
        try:
            mine = {
                name: settings.typed(name, fields.pop(name), hint, source)
                for name, hint in settings.hints(part).items()
                if name in fields
            }
            found |= settings.values(dataclasses.replace(part, **mine) if mine else part)
        except UserError as error:
            text = str(error)
            raise UserError(text if text.startswith(str(source)) else f"{source}: {text}") from None
    # What is left belongs to parts from outside, or to none.
    if fields and all(found[kind] in known for kind, (known, _) in KINDS.items()):
        name = next(iter(fields))
        raise UserError(f"{source}: unknown field {name}. {nearest(name, found)}")
    for name, value in fields.items():
        simple = value if isinstance(value, list) else [value]
        if not all(each is None or isinstance(each, bool | int | float | str) for each in simple):
            raise UserError(f"{source}: {name} must be a number, a text, or a list of these.")
    return Record(found | fields)


def read_fields(path: pathlib.Path) -> dict[str, Any]:
    """The fields of a `config.json`, a run's or one written by hand, which may name only some."""
    try:
        fields = files.read_json(path)
    except FileNotFoundError:
        raise UserError(f"There is no config file {path}.") from None
    if not isinstance(fields, dict):
        raise UserError(f"{path} must hold one JSON object of settings.")
    return fields
