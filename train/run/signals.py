"""SIGTERM and Ctrl-C: finish the step, save, say how to go on."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType


class Stopped(Exception):
    """The run was asked to stop, and its state is saved."""

    def __init__(self, signum: int, where: str):
        super().__init__(where)
        self.signum = signum


@contextlib.contextmanager
def catch_stop() -> Iterator[Callable[[], int | None]]:
    """Yields a function that returns the signal received, or None; a second one ends the process at
    once, as if nothing were caught."""
    received: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, previous[each])

    previous = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: received[0] if received else None
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


def stop_without(parent: int) -> None:
    """From now on, this process stops as after SIGTERM when its parent is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
