"""Progress on terminals of any width, and in files."""

import io

import pytest
import rich.console

from train.launch import display
from train.launch.display import Display


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_line_fits(width):
    file = io.StringIO()
    console = rich.console.Console(file=file, width=width, force_terminal=True)
    shown = Display(console, "split-cifar100 tag-rmsprop seed 1", [250] * 20)
    with shown.showing():
        shown.step(0, 1, 1.6)
        shown.evaluated(0, 0.8123)
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
    now = iter([0.0, 1.0, 2.0, 12.5, 12.5, 13.0])
    monkeypatch.setattr(display.time, "monotonic", lambda: next(now))
    shown = Display(console, "run", [100])
    shown.step(0, 10, 3.0)
    shown.step(0, 20, 2.0)
    shown.step(0, 50, 1.0)  # 11.5 seconds after the first line of steps was seen.
    shown.step(0, 60, 1.0)
    (line,) = console.file.getvalue().splitlines()
    assert line == "run  task 1/1  step 50/100  3.5 steps/s  loss 1.000  0:14 left"
