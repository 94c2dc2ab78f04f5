"""Directories of runs that nobody trained, as a sweep would leave them."""

import json
import pathlib

import numpy as np

from train.run import config as configs
from train.run import matrices
from train.run.config import Config
from train.run.matrices import Matrices
from train.run.places import Places
from train.streams.registry import DATA_SETS, STREAMS
from train.streams.sources import record


def write_run(
    out: pathlib.Path,
    config: Config,
    seed: int,
    *,
    final: float = 0.6,
    change: np.ndarray | None = None,
    alpha: np.ndarray | None = None,
    sources: list[str] | None = None,
    finished: bool = True,
) -> None:
    """A run whose tasks all end at one accuracy; they were learned at 0.1 more.

    Args:
      change: added to the accuracies after each task of the stream.
      alpha: the weights, where the optimizer has any; all the same by default.
    """
    tasks = config.num_tasks
    measured = np.tri(tasks, dtype=bool)
    a = np.where(measured, final, np.nan)
    a[np.arange(tasks - 1), np.arange(tasks - 1)] += 0.1
    if change is not None:
        a += change[:, None]
    if config.method == "multitask":
        a[:-1] = np.nan
    if not finished:
        a[-1] = np.nan
    if sources is None:
        names = STREAMS[config.stream].data_sets
        sources = [record(DATA_SETS[name], "1.0.0", *DATA_SETS[name].full_size) for name in names]
    if config.optimizer.startswith("tag-"):
        alpha = np.where(measured, 0.5 if alpha is None else alpha, np.nan)
    directory = Places(out=out).seed_directory(config, seed)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(configs.to_json(config) | {"seed": seed}))
    tasks_named = [f"<{t}>" for t in range(tasks)]
    matrices.write(directory / matrices.FILE, Matrices(a, alpha, tasks_named, sources))
    environment = {"command": "python -m train run && echo <i>", "commit": "abc1234", "cores": 2}
    (directory / "environment.json").write_text(json.dumps(environment))
