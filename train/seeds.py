"""Several seeds of one config: one after another, side by side in one program, or in processes."""

import contextlib
import shutil
from typing import Literal

import jax
import rich.console

from train import processes
from train.config import Config
from train.config import label as name
from train.display import Display
from train.engine import Engine
from train.errors import UserError
from train.loop import Run
from train.places import Places
from train.rundir import RunDirectory, read_result
from train.streams import load_stream
from train.streams.types import Stream, shortened

Parallel = Literal["auto", "serial", "vmap", "processes"]


def open_stream(config: Config, places: Places) -> Stream:
    """The stream of a config, from the places where data are found."""
    stream = load_stream(
        config.stream,
        num_tasks=config.num_tasks,
        order_seed=config.order_seed,
        shared_head=config.shared_head,
        hold_out=0.0 if config.evaluate_on == "test" else 0.1,
        data_dirs=places.data_dir or None,
        cache_dir=places.cache_dir,
    )
    return stream if config.max_examples is None else shortened(stream, config.max_examples)


def run_seeds(
    config: Config,
    seeds: tuple[int, ...],
    places: Places,
    console: rich.console.Console,
    parallel: Parallel = "auto",
) -> dict[int, str]:
    """Runs or resumes every seed; returns those that failed, and why.

    Raises Stopped after a signal, once everything under way is saved.
    """
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UserError("--seeds must be one or more different numbers, none of them negative.")
    if parallel == "auto":
        # Convolutions leave cores idle, so a CPU does best with one seed a core; an accelerator
        # is filled best by all seeds in one program.
        parallel = "processes" if jax.default_backend() == "cpu" else "vmap"
    together = len(seeds)
    seeds = tuple(seed for seed in seeds if not _finished(config, seed, places))
    if not seeds:
        return {}
    # For processes too: missing data are said once, and decoded once.
    stream = open_stream(config, places)
    if together > 1 and parallel == "processes":
        # As many cores for each as before a stop: their number decides the order of sums.
        return processes.run(config, seeds, places, console, together=together)
    if parallel == "vmap":
        return _run(Engine(config, stream, len(seeds)), seeds, places, console)
    engine = Engine(config, stream)  # Compiled once for all seeds.
    failed = {}
    for seed in seeds:
        try:
            failed |= _run(engine, (seed,), places, console)
        except UserError as error:
            if together == 1:
                raise
            failed[seed] = str(error)  # The other seeds go on.
    return failed


def _finished(config: Config, seed: int, places: Places) -> bool:
    path = places.seed_directory(config, seed)
    if places.overwrite or not (path / "accuracy.npz").exists():
        return False
    RunDirectory(path, config, seed).close()  # Refuses another config.
    return read_result(path).finished


def _run(
    engine: Engine, seeds: tuple[int, ...], places: Places, console: rich.console.Console
) -> dict[int, str]:
    config = engine.config
    with contextlib.ExitStack() as stack:
        directories = []
        for seed in seeds:
            path = places.seed_directory(config, seed)
            directory = RunDirectory(path, config, seed, overwrite=places.overwrite)
            stack.callback(directory.close)
            directory.write_environment([str(device) for device in jax.devices()])
            directories.append(directory)
        group = places.experiment(config) / ("seeds-" + "-".join(map(str, seeds)))
        if places.overwrite and group.exists():
            shutil.rmtree(group)
        label = " ".join(["seed" if len(seeds) == 1 else "seeds", *map(str, seeds)])
        display = Display(console, f"{config.stream} {name(config)} {label}", engine.steps())
        run = Run(
            engine,
            directories,
            (group if len(seeds) > 1 else directories[0].path) / "checkpoints",
            checkpoint_every=places.checkpoint_every,
            keep=places.keep,
            tensorboard=places.tensorboard,
            display=display,
        )
        return run.finish()
