"""Multitask: the data of all tasks at once, the upper bound of learning them one after another."""

import dataclasses
from typing import ClassVar, Literal

from train.methods.base import Method


@dataclasses.dataclass(frozen=True, kw_only=True)
class Multitask(Method):
    """One task for the optimizer; every example still answers among its own task's classes."""

    joint: ClassVar[bool] = True

    multitask_order: Literal["shuffled", "in-turn"] = "shuffled"
    """All tasks in every batch, or one after the other in every epoch (the authors')."""

    @property
    def in_turn(self) -> bool:  # type: ignore[override]
        return self.multitask_order == "in-turn"
