"""Reading pickles of arrays without running what is in them."""

import pathlib
import pickle
from typing import Any

from train.errors import UserError

# An array in a pickle is one of these applied to bytes, under the module names of numpy 1 and 2.
_NUMPY = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
    *((f"numpy.{core}.multiarray", "scalar") for core in ("core", "_core")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
}
_CONTAINERS = {("builtins", name) for name in ("dict", "frozenset", "list", "set")}


def _encode(text: str, encoding: str) -> bytes:
    """Stands in for `_codecs.encode`, by which older pickles write bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it encodes text as {encoding}")
    return text.encode("latin1")


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return _encode
        if (module, name) in _NUMPY | _CONTAINERS:
            # numpy 2 warns when it is called by the names of numpy 1.
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, and only arrays are allowed")


def load_arrays(path: pathlib.Path) -> Any:
    """What the pickle holds, if that is numpy arrays and plain containers and nothing else."""
    try:
        with path.open("rb") as file:
            return _ArrayUnpickler(file, encoding="latin1").load()
    except Exception as error:
        # What a damaged pickle raises is anybody's guess, a lack of memory included.
        why = str(error) or type(error).__name__
        raise UserError(f"{path} is refused: {why}.") from error
