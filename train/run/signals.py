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
def handling(handle: Callable[[int, FrameType | None], None], *signums: int) -> Iterator[None]:
    """Calls `handle` at these signals, as long as one is inside."""
    previous = {each: signal.signal(each, handle) for each in signums}
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def catch_stop() -> Iterator[Callable[[], int | None]]:
    """Yields a function that returns the signal received, or None; a second one ends the process at
    once, as if nothing were caught."""
    received: list[int] = []
    with contextlib.ExitStack() as catching:

        def note(signum: int, frame: FrameType | None) -> None:
            received.append(signum)
            catching.close()

        catching.enter_context(handling(note, signal.SIGINT, signal.SIGTERM))
        yield lambda: received[0] if received else None


def stop_without(parent: int) -> None:
    """From now on, this process stops as after SIGTERM when its parent is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
