"""Weights by their names: any model's, and ResNet18's from torchvision's state dict."""

import functools
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from train.errors import UserError

# Our name of a part of a path: torchvision's.
_NAMES = {
    **dict(stem="conv1", stem_bn="bn1", shortcut="downsample.0", shortcut_bn="downsample.1"),
    **dict(output="fc", kernel="weight", scale="weight", mean="running_mean", var="running_var"),
    **{f"stage{s}_block{b}": f"layer{s}.{b - 1}" for s in (1, 2, 3, 4) for b in (1, 2)},
}

# By rank: convolutions OIHW to HWIO, dense layers [out, in] to [in, out].
_FROM_TORCH = {1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}


def named_weights(params: Any, stats: Any) -> dict[str, np.ndarray]:
    """The arrays of a model under dotted names, as a file of safetensors has them."""
    leaves = jax.tree_util.tree_leaves_with_path({"params": params, "stats": stats})
    name_of = functools.partial(jax.tree_util.keystr, simple=True, separator=".")
    return {name_of(path): np.asarray(leaf) for path, leaf in leaves}


def import_weights(
    path: str | Path, params: dict[str, Any], stats: dict[str, Any], *, skip_output: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and batch statistics of the same structure, with the values in the file.

    The file is a ResNet18 state dict: `.safetensors`, `.npz`, or, where torch is installed, `.pth`
    or `.pt`. The output layer answers for other classes than ImageNet's, so it is not read and
    keeps the values it has, unless `skip_output` is False. All else must match, tensor by tensor.
    """
    state_dict = read_state_dict(path)
    flat: dict[Any, Any] = traverse_util.flatten_dict({"params": params, "stats": stats})
    names = {key: torch_name(key[1:]) for key in flat}
    if skip_output:
        names = {key: name for key, name in names.items() if not name.startswith("fc.")}
        state_dict = {name: x for name, x in state_dict.items() if not name.startswith("fc.")}
    shapes = {
        name: tuple(flat[key].shape[axis] for axis in np.argsort(_FROM_TORCH[flat[key].ndim]))
        for key, name in names.items()
    }
    faults = [f"{name} is missing" for name in shapes if name not in state_dict]
    faults += [f"{name} is not in the model" for name in state_dict if name not in shapes]
    faults += [
        f"{name} has shape {state_dict[name].shape}, the model {shape}"
        for name, shape in shapes.items()
        if name in state_dict and state_dict[name].shape != shape
    ]
    if faults:
        raise UserError(f"{path} does not fit the model: {'; '.join(faults)}.")

    for key, name in names.items():
        array = state_dict[name]
        flat[key] = jnp.asarray(array.transpose(_FROM_TORCH[array.ndim]), jnp.float32)
    filled = traverse_util.unflatten_dict(flat)
    return filled["params"], filled["stats"]


def torch_name(path: tuple[str, ...]) -> str:
    """Torchvision's name of a parameter or batch statistic."""
    return ".".join(_NAMES.get(part, part) for part in path if part != "blocks")


def read_state_dict(path: str | Path) -> dict[str, np.ndarray]:
    """The named arrays in a file, in the format that its suffix says; no code in it is run."""
    path = Path(path)
    readers = {".safetensors": _read_safetensors, ".npz": _read_npz}
    readers |= {".pth": _read_torch, ".pt": _read_torch}
    if path.suffix not in readers:
        raise UserError(f"Weights come from {', '.join(readers)} files; {path} is none of them.")
    if not path.is_file():
        raise UserError(f"There is no file {path}.")
    state_dict = readers[path.suffix](path)
    # Torch counts batches for a momentum that ResNets do not use.
    return {k: v for k, v in state_dict.items() if not k.endswith("num_batches_tracked")}


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        import safetensors
        from safetensors.numpy import load_file
    except ModuleNotFoundError as error:
        raise UserError(f"Reading {path} needs: pip install safetensors.") from error
    try:
        return load_file(path)
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is not a safetensors file: {error}.") from error


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        # Opened here, since numpy does not close a file that it cannot read.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it holds a single array")
            return dict(archive)
    except Exception as error:  # What a damaged archive raises is anybody's guess.
        raise UserError(f"{path} is not an .npz file of plain arrays: {error}.") from error


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise UserError(
            f"Reading {path} needs torch: install it, or convert the file where torch is: "
            "safetensors.torch.save_file(torch.load(path, weights_only=True), 'new.safetensors')."
        ) from error
    try:
        state_dict = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise UserError(f"{path} is not a file of torch weights: {error}") from error
    if not isinstance(state_dict, Mapping) or not all(map(torch.is_tensor, state_dict.values())):
        raise UserError(f"{path} holds something else than a state dict of named tensors.")
    return {name: x.float().numpy() for name, x in state_dict.items()}
