"""Several seeds of one config: one after another, side by side in one program, or in processes."""

import contextlib
import dataclasses
import math
import shutil
from typing import Literal

import jax
import rich.console

from train.errors import UserError
from train.launch import processes
from train.launch.display import Display, say
from train.launch.jobs import Job, is_done
from train.run import devices as devices_
from train.run import hosts
from train.run.config import Config
from train.run.config import label as name
from train.run.devices import Devices
from train.run.engine import Engine
from train.run.layout import Layout, make_layout
from train.run.loop import Run
from train.run.places import Places
from train.run.rundir import Bystander, RunDirectory
from train.streams import load_stream
from train.streams.types import Stream, shortened

Parallel = Literal["auto", "serial", "vmap", "processes"]
ONE_DEVICE = Devices()


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
    *,
    devices: Devices = ONE_DEVICE,
    label: str | None = None,
) -> dict[int, str]:
    """Runs or resumes every seed; returns those that failed, and why.

    Progress is shown under a label: the stream, the method and the seed, or the one given.
    Raises Stopped after a signal, once everything under way is saved.
    """
    check_seeds(seeds)
    layout = choose_layout(devices, config)
    parallel = _choose_parallel(parallel, layout)
    title = f"{config.stream} {name(config)}"
    jobs = [
        Job(name=f"{title} seed {seed}", config=config, seed=seed, places=places) for seed in seeds
    ]
    done = hosts.as_first(lambda: [is_done(job) for job in jobs], len(jobs))
    left = [job for job, finished in zip(jobs, done, strict=True) if not finished]
    if not left:
        return {}
    # For processes too: missing data are said once, and decoded once.
    stream = hosts.together(lambda: open_stream(config, places))
    if layout.mesh is not None:
        say(console, f"{title}  {layout}, {layout.mesh.size} of {jax.device_count()} devices")
    if len(jobs) > 1 and parallel == "processes":
        ended_badly = processes.run_jobs(left, console, processes=len(jobs), done=sum(done))
        return {job.seed: failure.why for job, failure in ended_badly.items()}
    seeds = tuple(job.seed for job in left)
    if parallel == "vmap":
        label = label or " ".join([title, "seed" if len(seeds) == 1 else "seeds", *map(str, seeds)])
        engine = _engine(config, stream, len(seeds), layout)
        return _run(engine, seeds, places, console, label)
    engine = _engine(config, stream, 1, layout)  # Compiled once for all seeds.
    failed = {}
    for job in left:
        try:
            failed |= _run(engine, (job.seed,), places, console, label or job.name)
        except UserError as error:
            if len(jobs) == 1:
                raise
            failed[job.seed] = str(error)  # The other seeds go on.
    return failed


def choose_layout(devices: Devices, config: Config) -> Layout:
    """Where a config's arrays will lie; what does not fit is said before any work."""
    if hosts.are_several() and devices.mesh is None:
        devices = dataclasses.replace(devices, mesh="auto")
    sizes = devices_.choose_axes(devices, config, available=jax.device_count())
    if hosts.are_several() and sizes is not None and math.prod(sizes.values()) < jax.device_count():
        raise UserError(
            f"--mesh {devices.mesh} leaves some of the {jax.device_count()} devices of "
            f"{jax.process_count()} processes without work: give a mesh of all of them, and a "
            "--batch-size that its data axis divides."
        )
    return make_layout(sizes, devices.bank_axis)


def _choose_parallel(asked: Parallel, layout: Layout) -> Parallel:
    on_cpu = jax.default_backend() == "cpu"
    if layout.mesh is not None:
        if asked == "processes":
            raise UserError(
                "--parallel processes gives every seed its own cores, and --mesh shares devices: "
                "choose serial or vmap, or drop --mesh."
            )
        return asked if asked != "auto" else "serial" if on_cpu else "vmap"
    if asked == "auto":
        # Convolutions leave cores idle, so a CPU does best with one seed a core; an accelerator
        # is filled best by all seeds in one program.
        return "processes" if on_cpu else "vmap"
    return asked


def _engine(config: Config, stream: Stream, num_seeds: int, layout: Layout) -> Engine:
    return hosts.together(lambda: Engine(config, stream, num_seeds, layout))


def check_seeds(seeds: tuple[int, ...]) -> None:
    # A random key has 32 bits of a seed.
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0 or max(seeds) >= 2**32:
        raise UserError("--seeds must be one or more different numbers from 0 to 2^32 - 1.")


def _run(
    engine: Engine,
    seeds: tuple[int, ...],
    places: Places,
    console: rich.console.Console,
    label: str,
) -> dict[int, str]:
    config = engine.config
    group = places.experiment(config) / ("seeds-" + "-".join(map(str, seeds)))
    alone = places.seed_directory(config, seeds[0])
    with contextlib.ExitStack() as stack:

        def open_directories() -> list[RunDirectory] | list[Bystander]:
            if not hosts.is_first():
                return [Bystander(seed) for seed in seeds]
            opened = []
            for seed in seeds:
                path = places.seed_directory(config, seed)
                directory = RunDirectory(path, config, seed, overwrite=places.overwrite)
                stack.callback(directory.close)
                used = [str(device) for device in jax.devices()]
                directory.write_environment(used, str(engine.layout))
                opened.append(directory)
            if places.overwrite and group.exists():
                shutil.rmtree(group)
            return opened

        directories = hosts.together(open_directories)
        display = Display(console, label, engine.steps())
        run = Run(
            engine,
            directories,
            (group if len(seeds) > 1 else alone) / "checkpoints",
            checkpoint_every=places.checkpoint_every,
            keep=places.keep,
            tensorboard=places.tensorboard,
            stop_after=places.stop_after,
            display=display,
        )
        return run.finish()
