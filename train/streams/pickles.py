"""Reading pickles of arrays without running what is in them.

Nothing that a pickle names is imported. Numpy's own functions are replaced by the ones below, since
a forged state of its dtypes makes numpy take the bytes of a file for addresses.
"""

import pathlib
import pickle
from typing import Any

import numpy as np

from train.errors import UserError


class _Dtype:
    """A dtype as a pickle describes it: its code, and in its state the order of its bytes."""

    def __init__(self, code: str, align: bool = False, copy: bool = False):
        self.plain = np.dtype(code)
        if self.plain.kind not in "biufcSU":
            raise pickle.UnpicklingError(f"it holds {code}, and only numbers and text are allowed")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", ">"):
            self.plain = self.plain.newbyteorder(state[1])


class _Array(np.ndarray):
    """An array that takes its state with a dtype that was checked."""

    def __setstate__(self, state: tuple[Any, ...], /) -> None:
        version, shape, dtype, fortran, raw = state
        super().__setstate__((version, shape, dtype.plain, fortran, raw))  # type: ignore[call-arg]


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    return _Array((0,), np.uint8)  # Always an empty one, which then takes its state.


def _scalar(dtype: _Dtype, raw: bytes) -> Any:
    return np.frombuffer(raw, dtype.plain)[0]


def _from_buffer(raw: bytes, dtype: _Dtype, shape: Any, order: Any) -> np.ndarray:
    return np.frombuffer(raw, dtype.plain).reshape(shape, order=order)


def _encode(text: str, encoding: str) -> bytes:
    """Stands in for `_codecs.encode`, by which older pickles write bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it encodes text as {encoding}")
    return text.encode("latin1")


# An array in a pickle is one of these applied to bytes, under the module names of numpy 1 and 2.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): _encode,
    ("numpy", "ndarray"): None,  # Only ever handed to `_reconstruct`.
    ("numpy", "dtype"): _Dtype,
    **{("builtins", kind.__name__): kind for kind in (dict, frozenset, list, set)},
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, and only arrays are allowed"
            )
        return _ALLOWED[module, name]


def load_arrays(path: pathlib.Path) -> Any:
    """What the pickle holds, if that is numpy arrays and plain containers and nothing else."""
    try:
        with path.open("rb") as file:
            return _ArrayUnpickler(file, encoding="latin1").load()
    except Exception as error:
        # What a damaged pickle raises is anybody's guess, a lack of memory included.
        why = str(error) or type(error).__name__
        raise UserError(f"{path} is refused: {why}.") from error
