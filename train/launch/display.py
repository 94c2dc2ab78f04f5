"""Progress while a run goes on: a live line in a terminal, plain lines elsewhere."""

import contextlib
import time
from collections.abc import Iterator

import rich.console
import rich.progress


def duration(seconds: float) -> str:
    """
    >>> duration(3725), duration(65)
    ('1:02:05', '1:05')
    """
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def say(console: rich.console.Console, line: str) -> None:
    """As it is: brackets in a path or an error are no markup, and no word is broken."""
    console.print(line, soft_wrap=True, highlight=False, markup=False)


class Display:
    """Says where a run stands: task, step, steps/s, loss, average accuracy, time left."""

    def __init__(self, console: rich.console.Console, label: str, steps: list[int]):
        self._console = console
        self._label = label
        self._steps = steps
        self._began: tuple[float, int] | None = None
        self._said = time.monotonic()
        self._accuracy = ""
        self._live = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=10),
            rich.progress.TextColumn("{task.fields[status]}"),
            console=console,
            transient=True,
        )
        self._bar = self._live.add_task("", total=sum(steps), status="compiling")

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        """Draws the live line for as long as the context is open, if there is a terminal."""
        if self._console.is_terminal:
            self._console.print(self._label, highlight=False)
            with self._live:
                yield
        else:
            yield

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
            f"loss {loss:.3f}{self._accuracy}  {left} left"
        )
        if self._console.is_terminal:
            self._live.update(self._bar, completed=done, description=where, status=status)
        elif now - self._said > 10:
            self.say(f"{where}  {status}")

    def evaluated(self, task: int, accuracy: float) -> None:
        """After a task: the average accuracy over the tasks so far."""
        self._accuracy = f"  acc {100 * accuracy:.1f} %"
        if not self._console.is_terminal:
            learned = f"task {task + 1}/{len(self._steps)} learned"
            self.say(f"{learned}  average accuracy {100 * accuracy:.1f} %")

    def say(self, status: str) -> None:
        """A line that stays."""
        self._said = time.monotonic()
        say(self._console, f"{self._label}  {status}")
