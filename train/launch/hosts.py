"""A run over several hosts: how a process joins it, and the parent that each process has.

Where a process cannot reach the others, or one of them is gone, JAX aborts it from C++: Python has
no chance to say what happened. The parent has.
"""

import dataclasses
import os
import re
import signal
import subprocess
import sys

import jax

from train.errors import AFTER_SIGNAL, LOST, UserError
from train.run.signals import handling, stop_without

_HEARTBEAT_SECONDS = 30  # How long a process may be silent, where its connections stay open.
_START_SECONDS = 300  # How long the first process waits for the last.
_GUARDED = "TAG_OPTAX_GUARDED_BY"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hosts:
    """The processes of a run over several hosts."""

    coordinator: str | None = None
    """HOST:PORT of process 0, for a run over several hosts: start the same command on each. auto:
    as jax.distributed finds it on a cluster."""
    num_processes: int | None = None
    """How many processes the run goes over."""
    process_id: int | None = None
    """Which of them this is, from 0."""

    def __post_init__(self) -> None:
        count, number = self.num_processes, self.process_id
        if self.coordinator in (None, "auto"):
            if count is not None or number is not None:
                raise UserError(
                    "--num-processes and --process-id need --coordinator HOST:PORT, where process "
                    "0 runs and a port is free."
                )
            return
        if not re.fullmatch(r"\S+:\d{1,5}", self.coordinator):
            raise UserError(
                f"--coordinator must be HOST:PORT or auto, and is {self.coordinator!r}."
            )
        if count is None or number is None:
            raise UserError(
                "--coordinator HOST:PORT needs --num-processes N and --process-id I, a different "
                "I from 0 to N - 1 for each process."
            )
        if not 0 <= number < count:
            raise UserError(f"--process-id must lie between 0 and {count - 1}, and is {number}.")


def start(hosts: Hosts) -> None:
    """Joins the other processes of a run; before anything else is asked of JAX."""
    if hosts.coordinator is None:
        return
    if _GUARDED in os.environ:  # This is a child: it saves and ends when its parent is gone.
        stop_without(int(os.environ[_GUARDED]))
    try:
        jax.distributed.initialize(
            None if hosts.coordinator == "auto" else hosts.coordinator,
            hosts.num_processes,
            hosts.process_id,
            initialization_timeout=_START_SECONDS,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=_HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        where = "found by itself" if hosts.coordinator == "auto" else hosts.coordinator
        raise UserError(
            f"Cannot join the run's processes, with the coordinator {where}: {error}. Start the "
            "same command on every host, each with its own --process-id."
        ) from error


def needs_guard(hosts: Hosts) -> bool:
    """Whether this process should be a parent: of a run over several, unless it has one."""
    return hosts.coordinator is not None and _GUARDED not in os.environ


def run_guarded(arguments: list[str]) -> int:
    """Runs the command in a child, passes signals on to it, and returns how it ended."""
    # In a session of its own: Ctrl-C reaches this process alone, which passes it on once.
    child = subprocess.Popen(
        [sys.executable, "-m", "train", *arguments],
        env=os.environ | {_GUARDED: str(os.getpid())},
        start_new_session=True,
    )

    stopping = signal.SIGINT, signal.SIGTERM
    with handling(lambda signum, frame: child.send_signal(signum), *stopping):
        code = child.wait()
    if code >= 0:
        return code
    if code == -signal.SIGABRT:
        print(
            "error: JAX has ended this process, as another one of the run cannot be reached or is "
            "gone. Check --coordinator, and that all processes are started; start them all again "
            "with the same commands: a run under way goes on from its last checkpoint.",
            file=sys.stderr,
        )
        return LOST
    print(f"error: This process was killed by {signal.Signals(-code).name}.", file=sys.stderr)
    return AFTER_SIGNAL - code
