"""Settings as text on a command line: `FIELD=VALUE`, `FIELD=V1,V2,...`."""

import types
import typing
from collections.abc import Sequence
from typing import Any, Literal

from train.errors import UserError
from train.run import config as configs


def assignments(texts: Sequence[str], option: str) -> dict[str, Any]:
    """The value of each field named.

    >>> assignments(["epochs=2", "hidden=8x8", "max-examples=none"], "--set")
    {'epochs': 2, 'hidden': (8, 8), 'max_examples': None}
    """
    found = {}
    for name, value in _pairs(texts, option):
        found[name] = _parse(name, value, option)
    return found


def axes(texts: Sequence[str], option: str) -> dict[str, tuple[Any, ...]]:
    """The values of each field named.

    >>> axes(["learning_rate=0.1,1e-3", "b=1,3"], "--vary")
    {'learning_rate': (0.1, 0.001), 'b': (1.0, 3.0)}
    """
    found = {}
    for name, listed in _pairs(texts, option):
        values = tuple(_parse(name, text, option) for text in listed.split(","))
        twice = [value for value in values if values.count(value) > 1]
        if twice:
            raise UserError(f"{option}: {name} has {twice[0]} more than once.")
        found[name] = values
    return found


def _pairs(texts: Sequence[str], option: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not name or not equals or not value.strip():
            raise UserError(f"{option} {text}: write it as FIELD=VALUE, as in learning_rate=0.1.")
        if name in dict(pairs):
            raise UserError(f"{option}: {name} is given more than once.")
        pairs.append((name, value))
    return pairs


def _parse(name: str, text: str, option: str) -> Any:
    hint = configs.field_type(name, option)
    try:
        return _convert(text.strip(), hint)
    except (ValueError, KeyError):
        raise UserError(
            f"{option}: {name} must be {configs.type_name(hint)}, and is {text.strip()!r}."
        ) from None


def _convert(text: str, hint: Any) -> Any:
    """Raises ValueError or KeyError where the text is of another type."""
    if not text:
        raise ValueError
    if isinstance(hint, types.UnionType):  # Of a type and None.
        return None if text.lower() == "none" else _convert(text, typing.get_args(hint)[0])
    if typing.get_origin(hint) is Literal:
        return text  # The config says which are valid, and which is the nearest.
    if typing.get_origin(hint) is tuple:
        return tuple(_convert(part, typing.get_args(hint)[0]) for part in text.split("x"))
    if hint is bool:
        return {"true": True, "false": False}[text.lower()]
    return hint(text)
