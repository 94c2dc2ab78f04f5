"""What a terminal shows while runs go on: live lines, where `run.progress` prints plain ones."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import rich.console
import rich.live
import rich.progress
import rich.text

from train.run.progress import Progress, RunProgress


class Display(Progress):
    """Plain lines, or a live display where the console is a terminal."""

    def __init__(self, console: rich.console.Console):
        self.console = console
        # As it is: brackets or :x: in a path or an error are no markup, no word is broken.
        plain: Any = dict(soft_wrap=True, highlight=False, markup=False, emoji=False)
        super().__init__(lambda line: console.print(line, **plain))

    def run(self, label: str, steps: Sequence[int]) -> RunProgress:
        if not self.console.is_terminal:
            return super().run(label, steps)
        return _LiveRun(self.console, self.say, label, steps)

    @contextlib.contextmanager
    def workers(self) -> Iterator[Callable[[list[str], str], None]]:
        if not self.console.is_terminal:
            with super().workers() as print_new:
                yield print_new
            return
        with rich.live.Live(console=self.console, transient=True) as live:

            def draw(lines: list[str], tally: str) -> None:
                text = "\n".join([*lines, tally])
                live.update(rich.text.Text(text, no_wrap=True, overflow="ellipsis"))

            yield draw


class _LiveRun(RunProgress):
    """A line with a bar that is drawn over and over."""

    def __init__(self, console: rich.console.Console, *of_run: Any):
        super().__init__(*of_run)
        bar, status = rich.progress.BarColumn(bar_width=10), "{task.fields[status]}"
        self._live = rich.progress.Progress(
            "{task.description}", bar, status, console=console, transient=True
        )
        self._bar = self._live.add_task("", total=sum(self._steps), status="compiling")

    def showing(self) -> contextlib.AbstractContextManager[Any]:
        self._live.console.print(self._label, highlight=False)
        return self._live

    def show(self, done: int, where: str, status: str) -> None:
        self._live.update(self._bar, completed=done, description=where, status=status)

    def learned(self, line: str) -> None:
        """The live line says it."""
