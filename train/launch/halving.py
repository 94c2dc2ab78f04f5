"""Successive halving over the tasks of a stream: which cells of a grid go how far.

All cells learn the first few tasks; the better half of them learns twice as many, and so on, until
those that are left reach the end of the stream. The budget decides how many tasks come before the
first choice: the more, the surer it is.
"""

import math
from typing import NamedTuple

from train.errors import UserError


class Rung(NamedTuple):
    """So many cells learn so many tasks in all."""

    tasks: int
    cells: int


def schedule(cells: int, tasks: int, budget: float | None) -> list[Rung]:
    """The rungs that spend most of a budget, a share of what all cells to the end would cost.

    >>> schedule(8, 10, budget=0.6)
    [Rung(tasks=3, cells=8), Rung(tasks=6, cells=4), Rung(tasks=10, cells=2)]
    >>> schedule(8, 10, budget=None)
    [Rung(tasks=10, cells=8)]
    """
    if budget is None:
        return [Rung(tasks, cells)]
    if not 0 < budget <= 1:
        raise UserError(f"--budget must lie in (0, 1], and is {budget:g}.")
    ladders = [_ladder(cells, tasks, first) for first in range(tasks, 0, -1)]
    full = cells * tasks
    for rungs in ladders:
        if cost(rungs) <= budget * full + 1e-9:
            return rungs
    least = math.ceil(100 * min(map(cost, ladders)) / full) / 100
    raise UserError(
        f"--budget {budget:g} is too small: {cells} cells over {tasks} tasks need {least:g}."
    )


def cost(rungs: list[Rung]) -> int:
    """How many times a cell learns a task.

    >>> cost([Rung(tasks=2, cells=8), Rung(tasks=4, cells=4)])
    24
    """
    before = [0, *(rung.tasks for rung in rungs)]
    return sum(
        rung.cells * (rung.tasks - start) for rung, start in zip(rungs, before, strict=False)
    )


def _ladder(cells: int, tasks: int, first: int) -> list[Rung]:
    rungs = [Rung(first, cells)]
    while rungs[-1].tasks < tasks:
        left = math.ceil(rungs[-1].cells / 2)
        # The last one left has nothing more to be compared with.
        rungs.append(Rung(tasks if left == 1 else min(2 * rungs[-1].tasks, tasks), left))
    return rungs
