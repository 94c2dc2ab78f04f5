"""Which devices a run uses: what a user may ask for, checked before any work."""

import dataclasses
import math
import re
from typing import Literal

from train.errors import UserError, nearest
from train.run.config import Config

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
    coordinator: str | None = None
    """HOST:PORT of process 0, for a run over several hosts: start the same command on each. auto:
    as jax.distributed finds it on a cluster."""
    num_processes: int | None = None
    """How many processes the run goes over."""
    process_id: int | None = None
    """Which of them this is, from 0."""

    def __post_init__(self) -> None:
        if self.mesh not in (None, "auto"):
            axis_sizes(self.mesh)
        given = (self.num_processes is not None, self.process_id is not None)
        if self.coordinator in (None, "auto"):
            if any(given):
                raise UserError(
                    "--num-processes and --process-id need --coordinator HOST:PORT, where process "
                    "0 runs and a port is free."
                )
            return
        if not re.fullmatch(r"\S+:\d{1,5}", self.coordinator):
            raise UserError(
                f"--coordinator must be HOST:PORT or auto, and is {self.coordinator!r}."
            )
        if not all(given):
            raise UserError(
                "--coordinator HOST:PORT needs --num-processes N and --process-id I, a different "
                "I from 0 to N - 1 for each process."
            )
        assert self.num_processes is not None
        assert self.process_id is not None
        if not 0 <= self.process_id < self.num_processes:
            raise UserError(
                f"--process-id must lie between 0 and {self.num_processes - 1}, and is "
                f"{self.process_id}."
            )


def axis_sizes(text: str) -> dict[str, int]:
    """The axes of a mesh, in order.

    >>> axis_sizes("data=2,model=4")
    {'data': 2, 'model': 4}
    """
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


def choose_axes(devices: Devices, config: Config, *, available: int) -> dict[str, int] | None:
    """The axes of the mesh for a config, or None for one device.

    `auto` takes as many devices as divide a batch evenly.

    >>> from train.run.config import preset
    >>> cifar = preset("split-cifar100", "tag-rmsprop")  # In batches of 10.
    >>> choose_axes(Devices(mesh="auto"), cifar, available=8)
    {'data': 5}
    >>> choose_axes(Devices(mesh="data=4"), cifar, available=8)
    Traceback (most recent call last):
    train.errors.UserError: --mesh data=4 cannot split batches of 10 evenly: give --batch-size 8 ...
    """
    if devices.mesh is None:
        _check_bank(devices, config, {})
        return None
    if devices.mesh == "auto":
        sizes = {"data": max(_divisors(config.batch_size, available))}
    else:
        sizes = axis_sizes(devices.mesh)
    wanted = math.prod(sizes.values())
    if wanted > available:
        raise UserError(f"--mesh {devices.mesh} needs {wanted} devices, and there are {available}.")
    _check_batch(devices.mesh, sizes.get("data", 1), config.batch_size, available)
    _check_bank(devices, config, sizes)
    return sizes


def _divisors(number: int, most: int) -> list[int]:
    return [n for n in range(1, min(number, most) + 1) if number % n == 0]


def _check_batch(mesh: str, data: int, batch_size: int, available: int) -> None:
    if batch_size % data == 0:
        return
    below, above = batch_size // data * data, (batch_size // data + 1) * data
    sizes = f"{below} or {above}" if below else str(above)
    fitting = ", ".join(f"data={n}" for n in _divisors(batch_size, available))
    raise UserError(
        f"--mesh {mesh} cannot split batches of {batch_size} evenly: give --batch-size {sizes}, or "
        f"a mesh with one of {fitting}."
    )


def _check_bank(devices: Devices, config: Config, sizes: dict[str, int]) -> None:
    axis = devices.bank_axis
    if axis == "none":
        return
    if axis not in sizes:
        raise UserError(
            f"--bank-axis {axis} needs a mesh with that axis, as in --mesh {axis}=2, and --mesh is "
            f"{devices.mesh or 'not given'}."
        )
    if not config.optimizer.startswith("tag-") or config.optimizer == "tag-self":
        raise UserError(
            f"--bank-axis {axis} needs a TAG optimizer that keeps its tasks' moments; with "
            f"{config.optimizer} it would change nothing."
        )
