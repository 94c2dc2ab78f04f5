"""Checkpoints by orbax: asynchronous, a bounded number kept, proved whole before they are used.

This is the only module that knows orbax. It uses `CheckpointManager`, since the successor API still
lives under `orbax.checkpoint.experimental`.
"""

import contextlib
import hashlib
import inspect
import json
import logging
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax import lax

from train.errors import UserError
from train.methods import TrainState

Fingerprint = Callable[[TrainState], dict[str, int]]


def quiet() -> None:
    """For a command line: what a user needs to know of orbax we say, in one sentence.

    Orbax logs each of its own steps, and its errors twice. It also reads and writes all arrays at
    once, hears of the first that fails and ends its event loop; the others then report in vain, at
    any later time, each with a traceback.
    """
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    sys.unraisablehook = _without_stragglers(sys.unraisablehook)


def _without_stragglers(hook: Callable[[Any], None]) -> Callable[[Any], None]:
    def report(found: Any) -> None:
        error = found.exc_value
        ended = isinstance(error, RuntimeError) and "loop is closed" in str(error)
        if not ended and not inspect.iscoroutine(found.object):
            hook(found)

    return report


class Damaged(Exception):
    """A checkpoint is not what was written."""


class Checkpoints:
    """The checkpoints of one run, by the number of steps taken.

    `fingerprint` gives a number for each array of a state. It is saved with the state, and what is
    restored must give the same.
    """

    def __init__(self, directory: pathlib.Path, *, keep: int, fingerprint: Fingerprint):
        self.directory = directory
        self._fingerprint = fingerprint
        with self._saying_why():
            self._manager = ocp.CheckpointManager(
                directory.absolute(),
                item_handlers={
                    # Compressing moments, which are noise to it, takes three times as long as
                    # writing them.
                    "state": ocp.PyTreeCheckpointHandler(use_compression=False),
                    "record": ocp.JsonCheckpointHandler(),
                },
                options=ocp.CheckpointManagerOptions(
                    max_to_keep=keep, cleanup_tmp_directories=True
                ),
            )

    def save(
        self, step: int, state: TrainState, notes: dict[str, Any], *, wait: bool = False
    ) -> None:
        """Starts writing, and returns as soon as the state may be donated again.

        `notes` is what the run must know to go on, as JSON. What failed of the checkpoint before is
        said here. With `wait`, returns when all is written.
        """
        record = {"layout": _layout(state), "fingerprint": self._fingerprint(state), "notes": notes}
        with self._saying_why():
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.PyTreeSave(state),
                    record=ocp.args.JsonSave(record | {"checksum": _checksum(record)}),
                ),
            )
            if wait:
                self._manager.wait_until_finished()

    def latest(self) -> int | None:
        return self._manager.latest_step()

    def restore(
        self, like: TrainState, *, resizable: frozenset[str] = frozenset()
    ) -> tuple[TrainState, dict[str, Any], list[str]]:
        """The newest whole state, in the types and places of `like`, and its notes.

        Damaged checkpoints are passed over and put aside, and the list says so, a line for each.
        The arrays that `resizable` names have the shapes that they were saved in, which depend on
        the number of tasks; all others must have those of `like`.
        """
        found: dict[int, Damaged] = {}
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                state, notes = self._restore(step, like, resizable)
            except Damaged as damage:
                found[step] = damage
                continue
            return state, notes, [self._put_aside(each, why) for each, why in found.items()]
        reasons = "; ".join(f"{step}: {why}" for step, why in found.items())
        raise UserError(
            f"No checkpoint in {self.directory} is whole ({reasons}), so the run cannot go on. "
            "They are left as they are; --overwrite throws the run away and starts it anew."
        )

    def _restore(
        self, step: int, like: TrainState, resizable: frozenset[str]
    ) -> tuple[TrainState, dict[str, Any]]:
        record = self._load(step, record=ocp.args.JsonRestore())
        if not isinstance(record, dict) or record.pop("checksum", None) != _checksum(record):
            raise Damaged("its record has changed")
        # Compared here, because orbax reports a mismatch in terms of its own.
        saved, wanted = record["layout"], _layout(like)
        for name in sorted(saved.keys() | wanted.keys()):
            was, now = saved.get(name, "nothing"), wanted.get(name, "nothing")
            resized = name in resizable and was.split("[")[0] == now.split("[")[0]
            if was != now and not resized:
                raise UserError(
                    f"The checkpoint in {self.directory} is of another model or optimizer: it has "
                    f"{name} as {was}, and this run has {now}."
                )
        abstract = jax.tree_util.tree_map_with_path(
            lambda path, leaf: _in_shape(leaf, saved[jax.tree_util.keystr(path)]), like
        )
        places = ocp.checkpoint_utils.construct_restore_args(abstract)
        state = self._load(step, state=ocp.args.PyTreeRestore(item=abstract, restore_args=places))
        for name, number in self._fingerprint(state).items():
            if record["fingerprint"].get(name) != number:
                raise Damaged(f"{name} has changed")
        return state, record["notes"]

    def _load(self, step: int, **one: Any) -> Any:
        (name,) = one
        try:
            return self._manager.restore(step, args=ocp.args.Composite(**one))[name]
        except Exception as error:
            # A damaged file fails in any layer of orbax, zarr, JSON or the file system, each with
            # exceptions of its own, and all of them mean the same: this one cannot be read.
            why = f"{type(error).__name__}: {_first_line(error)[:80]}"
            raise Damaged(f"its {name} cannot be read, {why}") from None

    def _put_aside(self, step: int, why: Damaged) -> str:
        """Out of the way of the checkpoint that will be made at this step again."""
        aside = self.directory.with_name(self.directory.name + "-damaged") / str(step)
        if jax.process_index() == 0:
            aside.parent.mkdir(exist_ok=True)
            number = sum(each.name.split(".")[0] == str(step) for each in aside.parent.iterdir())
            aside = aside.with_name(f"{step}.{number}") if number else aside
            (self.directory / str(step)).rename(aside)
        self._manager.reload()
        return f"The checkpoint at step {step} is damaged ({why}): it is put aside in {aside}."

    def close(self) -> None:
        """Waits until everything is written."""
        with self._saying_why():
            try:
                self._manager.wait_until_finished()
            finally:
                self._manager.close()

    @contextlib.contextmanager
    def _saying_why(self) -> Iterator[None]:
        """A disk that is full, or not to be written to, in one sentence."""
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            reasons = [sign for sign in _DISK_SIGNS if sign in str(error)]
            if isinstance(error, TimeoutError):  # After ten minutes by the clock on the wall.
                reasons = ["orbax gave up, as where a clock is set or a process sleeps meanwhile"]
            if not reasons and not isinstance(error, OSError):
                raise
            raise UserError(
                f"A checkpoint cannot be written to {self.directory}: "
                f"{[*reasons, _first_line(error)][0]}. The ones before it are kept: mend that, and "
                "the same command goes on from there."
            ) from error


def restore_weights(directory: pathlib.Path, params: Any, stats: Any) -> TrainState:
    """The network of a run's newest checkpoint, proved whole, and nothing else of its state."""
    steps = sorted(int(p.name) for p in directory.glob("*") if p.name.isdigit())
    if not steps:
        raise UserError(f"There is no checkpoint in {directory}.")
    path = directory.absolute() / str(steps[-1])
    try:
        with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as reader:
            record = reader.restore(path / "record")
        has_average = any(name.startswith(".average") for name in record["layout"])
        given = dict(params=params, stats=stats, average=params if has_average else ())
        like = TrainState(**dict.fromkeys(TrainState._fields, ()) | given)  # type: ignore[arg-type]
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), like)
        for name, now in _layout(like).items():
            if record["layout"].get(name) != now:
                raise UserError(
                    f"{directory} holds another network: {name} is "
                    f"{record['layout'].get(name, 'not there')} in it, and {now} in the model."
                )
        wanted = {name: tree for name, tree in like._asdict().items() if jax.tree.leaves(tree)}
        places = ocp.checkpoint_utils.construct_restore_args(wanted)
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            restored = reader.restore(
                path / "state",
                args=ocp.args.PyTreeRestore(item=wanted, restore_args=places, partial_restore=True),
            )
        state = like._replace(**restored)  # What has no arrays is as it was.
    except UserError:
        raise
    except Exception as error:  # As in `_load`.
        raise UserError(f"{path} cannot be read ({_first_line(error)}).") from error
    for name, number in fingerprints(state).items():
        if record["fingerprint"].get(name) != int(number):
            raise UserError(f"{path} is damaged: its weights are not what was written.")
    return state


# What the system refuses, as tensorstore passes it on.
_DISK_SIGNS = (
    *("No space left on device", "Disk quota exceeded", "Read-only file system"),
    *("Permission denied", "File too large", "Input/output error"),
)


def _layout(state: TrainState) -> dict[str, str]:
    """Name, type and shape of every array."""
    leaves, _ = jax.tree.flatten_with_path(state)
    return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}


def _in_shape(leaf: jax.ShapeDtypeStruct, saved: str) -> jax.ShapeDtypeStruct:
    """The leaf in the shape that a layout names; one of another shape whole on every device."""
    shape = tuple(json.loads(saved[saved.index("[") :]))
    if shape == leaf.shape:
        return leaf
    place = leaf.sharding
    if isinstance(place, jax.sharding.NamedSharding):
        place = jax.sharding.NamedSharding(place.mesh, jax.sharding.PartitionSpec())
    return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=place)


def _checksum(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:300]


# Odd, and without a pattern: the golden ratio's fraction and more of its kind, one for each axis.
_MULTIPLIERS = np.array([2654435769, 2246822519, 3266489917, 668265263, 374761393, 3340351787])


def fingerprint(array: jax.Array) -> jax.Array:
    """uint32[]: the sum of all words, each mixed with its place.

    Computed where the array is: it may be split over devices and hosts, and nothing but the number
    travels. Rows of zeros at its end change nothing, so a bank that is restored with more or fewer
    rows behind its tasks keeps its number.

    Mixing loses no bit, so a change of a single word always shows, and others all but once in four
    thousand million times. A zero stays zero.
    """
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    # Numbers of eight bytes become two words.
    unsigned = {1: jnp.uint8, 2: jnp.uint16}.get(array.dtype.itemsize, jnp.uint32)
    words = lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32)
    place = jnp.zeros(words.shape, jnp.uint32)
    for axis in range(words.ndim):
        along = lax.broadcasted_iota(jnp.uint32, words.shape, axis) + jnp.uint32(1)
        place += along * jnp.uint32(_MULTIPLIERS[axis % len(_MULTIPLIERS)])
    return jnp.sum(_mixed(words * (place | jnp.uint32(1))), dtype=jnp.uint32)


def fingerprints(tree: Any) -> dict[str, jax.Array]:
    """The fingerprint of every array, by its name."""
    return {
        jax.tree_util.keystr(path): fingerprint(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _mixed(words: jax.Array) -> jax.Array:
    """One to one, and every bit of a word decides every bit of the result: MurmurHash3's end.

    Without it all signs of an array could turn, and the highest bits of its sum cancel.
    """
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        words = (words ^ (words >> jnp.uint32(shift))) * jnp.uint32(factor)
    return words ^ (words >> jnp.uint32(16))
