"""Several seeds of one config: one after another, side by side in one program, or in processes."""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax

from train.errors import UserError
from train.launch import processes
from train.launch.jobs import Job, Streams, check_seeds, is_done
from train.run import hosts
from train.run.config import Config
from train.run.devices import Devices, Layout, choose_axes, make_layout
from train.run.directory import Bystander, RunDirectory
from train.run.engine import Engine, evaluated_params
from train.run.loop import Run, SeedRun
from train.run.progress import Progress
from train.run.result import Trained
from train.streams import Stream

Parallel = Literal["auto", "serial", "vmap", "processes"]
DEFAULT_DEVICES = Devices()


@dataclasses.dataclass
class SeedResults:
    """What became of some seeds."""

    failed: dict[int, str] = dataclasses.field(default_factory=dict)
    """Those that could not go on, and why."""
    trained: dict[int, Trained] = dataclasses.field(default_factory=dict)
    """Those that were trained in this process."""


def run_seeds(
    jobs: Sequence[Job],
    streams: Streams,
    progress: Progress,
    parallel: Parallel = "auto",
    *,
    devices: Devices = DEFAULT_DEVICES,
    label: str | None = None,
) -> SeedResults:
    """Runs or resumes every seed of one config.

    Progress is shown under a label: the stream, the method and the seed, or the one given.
    Raises Stopped after a signal, once everything under way is saved.
    """
    check_seeds([job.seed for job in jobs])
    config = jobs[0].config
    _check_agreed(jobs, devices, parallel)
    layout = choose_layout(devices, config)
    kept = jobs[0].directory is not None
    parallel = _choose_parallel(parallel, layout, kept=kept)
    title = f"{config.stream.name} {config.record.label}"
    done = hosts.as_first(lambda: [is_done(job) for job in jobs], len(jobs))
    left = [job for job, finished in zip(jobs, done, strict=True) if not finished]
    if not left:
        return SeedResults()
    # For processes too: missing data are said once, and decoded once.
    stream = hosts.together(lambda: streams.open(config))
    if layout.mesh is not None:
        total = jax.device_count()
        progress.say(f"{title}  {layout}, {layout.mesh.size} of {total} devices")
    if len(jobs) > 1 and parallel == "processes":
        failures = processes.run_jobs(left, progress, processes=len(jobs), done=sum(done))
        return SeedResults({job.seed: failure.why for job, failure in failures.items()})
    if parallel == "vmap":
        seeds = [str(job.seed) for job in left]
        words = [title, "seed" if len(seeds) == 1 else "seeds", *seeds]
        return _run(left, stream, layout, progress, label or " ".join(words))
    outcome = SeedResults()
    engine = _engine(config, stream, 1, layout)  # Compiled once for all seeds.
    for job in left:
        try:
            found = _run([job], stream, layout, progress, label or job.name, engine)
            outcome.failed |= found.failed
            outcome.trained |= found.trained
        except UserError as error:
            if len(jobs) == 1:
                raise
            outcome.failed[job.seed] = str(error)  # The other seeds go on.
    return outcome


def choose_layout(devices: Devices, config: Config) -> Layout:
    """Where a config's arrays will lie; what does not fit is said before any work."""
    if hosts.are_several() and devices.mesh is None:
        devices = dataclasses.replace(devices, mesh="auto")
    sizes = choose_axes(devices, config.run.batch_size, available=jax.device_count())
    if hosts.are_several() and sizes is not None and math.prod(sizes.values()) < jax.device_count():
        raise UserError(
            f"--mesh {devices.mesh} leaves some of the {jax.device_count()} devices of "
            f"{jax.process_count()} processes without work: give a mesh of all of them, and a "
            "--batch-size that its data axis divides."
        )
    return make_layout(sizes, devices.bank_axis)


def _check_agreed(jobs: Sequence[Job], devices: Devices, parallel: Parallel) -> None:
    """A process with other settings would wait for the others, and they for it."""
    first = jobs[0]
    asked: dict[str, Any] = first.config.flat() | dataclasses.asdict(devices)
    asked |= dataclasses.asdict(first.keeping) | {"parallel": parallel}
    asked["seeds"] = [job.seed for job in jobs]
    hosts.check_agreed(asked)


def _choose_parallel(asked: Parallel, layout: Layout, *, kept: bool) -> Parallel:
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
        if on_cpu:  # What a process learns is handed over in the run's directory.
            return "processes" if kept else "serial"
        return "vmap"
    return asked


def _engine(config: Config, stream: Stream, num_seeds: int, layout: Layout) -> Engine:
    config = config.resolved(stream.target_dtype)
    return hosts.together(lambda: Engine(config, stream, num_seeds, layout))


def _run(
    jobs: Sequence[Job],
    stream: Stream,
    layout: Layout,
    progress: Progress,
    label: str,
    engine: Engine | None = None,
) -> SeedResults:
    """Runs some seeds side by side, in groups that stand at the same step."""
    config, keeping = jobs[0].config, jobs[0].keeping
    engine = engine or _engine(config, stream, len(jobs), layout)
    with contextlib.ExitStack() as stack:

        def open_directory(job: Job) -> RunDirectory | Bystander:
            if job.directory is None:
                return Bystander(job.seed)
            if not hosts.is_first():
                return Bystander(job.seed, job.directory / "checkpoints")
            directory = RunDirectory(
                job.directory, engine.config, job.seed, stream, overwrite=keeping.overwrite
            )
            stack.callback(directory.close)
            used = [str(device) for device in jax.devices()]
            directory.write_environment(used, str(engine.layout))
            return directory

        directories = hosts.together(lambda: [open_directory(job) for job in jobs])
        opened = []
        for directory in directories:
            opened.append(SeedRun(engine, directory, keeping))
            stack.callback(opened[-1].close)
        groups: dict[tuple[int, int], list[SeedRun]] = {}
        for each in opened:
            groups.setdefault((each.position.task, each.position.step), []).append(each)
        outcome = SeedResults()
        for group in groups.values():
            fitting = engine
            if len(group) != engine.num_seeds:
                fitting = _engine(config, stream, len(group), layout)
            shown = progress.run(label, engine.steps())
            outcome.failed |= Run(fitting, group, keeping, shown).finish()
            for each in group:
                if each.position.failed is None:
                    outcome.trained[each.seed] = _trained(each)
        return outcome


def _trained(run: SeedRun) -> Trained:
    weights = evaluated_params(run.state), run.state.stats
    return Trained(run.seed, run.matrices, lambda: jax.device_get(weights))
