"""Several seeds of one config: one after another, side by side in one program, or in processes."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Literal

import jax

from train.errors import UserError
from train.launch import processes
from train.launch.jobs import Job, Streams, check_seeds, is_done
from train.run import hosts
from train.run.config import Config
from train.run.devices import Devices, Layout, choose_axes
from train.run.directory import Bystander, RunDirectory
from train.run.engine import Engine, evaluated_params
from train.run.loop import Run, SeedRun
from train.run.progress import Progress
from train.run.result import Trained

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
) -> SeedResults:
    """Runs or resumes every seed of one config; raises Stopped once what is under way is saved."""
    seeds = [job.seed for job in jobs]
    check_seeds(seeds)
    config, keeping = jobs[0].config, jobs[0].keeping
    # A process with other settings would wait for the others, and they for it.
    asked = config.flat() | dataclasses.asdict(devices) | dataclasses.asdict(keeping)
    hosts.check_agreed(asked | {"parallel": parallel, "seeds": seeds})
    layout = choose_layout(devices, config)
    if layout.mesh is not None and parallel == "processes":
        raise UserError(
            "--parallel processes gives every seed its own cores, and --mesh shares devices: "
            "choose serial or vmap, or drop --mesh."
        )
    if parallel == "auto":
        # Convolutions leave cores idle, so a CPU does best with one seed a core; an accelerator is
        # filled best by all seeds in one program. What a process learns is handed over in the
        # run's directory.
        kept = layout.mesh is None and jobs[0].directory is not None
        on_cpu: Parallel = "processes" if kept else "serial"
        parallel = on_cpu if jax.default_backend() == "cpu" else "vmap"
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
    groups = [left] if parallel == "vmap" else [[job] for job in left]
    # Compiled once for all seeds.
    engine = hosts.together(lambda: Engine(config, stream, len(groups[0]), layout))
    outcome = SeedResults()
    for group in groups:
        several = f"{title} seeds {' '.join(str(job.seed) for job in group)}"
        try:
            found = _run(group, engine, progress, group[0].name if len(group) == 1 else several)
        except UserError as error:
            if parallel == "vmap" or len(jobs) == 1:
                raise
            outcome.failed[group[0].seed] = str(error)  # The other seeds go on.
        else:
            outcome.failed |= found.failed
            outcome.trained |= found.trained
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
    return Layout(sizes, devices.bank_axis)


def _run(jobs: Sequence[Job], engine: Engine, progress: Progress, label: str) -> SeedResults:
    """Runs some seeds side by side, in groups that stand at the same step."""
    keeping = jobs[0].keeping
    with contextlib.ExitStack() as stack:

        def open_directory(job: Job) -> RunDirectory | Bystander:
            if job.directory is None:
                return Bystander(job.seed)
            if not hosts.is_first():
                return Bystander(job.seed, job.directory / "checkpoints")
            directory = RunDirectory(
                job.directory, engine.config, job.seed, engine.stream, overwrite=keeping.overwrite
            )
            stack.callback(directory.close)
            directory.write_environment(str(engine.layout))
            return directory

        groups: dict[tuple[int, int], list[SeedRun]] = {}
        for directory in hosts.together(lambda: [open_directory(job) for job in jobs]):
            run = SeedRun(engine, directory, keeping)
            stack.callback(run.close)
            groups.setdefault((run.position.task, run.position.step), []).append(run)
        outcome = SeedResults()
        for group in groups.values():
            if len(group) != engine.num_seeds:
                size = len(group)
                engine = Engine(engine.config, engine.stream, size, engine.layout)
            shown = progress.run(label, engine.steps())
            outcome.failed |= Run(engine, group, keeping, shown).finish()
            for run in group:
                if run.position.failed is None:
                    weights = evaluated_params(run.state), run.state.stats
                    read = functools.partial(jax.device_get, weights)
                    outcome.trained[run.seed] = Trained(run.seed, run.matrices, read)
        return outcome
