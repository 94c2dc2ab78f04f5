"""Reading files that anybody may have written: what cannot be read ends in one sentence."""

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

from train.errors import UserError


def read_json(path: pathlib.Path) -> Any:
    """What a JSON file holds; raises FileNotFoundError where there is none.

    >>> import tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.json"
    >>> path.write_text('{"b": 1, "b": 2}')
    16
    >>> read_json(path)
    Traceback (most recent call last):
    train.errors.UserError: ...a.json cannot be read (it is no readable JSON file: b stands
    there twice).
    """
    return read(path, lambda text: json.loads(text, object_pairs_hook=_unique), "JSON")


def read(path: pathlib.Path, parse: Callable[[str], Any], kind: str) -> Any:
    """What `parse` makes of a text file; raises FileNotFoundError where there is none."""
    try:
        if path.is_char_device():  # Such as /dev/zero, which has no end.
            raise UserError(f"{path} cannot be read (it is a device).")
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    # Not UTF-8, not of this kind, or a number with thousands of digits; or brackets in brackets.
    except (ValueError, RecursionError) as error:
        why = f"it is no readable {kind} file: {error}"
        raise UserError(f"{path} cannot be read ({why}).") from error


def at_home(path: str | os.PathLike[str]) -> pathlib.Path:
    """The path, with ~ replaced by the user's home."""
    try:
        return pathlib.Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{path}: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice} stands there twice")
    return found
