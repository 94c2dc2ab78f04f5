"""Files: what anybody may have written is read or refused in one sentence, and what is written
survives a crash, a full disk or a power cut as the old file or as the new one."""

import errno
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from train.errors import UserError


def read_json(path: pathlib.Path) -> Any:
    """What a JSON file holds; raises FileNotFoundError where there is none."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = {}
        for name, value in pairs:
            if name in found:
                raise ValueError(f"{name} stands there twice")
            found[name] = value
        return found

    return read(path, lambda text: json.loads(text, object_pairs_hook=unique), "JSON")


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


def write_json(path: pathlib.Path, content: Any) -> None:
    """Writes a JSON file whole or not at all."""
    write_whole(path, json.dumps(content, indent=1) + "\n")


def write_whole(path: pathlib.Path, text: str) -> None:
    """Writes a file whole or not at all: the old one stays until the new one is on the disk."""
    unfinished = path.with_suffix(".partial")
    with saying_why(path):
        try:
            with unfinished.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        # A rename is on the disk only when its directory is.
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Appended:
    """A file that grows by whole lines: one that does not fit is taken back."""

    def __init__(self, path: pathlib.Path, size: int):
        """Goes on after the first `size` bytes; what was written after them is cut off."""
        self._path = path
        self.size = size
        with saying_why(path):
            self._file = path.open("ab", buffering=0)
            self._file.truncate(size)

    def write(self, line: bytes) -> None:
        with saying_why(self._path):
            try:
                if self._file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                self._file.truncate(self.size)
                raise
        self.size += len(line)

    def sync(self) -> None:
        """Returns when all that was written is on the disk."""
        with saying_why(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


@contextmanager
def saying_why(path: pathlib.Path) -> Iterator[None]:
    """What the system refuses in one sentence; the run can go on where there is room and leave."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"Cannot write {path}: {error.strerror or error}. Nothing written before is lost: mend "
            "that, and the same command goes on; or choose another --out."
        ) from error
