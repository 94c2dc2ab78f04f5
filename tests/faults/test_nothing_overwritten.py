"""What a command did not make it leaves alone; what it made is resumed, or replaced whole."""

import json
import pathlib
import shutil

import pytest

from train.errors import UserError
from train.paper.presets import preset
from train.report import page
from train.run.directory import RunDirectory

from ..train.fake_runs import write_run
from .commands import call, elsewhere, nothing_trains, snapshot, write_finished

pytestmark = [pytest.mark.usefixtures(nothing_trains.__name__), pytest.mark.ci]
CONFIG = preset("rotated-digits", "tag-rmsprop").changed({"num_tasks": 2})
RUN = ["run", "--stream", "rotated-digits", "--num-tasks", "2"]


@pytest.fixture
def here():
    with elsewhere() as path:
        yield path


@pytest.mark.usefixtures("nothing_is_drawn")
@pytest.mark.parametrize("name", ["notes.txt", "results.csv", "report.html", "report.md"])
def test_a_report_among_other_files_is_refused(here, name):
    write_run(here / "runs", CONFIG, 1)
    (here / "out").mkdir()
    (here / "out" / name).write_text("mine")
    before = snapshot(here)
    ended = call("report", "runs", "--out", "out")
    assert ended.code == 2
    assert f"out holds {name} and no report: move it away, or choose another --out" in ended.err
    assert snapshot(here) == before


@pytest.mark.usefixtures("nothing_is_drawn")
def test_a_report_replaces_its_own_files_alone(here):
    write_run(here / "runs", CONFIG, 1)
    (here / "out").mkdir()  # Empty: as good as new.
    assert call("report", "runs", "--out", "out").code == 0
    (here / "out" / "notes.txt").write_text("mine")
    first = snapshot(here / "out")
    write_run(here / "runs", CONFIG, 2)
    assert call("report", "runs", "--out", "out").code == 0
    second = snapshot(here / "out")
    assert second.keys() == first.keys()
    assert {name for name in first if first[name] != second[name]} == set(first) - {"notes.txt"}


@pytest.mark.usefixtures("nothing_is_drawn")
def test_a_report_that_fails_leaves_the_one_before(here, monkeypatch):
    write_run(here / "runs", CONFIG, 1)
    assert call("report", "runs", "--out", "out").code == 0
    first = snapshot(here / "out")
    write_run(here / "runs", CONFIG, 2)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page, "page", full)
    ended = call("report", "runs", "--out", "out")
    assert ended.code == 2
    assert "Cannot write to out: No space left on device" in ended.err
    assert snapshot(here / "out") == first


@pytest.mark.usefixtures("nothing_is_drawn")
def test_a_report_that_was_killed_is_written_again(here):
    write_run(here / "runs", CONFIG, 1)
    (here / "out" / ".unfinished-abc").mkdir(parents=True)
    (here / "out" / ".unfinished-abc" / "report.md").touch()
    assert call("report", "runs", "--out", "out").code == 0


def test_the_report_of_a_run_is_refused_and_the_run_is_kept(here):
    place = write_finished(here / "runs", CONFIG, 1)
    (place.parent / "report").mkdir()
    (place.parent / "report" / "notes.txt").write_text("mine")
    before = snapshot(here)
    ended = call(*RUN)
    assert ended.code == 2
    assert "report holds notes.txt and no report" in ended.err
    assert snapshot(here) == before


@pytest.mark.parametrize("name", ["best.json", "results.md", "diverged.json"])
def test_files_where_a_grid_would_write(here, name):
    directory = here / "grids/rotated-digits/naive/sgd/grid"
    directory.mkdir(parents=True)
    (directory / name).write_text("{}")
    before = snapshot(here)
    command = ["grid", "--stream", "rotated-digits", "--optimizer", "sgd", "--vary", "epochs=1,2"]
    ended = call(*command)
    assert ended.code == 2
    assert f"holds {name} and no grid.json" in ended.err
    assert snapshot(here) == before
    assert call(*command, "--overwrite").code == 1


def test_the_run_of_another_seed_is_refused(here):
    """As after `cp -r seed-1 seed-2`: it would go on with the state of seed 1."""
    RunDirectory(here / "seed-1", CONFIG, 1).close()
    shutil.copytree(here / "seed-1", here / "seed-2")
    with pytest.raises(UserError, match="seed"):
        RunDirectory(here / "seed-2", CONFIG, 2).close()


@pytest.mark.parametrize("name", ["metrics.jsonl", "matrices.json", "environment.json", "notes"])
def test_a_directory_that_is_no_runs_is_refused(here, name):
    """A run would write its own metrics.jsonl over it."""
    (here / "seed-1").mkdir()
    (here / "seed-1" / name).write_text("mine")
    with pytest.raises(UserError):
        RunDirectory(here / "seed-1", CONFIG, 1).close()


def test_a_refused_directory_is_left_as_it_was(here):
    (here / "seed-1").mkdir()
    other = preset("split-cub", "sgd").flat() | {"seed": 1}
    (here / "seed-1" / "config.json").write_text(json.dumps(other))
    before = snapshot(here)
    with pytest.raises(UserError, match="other settings"):
        RunDirectory(here / "seed-1", CONFIG, 1)
    assert snapshot(here) == before


@pytest.mark.slow
def test_names_are_drawn_as_they_are(here, draw):
    """No mathematics, no markup, in a plot or a page."""
    draw()
    odd = preset("rotated-digits", "tag-rmsprop", model="resnet18")
    odd = odd.changed({"num_tasks": 2, "pretrained": "$x^$_<b>[/x]&.npz"})
    for config in (CONFIG, odd):
        write_run(here / "runs", config, 1)
    for file in here.glob("runs/**/matrices.json"):
        file.write_text(file.read_text().replace("<1>", "$x^$ & <i>"))
    ended = call("report", "runs", "--out", "out")
    assert ended.code == 0, ended
    assert "$x^$ &amp; &lt;i&gt;" in pathlib.Path("out/report.html").read_text("utf-8")
