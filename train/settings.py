"""Settings: the fields of whatever has a name, read from text and files, checked and written.

A named stream, model, optimizer or method is a frozen dataclass, and its fields are its settings.
Built-in ones stand in a registry (`run.config`); any other is `package.module:attribute`.
"""

import dataclasses
import functools
import importlib
import inspect
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from train.errors import UserError, nearest

_UNIONS = (types.UnionType, typing.Union)


class Part(NamedTuple):
    """One of the things that a run is made of."""

    name: str
    value: Any
    """A frozen dataclass with settings, or something else that has none."""


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def check(holds: bool, name: str, rule: str, value: Any) -> None:
    if not holds:
        raise UserError(f"{flag(name)} {rule}, and is {value}.")


MOST = 2**31 - 1  # What an array can be long.


def check_counts(part: Any, *names: str) -> None:
    """Settings that count something, or are None."""
    for name in names:
        value = getattr(part, name)
        check(value is None or value >= 1, name, "must be at least 1", value)
        check(value is None or value <= MOST, name, f"must be at most {MOST}", value)


def check_numbers(part: Any) -> None:
    """Every number is finite, and every choice one of those that there are."""
    for name, hint in hints(part).items():
        value = getattr(part, name)
        finite = not isinstance(value, float) or math.isfinite(value)
        check(finite, name, "must be finite", value)
        valid = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
        if valid and value not in valid:
            choices = nearest(str(value), map(str, valid))
            raise UserError(f"Unknown {name} {value!r}. {choices}")


def values(part: Any) -> dict[str, Any]:
    """The settings of a part, by their names; none where it is no dataclass."""
    return {name: getattr(part, name) for name in hints(part)}


def hints(part: Any) -> dict[str, Any]:
    """The settings of a part, and their types: none of a dataclass with a field that cannot be
    written on a command line, such as a stream or a network."""
    return _hints(part if isinstance(part, type) else type(part))


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    if not dataclasses.is_dataclass(kind):
        return {}
    try:
        found = typing.get_type_hints(kind)
    except NameError:  # Of what is imported for a type checker alone.
        return {}
    named = {field.name: found[field.name] for field in dataclasses.fields(kind) if field.init}
    return named if all(map(_is_simple, named.values())) else {}


def imported(option: str, name: str) -> Any:
    """What `package.module:attribute` names."""
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
    except ValueError as error:  # An empty name, or one with empty parts.
        raise UserError(f"{option}: write it as package.module:attribute.") from error
    except ImportError as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module}.".startswith(f"{missing}."):
            raise UserError(f"{option}: importing {module} fails: {error}.") from error
        raise UserError(
            f"{option}: there is no module {missing}. Modules are found from the directory in "
            "which the command is given, and where PYTHONPATH points."
        ) from error
    try:
        return functools.reduce(getattr, attribute.split("."), found)
    except AttributeError as error:
        missing = attribute or "(empty)"
        raise UserError(f"{option}: {module} has no attribute {missing}.") from error


def name_of(given: Any) -> str | None:
    """`package.module:attribute` of what can be imported again in another process, else None."""
    module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    return f"{module}:{name}"


def with_settings(given: Any, option: str, must_be: str) -> Any:
    """A user's dataclass with its defaults, or a function whose defaults become settings."""
    if isinstance(given, type) and dataclasses.is_dataclass(given):
        try:
            given = given()
        except TypeError as error:
            raise UserError(
                f"{option} must be {must_be}; its settings need defaults ({error})."
            ) from error
    if not callable(given) or dataclasses.is_dataclass(given):
        return given
    # A metaclass, as of NNX modules, may hide what the class itself takes.
    taken = given.__init__ if isinstance(given, type) else given
    try:
        signature = inspect.signature(taken)
        annotated = typing.get_type_hints(taken)
    except (NameError, TypeError, ValueError):
        return given
    fields: list[Any] = []
    for name, parameter in signature.parameters.items():
        if parameter.default is not parameter.empty:
            hint = annotated.get(name, type(parameter.default))
            if _is_simple(hint) and _is(parameter.default, hint):
                fields.append((name, hint, dataclasses.field(default=parameter.default)))
    if not fields:
        return given

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return given(*args, **kwargs, **values(self))

    settings = {"self", *(name for name, _, _ in fields)}
    rest = [each for name, each in signature.parameters.items() if name not in settings]
    name = getattr(given, "__name__", "Settings")
    space = {"__call__": call, "__signature__": signature.replace(parameters=rest)}
    made = dataclasses.make_dataclass(name, fields, frozen=True, kw_only=True, namespace=space)
    made.__doc__ = given.__doc__
    return made()


def _is_simple(hint: Any) -> bool:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        rest = [each for each in inside if each is not type(None)]
        return len(rest) == 1 and _is_simple(rest[0])
    if origin is tuple:
        return all(_is_simple(each) for each in inside if each is not ...)
    return origin is Literal or hint in (bool, int, float, str)


def typed(name: str, value: Any, hint: Any, source: object) -> Any:
    """The value of a setting that is written in JSON or TOML, as its type has it."""
    value = tuple(value) if isinstance(value, list) else value
    if not _is(value, hint):
        shown = json.dumps(value, default=str)  # TOML has dates.
        raise UserError(f"{source}: {name} must be {type_name(hint)}, and is {shown}.")
    if isinstance(value, int) and float in (hint, *typing.get_args(hint)):
        try:  # Else the same setting would name two directories, b=3 and b=3.0.
            return float(value)
        except OverflowError:  # Of an int with hundreds of digits.
            return math.inf
    return value


def _is(value: Any, hint: Any) -> bool:
    """Whether a value read from JSON is of a setting's type."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return isinstance(value, str | int)  # `check_numbers` says which are valid.
    if origin is tuple:
        return isinstance(value, tuple) and all(_is(each, inside[0]) for each in value)
    if origin in _UNIONS:
        return any(_is(value, each) for each in inside)
    if hint in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if hint is float else hint)


def type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def parse(name: str, text: str, hint: Any, option: str) -> Any:
    """The value of a setting that is written on a command line."""
    text = text.strip()
    try:
        return _convert(text, hint)
    except (ValueError, KeyError):
        raise UserError(f"{option}: {name} must be {type_name(hint)}, and is {text!r}.") from None


def _convert(text: str, hint: Any) -> Any:
    """Raises ValueError or KeyError where the text is of another type."""
    if not text:
        raise ValueError
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:  # Of a type and None.
        return None if text.lower() == "none" else _convert(text, inside[0])
    if origin is Literal:
        return text
    if origin is tuple:
        return tuple(_convert(part, inside[0]) for part in text.split("x"))
    return {"true": True, "false": False}[text.lower()] if hint is bool else hint(text)


def assignments(texts: Sequence[str], option: str) -> dict[str, str]:
    """The name and the text behind it, of each `NAME=VALUE`."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not name or not equals or not value.strip():
            raise UserError(f"{option} {text}: write it as FIELD=VALUE, as in learning_rate=0.1.")
        if name in found:
            raise UserError(f"{option}: {name} is given more than once.")
        found[name] = value
    return found


def brief(value: Any) -> str:
    """A value as it is written on a command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def describe(fields: Mapping[str, Any], names: Iterable[str]) -> str:
    """Some settings in few words."""
    return " ".join(f"{name}={brief(fields[name])}" for name in names)
