"""Saying where a run stands, in plain lines. A terminal has its own in `cli`."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_EVERY = 10  # seconds


def duration(seconds: float) -> str:
    """
    >>> duration(3725), duration(65)
    ('1:02:05', '1:05')
    """
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class RunProgress:
    """One run: task, step, steps/s, loss, average score, time left."""

    def __init__(self, say: Callable[[str], None], label: str, steps: Sequence[int]):
        self._say = say
        self._label = label
        self._steps = steps
        self._began: tuple[float, int] | None = None
        self._said = time.monotonic()
        self._score = ""

    def showing(self) -> contextlib.AbstractContextManager[Any]:
        """Around all the steps."""
        return contextlib.nullcontext()

    def step(self, task: int, step: int, loss: float) -> None:
        """After the given step of a task."""
        now = time.monotonic()
        done = sum(self._steps[:task]) + step
        if self._began is None:
            self._began = now, done  # What came before was compilation.
        elapsed, since = now - self._began[0], done - self._began[1]
        speed = since / elapsed if elapsed and since else 0.0
        left = duration((sum(self._steps) - done) / speed) if speed else "?"
        where = f"task {task + 1}/{len(self._steps)}"
        status = (
            f"step {step}/{self._steps[task]}  {speed:.1f} steps/s  "
            f"loss {loss:.3f}{self._score}  {left} left"
        )
        self.show(done, where, status)

    def show(self, done: int, where: str, status: str) -> None:
        """Of `done` steps along the whole stream."""
        if time.monotonic() - self._said > _EVERY:
            self.say(f"{where}  {status}")

    def evaluated(self, task: int, score: float, *, percent: bool) -> None:
        """After a task: the average score over the tasks so far."""
        number = f"{100 * score:.1f} %" if percent else f"{score:.4g}"
        self._score = f"  acc {number}" if percent else f"  score {number}"
        learned = f"task {task + 1}/{len(self._steps)} learned"
        self.learned(f"{learned}  average {'accuracy' if percent else 'score'} {number}")

    def learned(self, line: str) -> None:
        self.say(line)

    def say(self, status: str) -> None:
        """A line that stays."""
        self._said = time.monotonic()
        self._say(f"{self._label}  {status}")


class Progress:
    """What is said of one run, or of many in processes."""

    def __init__(self, say: Callable[[str], None] = lambda line: None):
        self.say = say

    def run(self, label: str, steps: Sequence[int]) -> RunProgress:
        """Of a run with so many steps in each task."""
        return RunProgress(self.say, label, steps)

    @contextlib.contextmanager
    def workers(self) -> Iterator[Callable[[list[str], str], None]]:
        """Yields a function that shows a line for each worker and a tally: here what is new."""
        said: set[str] = set()

        def print_new(lines: list[str], tally: str) -> None:
            for line in [*lines, tally]:
                if line not in said:
                    said.add(line)
                    self.say(line)

        yield print_new
