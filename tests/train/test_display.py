"""Progress on terminals of any width, and in files."""

import io

import pytest
import rich.console

from train.cli.display import Display
from train.run import progress


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_line_fits(width):
    file = io.StringIO()
    console = rich.console.Console(file=file, width=width, force_terminal=True)
    shown = Display(console).run("split-cifar100 tag-rmsprop seed 1", [250] * 20)
    with shown.showing():
        shown.step(0, 1, 1.6)
        shown.evaluated(0, 0.8123, percent=True)
        shown.step(19, 249, 1.234)
        shown._live.refresh()
    said = file.getvalue()
    for part in (
        "split-cifar100",
        "task 20/20",
        "step 249/250",
        "loss 1.234",
        "acc 81.2 %",
        "left",
    ):
        assert part in said
    assert "…" not in said


def test_plain_lines_come_every_ten_seconds(console, monkeypatch):
    now = iter([0.0, 1.0, 1.0, 2.0, 2.0, 12.5, 12.5, 12.5, 13.0, 13.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    shown = Display(console).run("run", [100])
    shown.step(0, 10, 3.0)
    shown.step(0, 20, 2.0)
    shown.step(0, 50, 1.0)  # 11.5 seconds after the first line of steps was seen.
    shown.step(0, 60, 1.0)
    (line,) = console.file.getvalue().splitlines()
    assert line == "run  task 1/1  step 50/100  3.5 steps/s  loss 1.000  0:14 left"


def test_a_score_that_is_no_share_is_no_percentage(console):
    shown = Display(console).run("run", [10, 10])
    shown.evaluated(0, -0.251234, percent=False)
    (line,) = console.file.getvalue().splitlines()
    assert line == "run  task 1/2 learned  average score -0.2512"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_workers_have_a_line_each(is_terminal):
    """A terminal draws them over and over; a file gets what is new."""
    file = io.StringIO()
    console = rich.console.Console(file=file, width=60, force_terminal=is_terminal)
    with Display(console).workers() as draw:
        draw(["a [bold]", "b"], "done 0 of 2")
        draw(["a [bold]", "b"], "done 1 of 2")
    said = file.getvalue()
    assert "a [bold]" in said
    assert "done 1 of 2" in said
    assert is_terminal or said.splitlines() == ["a [bold]", "b", "done 0 of 2", "done 1 of 2"]
