"""A grid of settings: its cells, and the record that tells it from another."""

import dataclasses
import itertools
import pathlib
from typing import Any

from train.errors import UserError
from train.launch import grids, many
from train.launch.jobs import Job, brief, describe
from train.launch.seeds import check_seeds
from train.run import config as configs
from train.run import usage
from train.run.config import Config
from train.run.places import Places

FILES = ("best.json", "diverged.json", "results.csv", "results.json", "results.md")
"""What a search writes beside grid.json."""
# A grid is of one stream, method and optimizer, and never sees the test part.
_FIXED = ("stream", "method", "optimizer", "evaluate_on")


@dataclasses.dataclass(frozen=True)
class Grid:
    """Fields to vary, and the config whose other fields all cells share."""

    base: Config
    axes: dict[str, tuple[Any, ...]]
    seeds: tuple[int, ...] = (1,)

    def cells(self) -> list[Config]:
        """Every combination, the last axis changing fastest.

        >>> grid = Grid(Config(), {"learning_rate": (0.1, 0.01), "b": (1.0, 3.0)})
        >>> [grid.name(cell) for cell in grid.cells()]
        ['learning_rate=0.1 b=1', 'learning_rate=0.1 b=3',
         'learning_rate=0.01 b=1', 'learning_rate=0.01 b=3']
        """
        return [
            dataclasses.replace(self.base, **dict(zip(self.axes, values, strict=True)))
            for values in itertools.product(*self.axes.values())
        ]

    def name(self, cell: Config) -> str:
        return describe(cell, self.axes)

    def jobs(self, cells: list[Config], places: Places) -> list[Job]:
        """Seeds outermost: a search that is stopped knows something of every cell."""
        return [
            Job(name=f"{self.name(cell)} seed {seed}", config=cell, seed=seed, places=places)
            for seed in self.seeds
            for cell in cells
        ]

    def directory(self, places: Places) -> pathlib.Path:
        """Where the grid's own files go, beside the runs of its cells."""
        base = self.base
        return places.out / base.stream / base.method / base.optimizer / "grid"


def plan(base: Config, varied: dict[str, tuple[Any, ...]], seeds: tuple[int, ...]) -> Grid:
    """The grid that varies these fields, or else the preset's; every cell is checked.

    >>> base = dataclasses.replace(configs.preset("split-cub", "sgd"), evaluate_on="validation")
    >>> len(plan(base, {}, seeds=(1,)).cells())
    4
    """
    if base.evaluate_on != "validation":
        raise UserError(
            "A grid is judged on held-out training data, never on the test part: drop "
            "--evaluate-on test."
        )
    check_seeds(seeds)
    for name in varied:
        if name in _FIXED:
            raise UserError(
                f"A grid cannot vary {name}. To compare several: python -m train sweep --help."
            )
    grid = Grid(base, varied or dict(grids.axes(base.method, base.optimizer, base.fisher)), seeds)
    for cell in grid.cells():
        usage.check_used(cell)
    return grid


def introduction(grid: Grid) -> str:
    """What is about to be searched.

    >>> introduction(Grid(configs.preset("split-cub", "sgd"), {"batch_size": (10, 20)}, (1, 2)))
    'A grid for split-cub, sgd: batch_size 10, 20. 2 cells, 2 seeds, judged on 10 % of the
     training data.'
    """
    base, whose = grid.base, "A grid"
    if grid.axes == grids.axes(base.method, base.optimizer, base.fisher):
        papers = grids.is_papers(base.method, base.optimizer, base.fisher)
        whose = "The paper's grid" if papers else "Our own grid"
    varied = "; ".join(f"{name} {_listed(values)}" for name, values in grid.axes.items())
    counts = f"{_counted(len(grid.cells()), 'cell')}, {_counted(len(grid.seeds), 'seed')}"
    return (
        f"{whose} for {base.stream}, {configs.label(base)}: {varied}. {counts}, judged on 10 % of "
        "the training data."
    )


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("s" if number != 1 else "")


def record(grid: Grid) -> dict[str, Any]:
    return {"base": configs.to_json(grid.base), "axes": grid.axes, "seeds": grid.seeds}


def check_record(grid: Grid, directory: pathlib.Path) -> None:
    """Refuses a directory that holds another grid. One with more values is the same, grown."""
    path = directory / "grid.json"

    def understand(found: Any) -> tuple[dict[str, tuple[Any, ...]], Config]:
        axes = {name: tuple(_plain(values)) for name, values in found["axes"].items()}
        hash(tuple(axes.items()))  # Else they could not be compared.
        return axes, configs.from_json(found["base"], path)

    found = many.read_record(path, understand)
    if found is None:
        others = [name for name in FILES if (directory / name).exists()]
        if others:
            raise UserError(
                f"{directory} holds {others[0]} and no grid.json: it is no grid's. Choose another "
                "--out, or --overwrite."
            )
        return
    recorded, base = found
    differences = []
    if recorded.keys() != grid.axes.keys():
        differences.append(f"varied {', '.join(recorded)}, not {', '.join(grid.axes)}")
    else:
        for name, values in grid.axes.items():
            if not set(recorded[name]) <= set(values):
                differences.append(f"{name} {_listed(recorded[name])}, not {_listed(values)}")
        shared = {name: getattr(grid.base, name) for name in grid.axes}
        differences += dataclasses.replace(base, **shared).differences(grid.base)
    if differences:
        raise UserError(
            f"{directory} holds another grid: {'; '.join(differences)}. Choose another --out, or "
            "--overwrite that grid."
        )


def _plain(values: Any) -> list[Any]:
    """Values that can be compared with those of a file."""
    return [tuple(value) if isinstance(value, list) else value for value in values]


def _listed(values: tuple[Any, ...]) -> str:
    return ", ".join(map(brief, values))
