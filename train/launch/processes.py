"""A pool of processes: one for each run, as many at a time as asked for, each on its own cores."""

import dataclasses
import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import cloudpickle

from train.errors import DIVERGED, UserError
from train.launch.jobs import Job, is_done
from train.run.directory import Keeping
from train.run.progress import Progress
from train.run.signals import Stopped, catch_stop

_LOOK_EVERY = 0.2  # seconds
_CAN_CHOOSE = hasattr(os, "sched_setaffinity")


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a run could not be finished."""

    why: str
    diverged: bool = False
    """Its loss is no longer finite, and would not be if it were tried again."""


def run_jobs(
    jobs: Sequence[Job],
    progress: Progress,
    *,
    processes: int,
    done: int = 0,
    ended: Callable[[Job, Failure | None], None] = lambda job, failure: None,
) -> dict[Job, Failure]:
    """Runs every job in a process of its own; returns those that failed, and why.

    The number of cores decides the order of sums, so each job has the same: the cores divided by
    `processes`, however few jobs are left. `done` jobs of the same undertaking were done before;
    `ended` is called as each job ends, and a failure stops no other job.

    Raises Stopped after a signal, once every worker has saved its run.
    """
    free = share_cores(processes)
    waiting, working, failed = list(jobs), [], {}
    total = done + len(waiting)
    with catch_stop() as stop_signal, progress.workers() as show:

        def show_all(*workers: _Worker) -> None:
            tally = f"done {done} of {total}" + (f", {len(failed)} failed" if failed else "")
            show([worker.status() for worker in workers], tally)

        try:
            while waiting or working:
                while waiting and free:
                    working.append(_Worker(waiting.pop(0), free.pop(0)))
                time.sleep(_LOOK_EVERY)
                show_all(*working)
                for worker in [each for each in working if each.process.poll() is not None]:
                    working.remove(worker)
                    free.append(worker.cores)
                    failure = worker.failure()
                    if failure is None:
                        done += 1
                    else:
                        failed[worker.job] = failure
                    ended(worker.job, failure)
                    show_all(worker, *working)
                signum = stop_signal()
                if signum is not None and (waiting or working):
                    raise Stopped(signum, f"{done} of {total} runs")
        finally:
            for worker in working:
                worker.process.send_signal(signal.SIGTERM)
            for worker in working:
                worker.process.wait()
    return failed


class _Worker:
    """A process, the cores it may use, and the log of what it says."""

    def __init__(self, job: Job, cores: set[int]):
        self.job = job
        self.cores = cores
        job.log.parent.mkdir(parents=True, exist_ok=True)
        # The job is given in a file: a pipe would break where a worker dies before it reads.
        with job.log.open("w") as log, tempfile.TemporaryFile() as given, _on_cores(cores):
            # By value, since a user's functions may be of no importable module.
            cloudpickle.dump({"job": job, "command": sys.argv[1:]}, given)
            given.seek(0)
            # In a session of its own: Ctrl-C reaches this process alone, which passes it on once.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "train.launch.worker"],
                stdin=given,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def last_line(self) -> str:
        lines = self.job.log.read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")

    def status(self) -> str:
        said = self.last_line() or "starting"
        return said if said.startswith(self.job.name) else f"{self.job.name}  {said}"

    def failure(self) -> Failure | None:
        code = self.process.returncode
        if code == 0:
            return None
        if code < 0:
            memory = ", as where memory runs out" if code == -signal.SIGKILL else ""
            return Failure(f"killed by {signal.Signals(-code).name}{memory}")
        return Failure(self.last_line() or f"exit code {code}", diverged=code == DIVERGED)


@functools.cache
def num_processes(asked: int | None) -> int:
    """How many runs to have at a time: as asked, else one a core, or one on an accelerator."""
    if asked is not None:
        return asked
    # Looked for in another process: this one would keep the accelerator from its workers.
    command = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
    found = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return len(_cores()) if found in ("", "cpu") else 1


def check_many(asked: int | None, keeping: Keeping) -> None:
    """What is asked of many runs."""
    if keeping.stop_after is not None:
        raise UserError("--stop-after is for a single run: python -m train run --stop-after ...")
    cores = len(_cores())
    if asked is not None and not 1 <= asked <= cores:
        raise UserError(
            f"--processes must lie between 1 and {cores}, the cores here, and is {asked}."
        )


def share_cores(processes: int) -> list[set[int]]:
    """The cores, the same number for each of as many workers as can be busy at once."""
    cores = _cores()
    workers = min(processes, len(cores))
    share = len(cores) // workers
    return [set(cores[i * share : (i + 1) * share]) for i in range(workers)]


def _cores() -> list[int]:
    # Only Linux lets a process choose.
    chosen = os.sched_getaffinity(0) if _CAN_CHOOSE else range(os.cpu_count() or 1)
    return sorted(chosen)


@contextmanager
def _on_cores(cores: set[int]) -> Iterator[None]:
    """A process started inside inherits these cores, and XLA makes that many threads."""
    if not _CAN_CHOOSE:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run_missing(
    jobs: Sequence[Job],
    progress: Progress,
    asked: int | None,
    ended: Callable[[Job, Failure | None], None] = lambda job, failure: None,
) -> dict[Job, Failure]:
    """Does what is not done yet; returns what failed, and why."""
    left = [job for job in jobs if not is_done(job)]
    if not left:
        return {}
    done = len(jobs) - len(left)
    return run_jobs(left, progress, processes=num_processes(asked), done=done, ended=ended)


def say_failures(failed: Mapping[Job, Failure], progress: Progress) -> None:
    for job, failure in failed.items():
        what = "diverged" if failure.diverged else "failed"
        progress.say(f"{job.name} {what} ({job.log}): {failure.why}")
