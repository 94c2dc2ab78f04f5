"""A run over several processes: agreeing, stopping together, noticing that one is gone.

All of it is `jax.distributed`'s: its coordinator knows the processes, its preemption service
agrees on the step at which all of them stop, and its heartbeats end those that wait for a dead one.
"""

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from train.errors import DIVERGED, FAILED, LOST, REFUSED, UserError
from train.run import signals

Result = TypeVar("Result")

# How gloo, NCCL and the coordinator speak of a peer that is not there.
_SIGNS = re.compile(
    r"gloo|nccl|connection (reset|closed|refused)|coordination|heartbeat|UNAVAILABLE|"
    r"DEADLINE_EXCEEDED|barrier",
    re.IGNORECASE,
)


class Lost(Exception):
    """Another process of the run does not answer any more."""


def is_first() -> bool:
    """Whether this process writes what a run leaves behind, and speaks for all."""
    return jax.process_index() == 0


def are_several() -> bool:
    return jax.process_count() > 1


def together(attempt: Callable[[], Result]) -> Result:
    """What `attempt` returns, if it succeeds in every process.

    Raises UserError in all of them if it does in one: else the others would wait for it.
    """
    if not are_several():
        return attempt()
    try:
        result, refusal = attempt(), None
    except UserError as error:
        result, refusal = None, error
    refused = np.flatnonzero(multihost_utils.process_allgather(np.array(refusal is not None)))
    if refusal is not None:
        raise refusal
    if len(refused):
        raise UserError(f"Process {refused[0]} cannot start: see what it says.")
    return result  # type: ignore[return-value]


def as_first(look: Callable[[], list[bool]], count: int) -> list[bool]:
    """The `count` things that process 0 finds, for all: only its files are the run's."""
    found = together(lambda: look() if is_first() else [False] * count)
    if are_several():
        found = multihost_utils.broadcast_one_to_all(np.array(found)).tolist()
    return found


def check_agreed(settings: Mapping[str, Any]) -> None:
    """Raises UserError in every process where one was started with other settings."""
    if not are_several():
        return
    mine = json.dumps(settings, sort_keys=True, default=str).encode()
    longest = int(np.max(multihost_utils.process_allgather(np.array(len(mine)))))
    padded = np.frombuffer(mine.ljust(longest), np.uint8)
    first, *others = (json.loads(bytes(row)) for row in multihost_utils.process_allgather(padded))
    for process, other in enumerate(others, start=1):
        different = [
            f"{name} is {first.get(name)} in process 0 and {other.get(name)} in process {process}"
            for name in sorted(first.keys() | other.keys())
            if first.get(name) != other.get(name)
        ]
        if different:
            raise UserError(
                f"The processes of this run were started with other settings: "
                f"{'; '.join(different)}. Start the same command in all of them."
            )


@contextlib.contextmanager
def noticing() -> Iterator[None]:
    """Raises Lost in place of what JAX says when a step cannot be done together."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if are_several() and _SIGNS.search(str(error)):
            raise Lost(str(error).splitlines()[0]) from error
        raise


@contextlib.contextmanager
def catch_stop() -> Iterator[Callable[[range], int | None]]:
    """As `signals.catch_stop`, for all processes: they stop after the same step.

    The function is told which steps were just taken, counted from the run's beginning. A signal to
    one process is a signal to all.
    """
    if not are_several():
        with signals.catch_stop() as received:
            yield lambda steps: received()
        return

    def pass_on(signum: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGTERM)  # Which JAX listens to.

    def reached(steps: range) -> int | None:
        # Asked of every step, because the service waits for one number.
        found = [multihost_utils.reached_preemption_sync_point(step) for step in steps]
        return signal.SIGTERM if any(found) else None

    with signals.handling(pass_on, signal.SIGINT):
        yield reached


def end_alone(lost: Lost) -> NoReturn:
    """Says it, and ends this process at once: the usual way would wait for the others."""
    print(
        f"error: Another process of this run is gone ({lost}). Start all of them again with the "
        "same commands: they go on from the last checkpoint.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(LOST)


def leave(code: int) -> NoReturn:
    """Ends this process; after an error at once.

    A checkpoint that failed leaves threads behind that wait for each other for ten minutes, and
    Python would wait for them, the run's lock in its hand.
    """
    if code in (FAILED, REFUSED, DIVERGED) and not jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
