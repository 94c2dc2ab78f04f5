"""Checkpoints by orbax: asynchronous, a bounded number kept, restored into the shapes expected.

This is the only module that knows orbax. It uses `CheckpointManager`, since the successor API still
lives under `orbax.checkpoint.experimental`.
"""

import dataclasses
import logging
import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp

from train.errors import UserError
from train.history import History
from train.state import TrainState

# Orbax reports each of its own steps; what a user needs to know, our log says.
logging.getLogger("absl").setLevel(logging.ERROR)


class Checkpoints:
    """The checkpoints of one run, by the number of steps taken."""

    def __init__(self, directory: pathlib.Path, *, keep: int):
        self.directory = directory
        self._manager = ocp.CheckpointManager(
            directory.absolute(),
            item_handlers={
                # Compressing moments, which are noise to it, takes three times as long as writing.
                "state": ocp.PyTreeCheckpointHandler(use_compression=False),
                "record": ocp.JsonCheckpointHandler(),
            },
            options=ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True),
        )

    def save(self, step: int, state: TrainState, history: History) -> None:
        """Starts writing, and returns as soon as the state may be donated again."""
        record = {"layout": _layout(state), "history": history.to_json()}
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.PyTreeSave(state), record=ocp.args.JsonSave(record)
            ),
        )

    def latest(self) -> int | None:
        return self._manager.latest_step()

    def restore(
        self, like: TrainState, *, resizable: frozenset[str] = frozenset()
    ) -> tuple[TrainState, History]:
        """The newest state, in the shapes, types and places of `like`, and its history.

        `resizable` names arrays that may have been saved with more or fewer rows, which are then
        cut off or filled up with zeros: a bank's rows behind its tasks.
        """
        record = self._load(record=ocp.args.JsonRestore())["record"]
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
        found = self._load(state=ocp.args.PyTreeRestore(item=abstract, restore_args=places))
        return found["state"], History.from_json(record["history"])

    def _load(self, **items: Any) -> Any:
        step = self._manager.latest_step()
        try:
            return self._manager.restore(step, args=ocp.args.Composite(**items))
        except (ValueError, KeyError, OSError) as error:
            raise UserError(
                f"The checkpoint {self.directory / str(step)} cannot be read ({error}). Remove "
                "that directory to go on from the one before it."
            ) from error

    def close(self) -> None:
        """Waits until everything is written."""
        self._manager.wait_until_finished()
        self._manager.close()


def _layout(state: TrainState) -> dict[str, str]:
    """Name, type and shape of every array."""
    leaves, _ = jax.tree.flatten_with_path(state)
    return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}
