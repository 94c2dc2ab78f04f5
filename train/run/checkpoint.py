"""Checkpoints by orbax: asynchronous, a bounded number kept, proved whole before they are used.

This is the only module that knows orbax. It uses `CheckpointManager`, since the successor API still
lives under `orbax.checkpoint.experimental`.
"""

import contextlib
import dataclasses
import hashlib
import inspect
import json
import logging
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp

from train.errors import UserError
from train.run.history import History
from train.run.state import TrainState

# Orbax reports each of its own steps, and its errors twice. What a user needs to know we say.
logging.getLogger("absl").setLevel(logging.CRITICAL)


def _without_stragglers(hook: Callable[[Any], None]) -> Callable[[Any], None]:
    """Orbax reads and writes all arrays at once, hears of the first that fails and ends its event
    loop. The others then report in vain, at any later time, each with a traceback. What failed is
    said once, by `save` or `restore`."""

    def report(found: Any) -> None:
        error = found.exc_value
        loop_is_gone = isinstance(error, RuntimeError) and "loop is closed" in str(error)
        if not loop_is_gone and not inspect.iscoroutine(found.object):
            hook(found)

    return report


sys.unraisablehook = _without_stragglers(sys.unraisablehook)

Fingerprint = Callable[[TrainState], dict[str, int]]


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

    def save(self, step: int, state: TrainState, history: History, *, wait: bool = False) -> None:
        """Starts writing, and returns as soon as the state may be donated again.

        What failed of the checkpoint before is said here. With `wait`, returns when all is written.
        """
        record = {
            "layout": _layout(state),
            "fingerprint": self._fingerprint(state),
            "history": history.to_json(),
        }
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
    ) -> tuple[TrainState, History, list[str]]:
        """The newest whole state, in the shapes, types and places of `like`, and its history.

        Damaged checkpoints are passed over and put aside, and the list says so, a line for each.
        `resizable` names arrays that may have been saved with more or fewer rows, which are then
        cut off or filled up with zeros: a bank's rows behind its tasks.
        """
        found: dict[int, Damaged] = {}
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                state, history = self._restore(step, like, resizable)
            except Damaged as damage:
                found[step] = damage
                continue
            return state, history, [self._put_aside(each, why) for each, why in found.items()]
        reasons = "; ".join(f"{step}: {why}" for step, why in found.items())
        raise UserError(
            f"No checkpoint in {self.directory} is whole ({reasons}), so the run cannot go on. "
            "They are left as they are; --overwrite throws the run away and starts it anew."
        )

    def _restore(
        self, step: int, like: TrainState, resizable: frozenset[str]
    ) -> tuple[TrainState, History]:
        record = self._load(step, record=ocp.args.JsonRestore())["record"]
        if not isinstance(record, dict) or record.pop("checksum", None) != _checksum(record):
            raise Damaged("its record has changed")
        # Compared here, because orbax reports a mismatch in terms of its own.
        saved, wanted = record["layout"], _layout(like)
        for name in sorted(saved.keys() | wanted.keys()):
            if saved.get(name) != wanted.get(name) and name not in resizable:
                raise UserError(
                    f"The checkpoint in {self.directory} is of another model or optimizer: it has "
                    f"{name} as {saved.get(name)}, and this run has {wanted.get(name)}."
                )
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        places = jax.tree_util.tree_map_with_path(
            lambda path, place: dataclasses.replace(
                place, strict=jax.tree_util.keystr(path) not in resizable
            ),
            ocp.checkpoint_utils.construct_restore_args(abstract),
        )
        state = self._load(step, state=ocp.args.PyTreeRestore(item=abstract, restore_args=places))
        state = state["state"]
        changed = [
            name
            for name, number in self._fingerprint(state).items()
            if record["fingerprint"].get(name) != number
        ]
        if changed:
            raise Damaged(f"{changed[0]} has changed")
        return state, History.from_json(record["history"])

    def _load(self, step: int, **items: Any) -> Any:
        try:
            return self._manager.restore(step, args=ocp.args.Composite(**items))
        except Exception as error:
            # A damaged file fails in any layer of orbax, zarr, JSON or the file system, each with
            # exceptions of its own, and all of them mean the same: this one cannot be read.
            why = f"{type(error).__name__}: {_first_line(error)[:80]}"
            raise Damaged(f"its {next(iter(items))} cannot be read, {why}") from None

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


# What the system refuses, as tensorstore passes it on.
_DISK_SIGNS = (
    *("No space left on device", "Disk quota exceeded", "Read-only file system"),
    *("Permission denied", "File too large", "Input/output error"),
)


def _layout(state: TrainState) -> dict[str, str]:
    """Name, type and shape of every array."""
    leaves, _ = jax.tree.flatten_with_path(state)
    return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}


def _checksum(record: dict[str, Any]) -> str:
    """
    >>> _checksum({"a": 0.1, "b": [1]}) == _checksum(json.loads('{"b": [1], "a": 0.1}'))
    True
    """
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:300]
