"""Writing files so that a crash, a full disk or a power cut leaves the old one or the new one."""

import errno
import os
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager

from train.errors import UserError


def write_whole(path: pathlib.Path, text: str) -> None:
    """Writes a file whole or not at all; what stood there stays until the new one is on the disk.

    >>> import tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.json"
    >>> write_whole(path, "1")
    >>> [each.name for each in path.parent.iterdir()]
    ['a.json']
    """
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
        _sync_directory(path.parent)


class Appended:
    """A file that grows by whole lines: one that does not fit is taken back."""

    def __init__(self, path: pathlib.Path):
        self._path = path
        with saying_why(path):
            self._file = path.open("ab", buffering=0)
            self._size = self._file.seek(0, os.SEEK_END)

    def write(self, line: str) -> None:
        encoded = line.encode()
        with saying_why(self._path):
            try:
                if self._file.write(encoded) != len(encoded):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                self._file.truncate(self._size)
                raise
        self._size += len(encoded)

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


def _sync_directory(path: pathlib.Path) -> None:
    """A rename is on the disk only when its directory is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
