"""The command line as a user meets it: every command, every stream, and what one can get wrong."""

import csv
import json
import os
import pathlib
import re
import signal
import threading
import time

import numpy as np
import pytest

from train.cli.arguments import DemoCommand, parse
from train.cli.main import main
from train.launch import processes
from train.launch.processes import Failure
from train.paper.presets import preset
from train.run.records import read_measured
from train.streams import STREAMS, prepare

from .fake_runs import write_run
from .tiny_data import write_all

ROOT = pathlib.Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
DIGITS = ["--stream", "rotated-digits"]
SHORT = [*DIGITS, "--max-examples", "40", "--hidden", "8"]
QUICK = [*SHORT, "--num-tasks", "2", "--optimizer", "sgd"]
# Where its runs go: settings other than the preset's are part of the name, but not how long it is.
QUICK_RUNS = "rotated-digits/naive/sgd/max_examples=40,hidden=8"
pytestmark = pytest.mark.usefixtures("nothing_is_drawn")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Nothing of the machine's own data or settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("TAG_OPTAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # For the processes that commands start.


def test_run_and_again(tmp_path, capsys, draw):
    command = ["run", *SHORT, "--num-tasks", "2", "--optimizer", "tag-rmsprop", "--seeds", "3"]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "task 2/2 learned" in first
    assert "tag-rmsprop" in first
    run = tmp_path / "runs" / QUICK_RUNS.replace("sgd", "tag-rmsprop") / "seed-3"
    assert json.loads((run / "config.json").read_text())["seed"] == 3
    environment = json.loads((run / "environment.json").read_text())
    assert environment["packages"].keys() >= {"tag_optax", "jax", "optax", "flax"}
    assert environment["devices"]
    before = (run / "metrics.jsonl").stat().st_mtime_ns
    draw()
    assert main(command) == 0  # Finished: only the report is made again.
    assert "learned" not in capsys.readouterr().out.partition("optimizer")[0]
    assert (run / "metrics.jsonl").stat().st_mtime_ns == before
    plots = list((run.parent / "report").glob("*.png"))
    assert len(plots) == 6
    assert all(plot.stat().st_size > 10_000 for plot in plots)


@pytest.mark.ci
def test_several_seeds_side_by_side_and_once_more(tmp_path, capsys):
    command = ["run", *QUICK, "--seeds", "1", "2", "--parallel", "vmap"]
    assert main(command) == 0
    runs = [read_measured(tmp_path / "runs" / QUICK_RUNS / f"seed-{s}") for s in (1, 2)]
    assert all(run.finished for run in runs)
    assert not np.array_equal(runs[0].accuracy, runs[1].accuracy)
    assert "±" in capsys.readouterr().out
    records = [tmp_path / "runs" / QUICK_RUNS / f"seed-{seed}/metrics.jsonl" for seed in (1, 2)]
    before = [record.read_bytes() for record in records]
    for record in records:
        record.unlink()
    assert main([*command, "--overwrite"]) == 0
    assert [record.read_bytes() for record in records] == before


@pytest.mark.parametrize(
    "parallel",
    # test_grid.py has real processes, test_sweep.py the ways in which one fails.
    ["serial", pytest.param("processes", marks=pytest.mark.slow)],
)
def test_several_seeds_and_one_that_fails(tmp_path, capsys, parallel):
    blocked = tmp_path / "runs" / QUICK_RUNS / "seed-2"
    blocked.mkdir(parents=True)
    other = '{"stream": "rotated-digits", "optimizer": "sgd", "model": "mlp", "seed": 2}'
    (blocked / "config.json").write_text(other)
    code = main(["run", *QUICK, "--seeds", "2", "1", "--parallel", parallel])
    said = capsys.readouterr().out
    assert code == 1
    assert read_measured(blocked.parent / "seed-1").finished
    assert "seed 2 failed" in said
    assert "other settings" in said
    assert (blocked / "config.json").read_text() == other


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no choice of cores here")
def test_cores_are_shared_equally(monkeypatch):
    """Sums depend on the number of cores: all seeds of a command must have the same."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 5, 7})
    assert processes.share_cores(9) == [{0}, {1}, {2}, {5}, {7}]
    assert processes.share_cores(2) == [{0, 1}, {2, 5}]
    assert processes.share_cores(1) == [{0, 1, 2, 5, 7}]


def test_a_seed_left_over_gets_the_cores_it_had(monkeypatch):
    command = ["run", *QUICK, "--seeds", "1", "2", "--parallel", "processes"]
    assert main(["run", *QUICK, "--seeds", "1"]) == 0
    asked = []

    def note(jobs, console, *, processes, done):
        asked.append(([job.seed for job in jobs], processes, done))
        return {jobs[0]: Failure("not really run")}

    monkeypatch.setattr(processes, "run_jobs", note)
    main(command)
    assert asked == [([2], 2, 1)]


@pytest.mark.parametrize(
    ("before", "after"),
    # test_loop.py goes from each way to each other, without the command line.
    [("vmap", "serial"), pytest.param("serial", "vmap", marks=pytest.mark.slow)],
)
def test_stop_after_a_task_and_go_on(tmp_path, capsys, before, after):
    """However it was begun."""
    command = ["run", *QUICK, "--seeds", "1", "2", "--parallel", before]
    assert main([*command, "--out", "whole"]) == 0
    capsys.readouterr()
    assert main([*command, "--stop-after", "1"]) == 0
    said = capsys.readouterr().out
    assert "Stopped after task 1 of 2, as asked" in said
    assert "task 2/2" not in said
    runs = tmp_path / "runs" / QUICK_RUNS
    assert not (runs / "report").exists()
    assert main([*command, "--stop-after", "1"]) == 0  # Nothing left of it to do.
    assert "learned" not in capsys.readouterr().out
    assert main([*command[:-1], after]) == 0
    said = capsys.readouterr().out
    assert "task 1/2" not in said
    assert "Stopped" not in said
    for seed in (1, 2):
        records = [
            tmp_path / out / QUICK_RUNS / f"seed-{seed}/metrics.jsonl" for out in ("runs", "whole")
        ]
        assert records[0].read_bytes() == records[1].read_bytes()


def test_more_tasks_extend_a_run(tmp_path, capsys):
    run = tmp_path / "runs" / QUICK_RUNS / "seed-1"
    assert main(["run", *QUICK]) == 0
    before = (run / "metrics.jsonl").read_bytes()
    capsys.readouterr()
    assert main(["run", *SHORT, "--num-tasks", "3", "--optimizer", "sgd"]) == 0
    said = capsys.readouterr().out
    assert "task 3/3 learned" in said
    assert "task 2/3" not in said
    assert (run / "metrics.jsonl").read_bytes().startswith(before)
    extended = read_measured(run)
    assert extended.finished
    assert len(extended.accuracy) == extended.config["num_tasks"] == 3
    assert main(["run", *QUICK]) == 2  # It cannot be shortened.
    assert "holds a run of 3 tasks, and this one has 2" in capsys.readouterr().err


def test_demo(tmp_path, capsys):
    """The embedded comparison shows what it promises, at one seed here."""
    assert main(["demo", "--seeds", "1"]) == 0
    report = tmp_path / "runs/rotated-digits/report"
    rows = list(csv.DictReader((report / "results.csv").read_text().splitlines()))
    found = {
        name: [row for row in rows if row["optimizer"] == name]
        for name in ("rmsprop", "tag-rmsprop")
    }
    accuracy, forgetting = (
        {name: float(run[column]) for name, (run,) in found.items()}
        for column in ("accuracy", "forgetting")
    )
    assert accuracy["tag-rmsprop"] > accuracy["rmsprop"]
    assert forgetting["tag-rmsprop"] < forgetting["rmsprop"]
    assert "report.md, report.html" in capsys.readouterr().out


def test_no_command_is_the_demo():
    assert isinstance(parse([]), DemoCommand)


def test_report_of_chosen_runs(tmp_path, capsys):
    tag = preset("rotated-digits", "tag-rmsprop")
    write_run(tmp_path / "first", preset("rotated-digits", "sgd"), 1)
    write_run(tmp_path / "first", tag, 1)
    write_run(tmp_path / "second", tag.changed({"b": 1.0}), 1)
    assert main(["report", "first", "second", "--out", "together"]) == 0
    said = capsys.readouterr().out
    # What tells a config from its preset is named.
    names = re.findall(r"^tag-rmsprop(?: \(.*?\))?", said, flags=re.MULTILINE)
    assert names == ["tag-rmsprop", "tag-rmsprop (b 1.0)"]
    assert (tmp_path / "together/report.md").read_text().count("| sgd |") == 1
    assert len((tmp_path / "together/results.csv").read_text().splitlines()) == 4


def test_report_of_nothing(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["report", "empty"]) == 2
    assert "No finished run" in capsys.readouterr().err
    assert main(["report", "nowhere"]) == 2
    assert "no directory nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in STREAMS if name != "rotated-digits"])
def test_missing_data_name_the_command(name, capsys):
    assert main(["run", "--stream", name, "--seeds", "1", "2"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert f"python -m train prepare {name}" in said
    assert not pathlib.Path("runs").exists()


def test_data_lists_every_stream(tmp_path, capsys):
    assert main(["data"]) == 0
    said = capsys.readouterr().out
    for name in STREAMS:
        assert name in said
    assert str(tmp_path / "data") in said
    assert said.count("missing") == 10
    assert "python -m train prepare split-cifar100" in said
    assert "comes with scikit-learn" in said


def test_prepare_the_embedded_stream(capsys):
    assert main(["prepare", "rotated-digits"]) == 0
    assert "nothing to prepare" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rum"], "Did you mean run"),
        (["run", "--stream", "split-cifar10"], "Did you mean split-cifar100"),
        (["run", "--optimizer", "tag-rmsprob"], "Did you mean tag-rmsprop"),
        (["run", "--model", "resnet"], "Did you mean resnet18"),
        (["run", "--learning-rat", "1"], "--learning-rate"),
        (["run", "--learning-rate", "fast"], "fast"),
        (["run", "--learning-rate", "-1"], "--learning-rate must be above 0"),
        (["run", "--optimizer", "sgd", "--b", "3"], "--b is a setting of --optimizer tag-rmsprop"),
        (["run", "--loss", "cross"], "Unknown loss 'cross'. Valid: auto, cross-entropy"),
        (["run", "--optimizer", "no.where:x"], "--optimizer no.where:x: there is no module no."),
        (["run", "--optimizer", "optax:nothing"], "optax has no attribute nothing"),
        (["run", *SHORT, "--optimizer", "os:getcwd"], "An optimizer must be an optax"),
        (["run", "--method", "math:pi"], "--method math:pi must be a train.Method"),
        (["run", "--score", "math:pi"], "--score math:pi must be a function (outputs, targets)"),
        (["run", *DIGITS, "--model", "math:pi"], "A model must be a function that takes rngs"),
        (["run", "--stream", "os:getcwd"], "A stream must be a train.Stream"),
        (["run", *QUICK, "--capacity", "1"], "--capacity 1 is less than the 2 tasks"),
        (["run", *QUICK, "--seeds"], "--seeds must be"),
        (["run", *QUICK, "--seeds", "1", "1"], "--seeds must be"),
        (["run", *QUICK, "--keep", "0"], "--keep must be at least 1"),
        (["run", *QUICK, "--stop-after", "0"], "--stop-after must be at least 1"),
        (["run", *DIGITS, "--num-tasks", "13"], "12"),
        (["run", "--config", "nowhere.json"], "no config file nowhere.json"),
        (["prepare", "split-cifar10"], "split-cifar100"),
    ],
)
def test_mistakes_fail_before_any_work(capsys, arguments, message):
    with pytest.raises(SystemExit) as exit_code:
        raise SystemExit(main(arguments))
    assert exit_code.value.code == 2
    captured = capsys.readouterr()
    assert message in captured.err + captured.out
    assert "Traceback" not in captured.err
    assert not pathlib.Path("runs").exists()


def test_a_config_file_and_what_contradicts_it(tmp_path, capsys):
    assert main(["run", *QUICK, "--stop-after", "1"]) == 0
    file = tmp_path / "runs" / QUICK_RUNS / "seed-1/config.json"
    other = ["--out", "other", "--epochs", "2", "--stop-after", "1"]
    assert main(["run", "--config", str(file), *other]) == 0
    (again,) = (json.loads(path.read_text()) for path in tmp_path.glob("other/**/config.json"))
    assert again == json.loads(file.read_text()) | {"epochs": 2}
    capsys.readouterr()
    assert main(["run", "--config", str(file), "--optimizer", "adam"]) == 2
    assert "contradicts" in capsys.readouterr().err


def test_a_config_file_that_names_a_few_settings(tmp_path):
    """The preset of what it names has the others."""
    file = tmp_path / "mine.json"
    file.write_text('{"stream": "five-datasets", "optimizer": "tag-adam", "epochs": 2}')
    config = parse(["run", "--config", str(file), "--b", "3"]).config
    assert config["learning_rate"] == 0.001
    assert (config["batch_size"], config["epochs"], config["b"]) == (64, 2, 3.0)


def test_weights_that_do_not_fit_leave_no_run(capsys, stand_ins):
    np.savez("weights.npz", extra=np.zeros(3))
    command = ["run", "--stream", "split-cub", "--pretrained", "weights.npz", *stand_ins]
    assert main(command) == 2
    assert "extra is not in the model" in capsys.readouterr().err
    assert not pathlib.Path("runs").exists()


def test_a_changed_setting_is_a_run_of_its_own(tmp_path, capsys):
    quick = ["run", *QUICK, "--stop-after", "1"]
    assert main(quick) == 0
    assert main([*quick, "--learning-rate", "0.5"]) == 0
    changed = QUICK_RUNS.replace("/max", "/learning_rate=0.5,max")
    for name, rate in ((changed, 0.5), (QUICK_RUNS, 0.1)):
        assert read_measured(tmp_path / "runs" / name / "seed-1").config["learning_rate"] == rate


def test_a_directory_with_other_settings_is_refused_by_name(tmp_path, capsys):
    quick = ["run", *QUICK, "--stop-after", "1"]
    assert main(quick) == 0
    file = tmp_path / "runs" / QUICK_RUNS / "seed-1/config.json"
    file.write_text(file.read_text().replace('"learning_rate": 0.1', '"learning_rate": 0.5'))
    assert main(quick) == 2
    assert "learning_rate: 0.5, not 0.1" in capsys.readouterr().err
    assert main([*quick, "--overwrite"]) == 0


@pytest.mark.parametrize(
    "command", ["", "run", "grid", "sweep", "demo", "data", "prepare", "report"]
)
def test_help(capsys, command):
    with pytest.raises(SystemExit) as exit_code:
        main([*([command] if command else []), "--help"])
    assert exit_code.value.code == 0
    assert "usage: python -m train" in capsys.readouterr().out


def test_help_shows_the_preset(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--stream", "split-cub", "--optimizer", "tag-adam", "--help"])
    said = capsys.readouterr().out
    assert "Step size. (default: 0.0001)" in said


def test_help_shows_the_settings_of_what_is_named_alone(capsys):
    said = []
    for named in (["--optimizer", "sgd"], ["--method", "ewc"]):
        with pytest.raises(SystemExit):
            main(["run", *named, "--help"])
        said.append(capsys.readouterr().out)
    for option, shown in (("--momentum ", [True, False]), ("--b ", [False, True])):
        assert [option in each for each in said] == shown
    assert ["--ewc-lambda " in each for each in said] == [False, True]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, capsys, signum):
    command = ["run", *DIGITS, "--optimizer", "sgd", "--epochs", "50", "--steps-per-call", "1"]
    run = tmp_path / "runs/rotated-digits/naive/sgd/epochs=50,steps_per_call=1/seed-1"

    def send_once_started():
        records = run / "metrics.jsonl"
        while not records.exists() or not records.stat().st_size:
            time.sleep(0.01)
        os.kill(os.getpid(), signum)

    sender = threading.Thread(target=send_once_started)
    sender.start()
    assert main(command) == 128 + signum
    sender.join()
    last = capsys.readouterr().out.splitlines()[-1]
    assert "everything is saved" in last
    assert "python -m train run --stream rotated-digits --optimizer sgd --epochs 50" in last
    assert any((run / "checkpoints").iterdir())


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory):
    directory = tmp_path_factory.mktemp("stand-ins")
    write_all(directory)
    return ["--data-dir", str(directory)]


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name == "split-cub"))  # 224 x 224 pixels
        for name in STREAMS
    ],
)
def test_every_stream_to_its_end(name, tmp_path, stand_ins, capsys):
    """On tiny stand-ins, with a network that compiles fast; the real ones are tested below."""
    small = ["--model", "mlp", "--hidden", "8", "--max-examples", "10", "--optimizer", "sgd"]
    code = main(["run", "--stream", name, *small, *stand_ins])
    assert code == 0, capsys.readouterr()
    (run,) = (path.parent for path in tmp_path.glob(f"runs/{name}/naive/**/config.json"))
    result = read_measured(run)
    assert result.finished
    assert len(result.accuracy) == STREAMS[name].num_tasks


@pytest.fixture(scope="session")
def real_data(tmp_path_factory):
    """The data at hand: prepared ones, and two that our builders prepare from raw files."""
    if not SHARED.exists():
        pytest.skip("the real data are not here")
    made = tmp_path_factory.mktemp("prepared")
    places = [SHARED / "tfds", SHARED / "tfds_subset", made]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFDS_DATA_DIR", os.pathsep.join(map(str, places)))
        for name in ("split-mini-imagenet", "five-datasets"):
            prepare(name, manual_dir=SHARED / "raw", data_dir=made)
    return ["--data-dir", *map(str, places), "--cache-dir", str(tmp_path_factory.mktemp("cache"))]


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_every_stream_on_real_data(name, tmp_path, real_data, capsys):
    """The preset's own network, on a few examples of every task."""
    short = ["--batch-size", "4", "--max-examples", "8"]
    code = main(["run", "--stream", name, *short, *real_data])
    assert code == 0, capsys.readouterr()
    (run,) = (path.parent for path in tmp_path.glob(f"runs/{name}/naive/**/config.json"))
    result = read_measured(run)
    assert result.finished
    assert len(result.accuracy) == STREAMS[name].num_tasks
