"""What a process of the pool does: `python -m train.launch.worker`, a job on its standard input."""

import functools
import os
import sys

import cloudpickle

from train.errors import AFTER_SIGNAL, DIVERGED, DONE, REFUSED, UserError
from train.launch.jobs import Job, Streams
from train.launch.seeds import run_seeds
from train.run import checkpoint, hosts
from train.run.progress import Progress
from train.run.signals import Stopped, stop_without

say = functools.partial(print, flush=True)


def work(job: Job) -> int:
    """Runs or resumes a job; the last line says how it went, and so does the exit code."""
    try:
        outcome = run_seeds([job], Streams(job.places), Progress(say), "serial")
    except UserError as error:
        say(str(error))
        return REFUSED
    except Stopped as stopped:
        say(f"{job.name}  stopped at {stopped}")
        return AFTER_SIGNAL + stopped.signum
    for why in outcome.failed.values():
        say(why)
    return DIVERGED if outcome.failed else DONE


if __name__ == "__main__":
    # The record of the run's environment names the command that the user gave.
    given = cloudpickle.load(sys.stdin.buffer)
    sys.argv[1:] = given["command"]
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    checkpoint.quiet()
    stop_without(os.getppid())  # When the pool is gone, so that a new one finds the run free.
    hosts.leave(work(given["job"]))
