"""Search of settings: the paper's grids, what a user can vary, and what a search decides."""

import csv
import dataclasses
import itertools
import json
import pathlib
import re

import pytest

from train.cli.main import main
from train.errors import UserError
from train.launch import grid as search
from train.launch import jobs
from train.launch.processes import Failure
from train.methods import METHODS
from train.optimizers import OPTIMIZERS
from train.paper import grids
from train.paper.presets import preset
from train.run.config import read_fields
from train.run.records import read_measured
from train.streams import Examples

from .fake_pool import FakePool

pytestmark = pytest.mark.ci

APPENDIX = pathlib.Path(__file__).parents[3] / "shared" / "paper" / "tag.tex"
SMALL = ["--stream", "rotated-digits", "--max-examples", "40", "--hidden", "8"]
GRID = pathlib.Path("grids/rotated-digits/naive/sgd/grid")
DIVERGED = Failure("The loss became nan.", diverged=True)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[2]))


def grid(*arguments, tasks=4):
    """A small grid of SGD's, by the command line."""
    command = ["grid", *SMALL, "--num-tasks", str(tasks), "--optimizer", "sgd", *arguments]
    return main(command)


def results():
    found = json.loads((GRID / "results.json").read_text())
    return {entry["settings"]["learning_rate"]: entry for entry in found}


def best():
    return read_fields(GRID / "best.json")


# The paper's grids.


@pytest.mark.skipif(not APPENDIX.exists(), reason="the paper's source is not here")
@pytest.mark.parametrize(
    ("title", "method", "optimizer"),
    [
        ("Naive SGD", "naive", "sgd"),
        ("Naive Adagrad", "naive", "adagrad"),
        ("Naive RMSProp", "naive", "rmsprop"),
        ("Naive Adam", "naive", "adam"),
        ("TAG-Adagrad", "naive", "tag-adagrad"),
        ("TAG-RMSProp", "naive", "tag-rmsprop"),
        ("TAG-Adam", "naive", "tag-adam"),
        ("EWC", "ewc", "sgd"),
        ("A-GEM", "a-gem", "sgd"),
        ("ER", "er", "sgd"),
        ("Stable SGD", "naive", "stable-sgd"),
    ],
)
def test_the_papers_grids(title, method, optimizer):
    text = APPENDIX.read_text().partition("Hyper-parameter details")[2]
    block = re.search(
        rf"\\item \\textit{{{title}}}\s*\\begin{{itemize}}(.*?)\\end{{itemize}}", text, re.DOTALL
    )
    assert block is not None
    fields = {
        "Learning rate decay": "decay",
        "Initial learning rate": "learning_rate",
        "Learning rate": "learning_rate",
        "Dropout": "dropout",
        "$b$": "b",
        r"$\lambda$ (regularization)": "ewc_lambda",
    }
    found = {}
    for name, values in re.findall(r"\\item (.*?): \[(.*)\]", block[1]):
        without_streams = re.sub(r"\([^)]*\)", "", values)
        found[fields[name]] = tuple(map(float, without_streams.split(",")))
    config = preset("split-cub", optimizer, method)
    record = (config.changed({"fisher": "batch"}) if method == "ewc" else config).record
    assert found == grids.axes(record)
    assert grids.is_papers(record)


def axes(method, optimizer):
    return grids.axes(preset("split-cub", optimizer, method).record)


def test_our_grids():
    rmsprop = axes("naive", "tag-rmsprop")
    for ablation in ("tag-g", "tag-self"):
        assert axes("naive", ablation) == rmsprop
    for ablation in ("tag-uniform", "tag-age"):
        assert axes("naive", ablation) == {"learning_rate": rmsprop["learning_rate"]}
    for method in ("er", "a-gem", "ogd", "multitask"):
        assert axes(method, "tag-rmsprop") == rmsprop
    assert axes("ewc", "tag-rmsprop") == rmsprop | {"ewc_lambda": (0.003, 0.03, 0.3)}


def test_every_grid_has_valid_cells_and_holds_its_preset():
    for method, optimizer in itertools.product(METHODS, OPTIMIZERS):
        usual = preset("split-cifar100", optimizer, method).changed({"evaluate_on": "validation"})
        cells = search.Grid(usual, dict(grids.axes(usual.record))).cells()
        assert len(set(cells)) == len(cells) >= 4
        if method == "naive":
            assert usual in cells


# What a user can vary.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vary", "learning_rat=0.1"], "Did you mean learning_rate"),
        (["--vary", "learning_rate"], "FIELD=VALUE"),
        (["--vary", "learning_rate="], "FIELD=VALUE"),
        (["--vary", "learning_rate=0.1,"], "learning_rate must be float, and is ''"),
        (["--vary", "learning_rate=fast"], "learning_rate must be float, and is 'fast'"),
        (["--vary", "epochs=1.5"], "epochs must be int, and is '1.5'"),
        (["--vary", "shared_head=maybe"], "shared_head must be bool"),
        (["--vary", "hidden=8xx8"], "hidden must be tuple"),
        (["--vary", "model=mlp"], "A grid cannot vary model"),
        (["--vary", "capacity=4,5"], "A grid cannot vary capacity: more of it extends"),
        (["--vary", "learning_rate=0.1,1e-1"], "learning_rate has 0.1 more than once"),
        (["--vary", "epochs=1", "--vary", "epochs=2"], "epochs is given more than once"),
        (["--vary", "learning_rate=0.1,-1"], "--learning-rate must be above 0"),
        (["--vary", "b=1,3"], "b is no setting of rotated-digits, naive, sgd, mlp"),
        (["--vary", "b=1,3", "--optimizer", "tag-uniform"], "--b would change nothing with"),
        (["--vary", "optimizer=sgd,adam"], "A grid cannot vary optimizer"),
        (["--vary", "evaluate_on=test"], "A grid cannot vary evaluate_on"),
        (["--evaluate-on", "test"], "never on the test part"),
        (["--learning-rate", "0.3"], "This grid varies learning_rate"),
        (["--seeds", "1", "1"], "--seeds must be"),
        (["--budget", "0"], "--budget must lie in (0, 1]"),
        (["--budget", "0.1"], "--budget 0.1 is too small: 4 cells over 4 tasks need 0.5"),
        (["--processes", "0"], "--processes must lie between 1 and"),
        (["--stop-after", "1"], "--stop-after is for a single run"),
        (["--num-tasks", "13"], "12"),
    ],
)
def test_mistakes_fail_before_any_work(capsys, arguments, message):
    assert grid(*arguments) == 2
    assert message in capsys.readouterr().err
    assert not pathlib.Path("grids").exists()


def test_multitask_has_no_tasks_to_drop(capsys):
    assert grid("--method", "multitask", "--budget", "0.9") == 2
    assert "multitask learns all tasks at once" in capsys.readouterr().err


def test_values_have_the_types_of_their_fields():
    varied = ["b=1", "epochs=2", "shared-head=true,False", "hidden=8,8x4", "order_seed=none,3"]
    found = search.axes(varied, preset("rotated-digits", "tag-rmsprop"))
    assert found == {
        "b": (1.0,),
        "epochs": (2,),
        "shared_head": (True, False),
        "hidden": ((8,), (8, 4)),
        "order_seed": (None, 3),
    }
    assert isinstance(found["b"][0], float)


# What a search decides.


def rising(config, seed, task):
    """The larger the rate the better; 1 diverges at once, 2 after two tasks; 3 crashes."""
    rate = config["learning_rate"]
    if rate == 1 or (rate == 2 and task > 2):
        return DIVERGED
    if rate == 3:
        return Failure("killed by SIGKILL")
    return rate + 0.01 * seed - 0.01 * task


def test_all_cells_to_the_end(monkeypatch, capsys):
    pool = FakePool(monkeypatch, rising)
    assert grid("--vary", "learning_rate=0.1,0.3,0.2", "--seeds", "1", "2") == 0
    rates = ["learning_rate=0.1", "learning_rate=0.3", "learning_rate=0.2"]
    assert pool.take() == [f"{rate} seed {seed}" for seed in (1, 2) for rate in rates]
    said = capsys.readouterr().out
    assert "3 cells, 2 seeds" in said
    table = said.partition("status")[2].splitlines()[2:5]
    assert [line.split() for line in table] == [
        ["0.3", "27.5", "±", "0.5", "best"],
        ["0.2", "17.5", "±", "0.5", "finished"],
        ["0.1", "7.5", "±", "0.5", "finished"],
    ]
    assert "learning_rate 0.3 is the largest tried" in said
    assert f"python -m train run --config {GRID}/best.json" in said

    assert (best()["learning_rate"], best()["evaluate_on"]) == (0.3, "test")
    found = results()
    assert list(found) == [0.3, 0.2, 0.1]
    assert found[0.3]["accuracy"] == pytest.approx(0.275)
    assert found[0.3]["deviation"] == pytest.approx(0.005)
    assert found[0.3]["seeds"] == pytest.approx({"1": 0.27, "2": 0.28})
    with (GRID / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["learning_rate"] for row in rows] == ["0.3", "0.2", "0.1"]
    assert (GRID / "results.md").read_text().splitlines()[2] == "| 0.3 | 27.5 ± 0.5 | best |"

    assert grid("--vary", "learning_rate=0.1,0.3,0.2", "--seeds", "1", "2") == 0
    assert pool.take() == []  # Nothing is missing.


def test_of_equal_cells_the_first_is_best(monkeypatch):
    FakePool(monkeypatch, lambda config, seed, task: 0.5)
    assert grid("--vary", "learning_rate=0.1,0.3,0.2") == 0
    assert best()["learning_rate"] == 0.1


def test_a_failure_costs_one_cell(monkeypatch, capsys):
    pool = FakePool(monkeypatch, rising)
    command = ["--vary", "learning_rate=0.1,1,3,0.2"]
    assert grid(*command) == 1
    said = capsys.readouterr().out
    assert "learning_rate=1 seed 1 diverged (grids/" in said
    assert "seed-1.log): The loss became nan." in said
    assert "learning_rate=3 seed 1 failed" in said
    found = results()
    assert [found[rate]["status"] for rate in (0.2, 0.1, 1, 3)] == [
        *("finished", "finished", "diverged", "failed"),
    ]
    assert found[3]["failures"] == {"1": "killed by SIGKILL"}
    assert best()["learning_rate"] == 0.2

    pool.take()
    assert grid(*command) == 1
    assert pool.take() == ["learning_rate=3 seed 1"]  # What diverged would diverge again.
    assert "diverged" in capsys.readouterr().out
    assert grid(*command, "--dry-run") == 0
    assert pool.take() == []
    said = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in said] == [
        "finished",
        "diverged",
        "missing",
        "finished",
        "4",
    ]
    assert said[-1] == "4 runs: 2 finished, 1 diverged, 1 missing."


def test_where_all_cells_fail(monkeypatch, capsys):
    FakePool(monkeypatch, rising)
    assert grid("--vary", "learning_rate=1,3") == 1
    (GRID / "best.json").write_text("{}")  # Of an earlier search.
    assert grid("--vary", "learning_rate=1,3") == 1
    assert "No cell came to the end" in capsys.readouterr().out
    assert not (GRID / "best.json").exists()


def test_another_grid_in_the_directory(monkeypatch, capsys):
    pool = FakePool(monkeypatch, rising)
    assert grid("--vary", "learning_rate=0.1,0.2") == 0
    before = (GRID / "grid.json").read_bytes()
    pool.take()
    for arguments, difference in (
        (["--vary", "learning_rate=0.1,0.3"], "learning_rate 0.1, 0.2, not 0.1, 0.3"),
        (["--vary", "epochs=1,2"], "varied learning_rate, not epochs"),
        (["--vary", "learning_rate=0.1,0.2", "--epochs", "3"], "epochs: 1, not 3"),
    ):
        capsys.readouterr()
        assert grid(*arguments) == 2
        assert difference in capsys.readouterr().err
        assert pool.take() == []
        assert (GRID / "grid.json").read_bytes() == before
    # More values are the same grid, grown.
    assert grid("--vary", "learning_rate=0.1,0.2,0.3") == 0
    assert pool.take() == ["learning_rate=0.3 seed 1"]
    assert best()["learning_rate"] == 0.3
    assert grid("--vary", "learning_rate=0.1,0.2", "--overwrite") == 0
    assert pool.take() == ["learning_rate=0.1 seed 1", "learning_rate=0.2 seed 1"]


def test_the_edge_is_where_a_grid_could_go_on(monkeypatch, capsys):
    FakePool(monkeypatch, lambda config, seed, task: config["batch_size"] / 100 - config["dropout"])
    assert grid("--vary", "dropout=0,0.1", "--vary", "batch_size=5,20,10") == 0
    said = capsys.readouterr().out
    assert "batch_size 20 is the largest tried" in said
    assert "dropout 0 is" not in said  # None is smaller.


# With a budget.


@pytest.mark.parametrize("cells", [1, 2, 3, 8, 32])
@pytest.mark.parametrize("tasks", [1, 2, 5, 10, 20])
def test_schedules_keep_to_their_budget(cells, tasks):
    spent = []
    for budget in (0.2, 0.4, 0.6, 0.8, 1.0):
        try:
            rungs = search.schedule(cells, tasks, budget)
        except UserError as error:
            least = float(str(error).split()[-1].rstrip("."))
            assert budget < least <= 1
            assert search.schedule(cells, tasks, least)
            continue
        assert search.cost(rungs) <= budget * cells * tasks + 1e-9
        assert rungs[0].cells == cells
        assert rungs[-1].tasks == tasks
        for one, following in itertools.pairwise(rungs):
            assert following.cells == -(-one.cells // 2)
            assert following.tasks > one.tasks
        spent.append(search.cost(rungs))
    assert spent[-1] == cells * tasks
    assert spent == sorted(spent)


def test_halving_says_what_it_drops_and_does_it_again(monkeypatch, capsys):
    pool = FakePool(monkeypatch, rising)
    # 2 is the best until it diverges in the third task.
    command = ["--vary", "learning_rate=0.1,0.4,1,2,0.3,0.2,0.25,0.05", "--budget", "0.5"]
    assert grid(*command, tasks=10) == 0
    said = capsys.readouterr().out
    asked = pool.take()
    assert len(asked) == 8 + 4 + 2 + 1
    assert "After task 2, 4 of 7 cells are kept. Dropped:" in said
    assert "  learning_rate=0.2, average accuracy 19.0 %" in said
    assert "After task 4, 2 of 3 cells are kept. Dropped:" in said
    assert "  learning_rate=0.25, average accuracy 22.0 %" in said
    found = results()
    assert [found[rate]["status"] for rate in (0.4, 0.3, 0.25, 0.2, 0.1, 0.05, 1, 2)] == [
        *("finished", "dropped after task 8", "dropped after task 4"),
        *3 * ["dropped after task 2"],
        *2 * ["diverged"],
    ]
    assert best()["learning_rate"] == 0.4
    # By cell: 10, 8, 4, 2, 2, 2, and before they diverged, 0 and 2.
    assert "Learned 30 of the full grid's 80 tasks, 38 %; the budget was 50 %." in said

    decided = (GRID / "results.json").read_bytes()
    assert grid(*command, tasks=10) == 0
    assert pool.take() == []
    assert capsys.readouterr().out == said
    assert (GRID / "results.json").read_bytes() == decided
    # Without a budget the dropped cells go on.
    assert grid(*command[:2], tasks=10) == 0
    assert len(pool.take()) == 5
    assert {entry["status"] for entry in results().values()} == {"finished", "diverged"}
    # And a search by the same budget decides as it did before.
    assert grid(*command, tasks=10) == 0
    assert (GRID / "results.json").read_bytes() == decided


# With processes.


@pytest.mark.usefixtures("nothing_is_drawn")
def test_a_search_in_processes(tmp_path, capsys):
    """One cell diverges, the others are finished; the winner is run on the test part."""
    arguments = ["--vary", "learning_rate=0.1,1e30", "--processes", "2"]
    assert grid(*arguments, tasks=2) == 0
    said = capsys.readouterr().out
    assert "done 1 of 2, 1 failed" in said
    assert results()[1e30]["status"] == "diverged"
    (run,) = (path.parent for path in pathlib.Path("grids").rglob("matrices.json"))
    command = json.loads((run / "environment.json").read_text())["command"]
    assert "worker" not in command
    assert read_measured(run).config["evaluate_on"] == "validation"

    stamps = {path: path.stat().st_mtime_ns for path in pathlib.Path("grids").rglob("*.log")}
    assert len(stamps) == 2
    assert grid(*arguments, tasks=2) == 0
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps

    assert main(["run", "--config", str(GRID / "best.json")]) == 0
    (tested,) = (path.parent for path in pathlib.Path("runs").rglob("matrices.json"))
    assert read_measured(tested).config["evaluate_on"] == "test"


@pytest.mark.usefixtures("nothing_is_drawn")
def test_the_test_part_is_never_read(monkeypatch):
    """A grid's cell, with a test part that cannot be read."""

    class Untouchable(Examples):
        def take(self, indices):
            raise AssertionError("the test part was read")

        def __len__(self):
            raise AssertionError("the test part was measured")

    opened = jobs.as_stream

    def with_untouchable_test(*arguments):
        stream = opened(*arguments)
        tasks = [
            task.with_parts(test=Untouchable(*vars(task.test).values())) for task in stream.tasks
        ]
        return dataclasses.replace(stream, tasks=tasks)

    monkeypatch.setattr(jobs, "as_stream", with_untouchable_test)
    base = ["run", "--stream", "rotated-digits", "--num-tasks", "2", "--hidden", "8"]
    with pytest.raises(AssertionError, match="the test part was"):
        main(base)
    assert main([*base, "--evaluate-on", "validation"]) == 0
