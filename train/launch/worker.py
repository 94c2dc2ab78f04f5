"""What a process of the pool does: `python -m train.launch.worker`, a job on its standard input."""

import json
import os
import sys

import rich.console

from train.errors import AFTER_SIGNAL, DIVERGED, DONE, REFUSED, UserError
from train.launch.display import say
from train.launch.jobs import Job, from_json
from train.launch.seeds import run_seeds
from train.run import hosts
from train.run.signals import Stopped, stop_without


def work(job: Job) -> int:
    """Runs or resumes a job; the last line says how it went, and so does the exit code."""
    console = rich.console.Console()
    try:
        failed = run_seeds(job.config, (job.seed,), job.places, console, "serial", label=job.name)
    except UserError as error:
        say(console, str(error))
        return REFUSED
    except Stopped as stopped:
        say(console, f"{job.name}  stopped at {stopped}")
        return AFTER_SIGNAL + stopped.signum
    for why in failed.values():
        say(console, why)
    return DIVERGED if failed else DONE


if __name__ == "__main__":
    # The record of the run's environment names the command that the user gave.
    given = json.load(sys.stdin)
    sys.argv[1:] = given["command"]
    stop_without(os.getppid())  # When the pool is gone, so that a new one finds the run free.
    hosts.leave(work(from_json(given["job"])))
