"""Which devices a run uses, and where everything lies on a mesh: the batches, the parameters, the
tasks' moments.

`jit` and `NamedSharding` do the rest: XLA splits the computation as its arrays are split.
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import tag_optax
from train.errors import UserError, nearest
from train.methods import Batch, TrainState

AXES = ("data", "model")
"""What a mesh axis may be called: batches are split over data, parameters over model."""

BankAxis = Literal["none", "data", "model"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """Which devices compute, and what each of them holds. A result depends on it by rounding."""

    mesh: str | None = None
    """Devices in rows: data=4 splits batches over four; data=2,model=2 splits parameters too. auto:
    batches over as many devices as divide them. None: one device."""
    bank_axis: BankAxis = "none"
    """TAG: spread the tasks' moments over this mesh axis; none: they lie as the parameters do. With
    model, that axis splits the tasks and not the parameters."""

    def __post_init__(self) -> None:
        if self.mesh not in (None, "auto"):
            axis_sizes(self.mesh)


def axis_sizes(text: str) -> dict[str, int]:
    """The axes of a mesh, in order, of a text like data=2,model=4."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if not re.fullmatch(r"[1-9]\d*", number):
            raise UserError(f"--mesh {text}: write it as data=4, data=2,model=2, or auto.")
        if name not in AXES:
            raise UserError(f"--mesh {text}: unknown axis {name!r}. {nearest(name, AXES)}")
        if name in sizes:
            raise UserError(f"--mesh {text}: {name} stands there twice.")
        sizes[name] = int(number)
    return sizes


def choose_axes(devices: Devices, batch_size: int, *, available: int) -> dict[str, int] | None:
    """The axes of the mesh for batches of this size, or None for one device.

    `auto` takes as many devices as divide a batch evenly.
    """
    sizes = None
    if devices.mesh is not None:
        fitting = [n for n in range(1, min(batch_size, available) + 1) if batch_size % n == 0]
        sizes = {"data": fitting[-1]} if devices.mesh == "auto" else axis_sizes(devices.mesh)
        wanted, data = math.prod(sizes.values()), sizes.get("data", 1)
        if wanted > available:
            raise UserError(
                f"--mesh {devices.mesh} needs {wanted} devices, and there are {available}."
            )
        if batch_size % data:
            below = batch_size // data * data
            better = f"{below} or {below + data}" if below else f"{data}"
            raise UserError(
                f"--mesh {devices.mesh} cannot split batches of {batch_size} evenly: give "
                f"--batch-size {better}, or a mesh with one of "
                f"{', '.join(f'data={n}' for n in fitting)}."
            )
    axis = devices.bank_axis
    if axis != "none" and axis not in (sizes or {}):
        raise UserError(
            f"--bank-axis {axis} needs a mesh with that axis, as in --mesh {axis}=2, and --mesh is "
            f"{devices.mesh or 'not given'}."
        )
    return sizes


class Layout:
    """What the axes of a mesh of so many devices split; without any: one device, nothing split."""

    def __init__(self, sizes: dict[str, int] | None = None, bank_axis: str = "none"):
        self.bank_axis = None if bank_axis == "none" else bank_axis
        self.mesh: Mesh | None = None
        if sizes is not None:
            devices = jax.devices()[: math.prod(sizes.values())]
            types = (AxisType.Auto,) * len(sizes)
            self.mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), types, devices=devices)

    @property
    def splits_bank(self) -> bool:
        """Whether devices hold different parts of the tasks' moments."""
        return self.bank_axis is not None or self._splits_params

    @property
    def _splits_params(self) -> bool:
        return self._size("model") > 1 and self.bank_axis != "model"

    def _size(self, axis: str) -> int:
        return 1 if self.mesh is None else self.mesh.shape.get(axis, 1)

    def active(self) -> contextlib.AbstractContextManager[Any]:
        """The mesh, for everything that is traced inside."""
        return contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    def rounded_up(self, number: int, axis: str | None) -> int:
        """The next multiple of an axis, whose devices then have equal shares."""
        size = 1 if axis is None else self._size(axis)
        return -(-number // size) * size

    def sharding(self, *spec: str | None) -> Any:
        """Arrays split so along their axes; all of an array on every device where none is named."""
        return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec(*spec))

    def over_data(self) -> NamedSharding | None:
        """Examples split over the data axis, if there is one."""
        return self.sharding("data") if self._size("data") > 1 else None

    def params(self, params: Any) -> Any:
        """The shardings of parameters: whole, or each along its longest axis that can be split
        evenly, the last one where several are as long.

        Vectors stay whole: splitting them saves nothing and costs an all-gather in every layer.
        """
        size = self._size("model")

        def sharding(shape: tuple[int, ...]) -> NamedSharding | None:
            spec: list[str | None] = [None] * len(shape)
            fitting = [i for i, length in enumerate(shape) if length % size == 0]
            if self._splits_params and len(shape) > 1 and fitting:
                spec[max(fitting, key=lambda i: (shape[i], i))] = "model"
            return self.sharding(*spec)

        return jax.tree.map(lambda p: sharding(p.shape), params)

    def state(self, state: TrainState) -> TrainState | None:
        """The shardings of a train state of one seed."""
        if self.mesh is None:
            return None
        params = self.params(state.params)
        whole = jax.tree.map(lambda _: self.sharding(), state)
        return whole._replace(
            params=params,
            average=params if jax.tree.leaves(state.average) else (),
            opt_state=tag_optax.state_sharding(
                state.opt_state, state.params, params, mesh=self.mesh, task_axis=self.bank_axis
            ),
        )

    def batch(self, make: Callable[[slice], Batch], size: int, axis: int) -> Batch:
        """A batch of `size` examples along an axis, split over the mesh's data axis if that fits.

        `make` gives the examples of a slice of it: each process makes what its own devices need.
        """
        if self.mesh is None:
            return make(slice(None))
        split = "data" if "data" in self.mesh.shape and size % self._size("data") == 0 else None
        indices = self.sharding(split).addressable_devices_indices_map((size,)).values()
        bounds = {index[0].indices(size)[:2] for index in indices if index is not None}
        made = {each: make(slice(*each)) for each in bounds}
        sharding = self.sharding(*[None] * axis, split)

        def put(*parts: np.ndarray) -> jax.Array:
            by_bounds = dict(zip(made, parts, strict=True))
            shape = (*parts[0].shape[:axis], size, *parts[0].shape[axis + 1 :])

            def piece(index: Any) -> np.ndarray:
                return by_bounds[index[axis].indices(size)[:2]]

            return jax.make_array_from_callback(shape, sharding, piece)

        return jax.tree.map(put, *made.values())

    def __str__(self) -> str:
        if self.mesh is None:
            return "one device"
        axes = ",".join(f"{name}={size}" for name, size in self.mesh.shape.items())
        return f"mesh {axes}" + (f", tasks over {self.bank_axis}" if self.bank_axis else "")
