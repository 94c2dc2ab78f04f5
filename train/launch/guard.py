"""A parent for each process of a run over several hosts.

Where a process cannot reach the others, or one of them is gone, JAX aborts it from C++: Python has
no chance to say what happened. The parent has.
"""

import os
import signal
import subprocess
import sys
from types import FrameType

from train.errors import AFTER_SIGNAL, LOST
from train.run.devices import Devices
from train.run.signals import stop_without

_GUARDED = "TAG_OPTAX_GUARDED_BY"


def is_needed(devices: Devices) -> bool:
    """Whether this process should be a parent: of a run over several, unless it has one."""
    return devices.coordinator is not None and _GUARDED not in os.environ


def watch_parent() -> None:
    """In the child: saves and ends when the parent is gone."""
    if _GUARDED in os.environ:
        stop_without(int(os.environ[_GUARDED]))


def run(arguments: list[str]) -> int:
    """Runs the command in a child, passes signals on to it, and returns how it ended."""
    # In a session of its own: Ctrl-C reaches this process alone, which passes it on once.
    child = subprocess.Popen(
        [sys.executable, "-m", "train", *arguments],
        env=os.environ | {_GUARDED: str(os.getpid())},
        start_new_session=True,
    )

    def pass_on(signum: int, frame: FrameType | None) -> None:
        del frame
        child.send_signal(signum)

    previous = {each: signal.signal(each, pass_on) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = child.wait()
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
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
