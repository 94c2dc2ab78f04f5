"""What a grid and a sweep have in common: many runs, of which the missing ones are done."""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import rich.console

from train import files, methods
from train.errors import UserError
from train.launch import processes
from train.launch.display import say
from train.launch.jobs import Job, is_done, standing, tasks_learned
from train.launch.processes import Failure
from train.launch.seeds import open_stream
from train.run import rundir
from train.run.places import Places
from train.run.rundir import RunDirectory
from train.streams.types import Stream

Record = TypeVar("Record")


def check_places(places: Places) -> None:
    if places.stop_after is not None:
        raise UserError("--stop-after is for a single run: python -m train run --stop-after ...")


@contextlib.contextmanager
def held(path: pathlib.Path) -> Iterator[None]:
    """Makes a directory and keeps other processes out of it."""
    rundir.make(path)
    lock = rundir.lock(path)
    try:
        yield
    finally:
        os.close(lock)


def read_record(path: pathlib.Path, understand: Callable[[Any], Record]) -> Record | None:
    """What an earlier command wrote down; None where there was none."""
    try:
        return understand(files.read_json(path))
    except FileNotFoundError:
        return None
    except UserError as error:
        raise UserError(f"{error} Remove it, or --overwrite.") from error
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        # Whatever a file can be that is JSON and no record.
        raise UserError(
            f"{path} cannot be understood ({error}). Remove it, or --overwrite."
        ) from error


def run_missing(
    jobs: Sequence[Job],
    console: rich.console.Console,
    num_processes: int | None,
    ended: Callable[[Job, Failure | None], None] = lambda job, failure: None,
) -> dict[Job, Failure]:
    """Does what is not done yet; returns what failed, and why."""
    left = [job for job in jobs if not is_done(job)]
    if not left:
        return {}
    return processes.run_jobs(
        left,
        console,
        processes=processes.num_processes(num_processes),
        done=len(jobs) - len(left),
        ended=ended,
    )


def open_data(jobs: Sequence[Job]) -> None:
    """Each stream that is still needed: what is missing, and what a method misses in it, is said
    before anything is written or started, and images are decoded once."""
    opened: dict[tuple[Any, ...], Stream] = {}
    for job in (job for job in jobs if not is_done(job)):
        config = job.config
        kind = (config.stream, config.num_tasks, config.order_seed, config.shared_head)
        kind = (*kind, config.evaluate_on, config.max_examples)
        if kind not in opened:
            opened[kind] = open_stream(config, job.places)
        methods.make(config, opened[kind])


def start_over(jobs: Sequence[Job]) -> None:
    """Throws away what there is of these runs."""
    for job in jobs:
        if job.directory.exists():
            RunDirectory(job.directory, job.config, job.seed, overwrite=True).close()


def show_standing(
    jobs: Sequence[Job], console: rich.console.Console, diverged: Mapping[str, str] | None = None
) -> None:
    """A line for each run: finished, under way, missing, or known to diverge."""
    found = ["diverged" if job.name in (diverged or {}) else standing(job) for job in jobs]
    for job, state in zip(jobs, found, strict=True):
        learned = f"  {tasks_learned(job)} of {job.config.num_tasks} tasks learned"
        say(console, f"{state:10} {job.name}{learned if state == 'under way' else ''}")
    counted = [f"{found.count(state)} {state}" for state in dict.fromkeys(found)]
    say(console, f"{len(jobs)} runs: {', '.join(counted)}.")


def say_failures(failed: Mapping[Job, Failure], console: rich.console.Console) -> None:
    for job, failure in failed.items():
        what = "diverged" if failure.diverged else "failed"
        say(console, f"{job.name} {what} ({job.log}): {failure.why}")
