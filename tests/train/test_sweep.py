"""Many runs in one directory: what a plan says, what is missing, and what a stop leaves."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from train.cli import commands
from train.cli.display import Display
from train.cli.main import main
from train.errors import DIVERGED, UserError
from train.launch import processes, sweep
from train.launch.jobs import Job, Places, Streams
from train.launch.processes import Failure
from train.paper.presets import experiment, preset
from train.run import directory
from train.run.directory import Keeping
from train.run.signals import Stopped

from .fake_pool import FakePool

pytestmark = pytest.mark.ci

ROOT = pathlib.Path(__file__).parents[2]
SGD = ["--streams", "rotated-digits", "--optimizers", "sgd"]
OGD = [*SGD, "--methods", "naive", "ogd"]
SMALL = """
streams = ["rotated-digits"]
optimizers = ["sgd", "adam"]
seeds = [1, 2]

[settings]
num_tasks = 2
max_examples = 40
hidden = [8]
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def reported(monkeypatch):
    """The runs of each report, which is not made."""
    found = []
    monkeypatch.setattr(commands, "_report", lambda roots, out, display: found.append((roots, out)))
    return found


def write(text, name="sweep.toml"):
    pathlib.Path(name).write_text(text)
    return name


def plan(text, **options):
    path = pathlib.Path(write(text))
    return sweep.plan(options, sweep.read(path), preset)


def jobs(cells):
    def directory_of(config):
        return experiment(pathlib.Path("sweep"), config.record)

    return sweep.jobs(cells, directory_of, Streams(Places()), Keeping())


# What a plan says.


def test_entries_inherit_and_are_united():
    cells = plan(
        SMALL
        + """
        [[runs]]

        [[runs]]
        methods = ["er"]
        optimizers = ["sgd"]
        seeds = [3]
        settings = { memory_per_class = 5, num_tasks = 3 }

        [[runs]]  # The first once more, with another seed.
        optimizers = ["sgd"]
        seeds = [2, 7]
        """
    )
    names = ("method", "optimizer", "num_tasks", "hidden")
    found = [(*(c.record[name] for name in names), seeds) for c, seeds in cells.items()]
    assert found == [
        ("naive", "sgd", 2, (8,), (1, 2, 7)),
        ("naive", "adam", 2, (8,), (1, 2)),
        ("er", "sgd", 3, (8,), (3,)),
    ]
    assert list(cells)[2]["memory_per_class"] == 5
    listed = jobs(cells)
    assert [(job.seed, job.config.optimizer.name) for job in listed] == [
        *((1, "sgd"), (1, "adam"), (3, "sgd")),  # Every method has its first seed early.
        *((2, "sgd"), (2, "adam"), (7, "sgd")),
    ]
    assert len({job.name for job in listed}) == len(listed)


def test_options_replace_what_the_file_says_for_all():
    text = SMALL + '[[runs]]\n[[runs]]\noptimizers = ["sgd"]\nsettings = {epochs = 5}\n'
    cells = plan(text, seeds=[4], settings={"epochs": 2})
    assert [(c["optimizer"], c["epochs"], c["num_tasks"], s) for c, s in cells.items()] == [
        *(("sgd", 2, 2, (4,)), ("adam", 2, 2, (4,)), ("sgd", 5, 2, (4,))),
    ]


def test_configs_of_one_method_are_told_apart():
    text = 'streams = ["split-cub"]\nmethods = ["er"]\noptimizers = ["sgd"]\n'
    text += "".join(f"[[runs]]\nsettings = {{memory_per_class = {m}}}\n" for m in (1, 5))
    names = [job.name for job in jobs(plan(text))]
    assert names == [f"split-cub er + sgd memory_per_class={m} seed 1" for m in (1, 5)]


def test_the_example_of_the_readme():
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    cells = plan(text)
    assert {config.stream.name for config in cells} == {"split-cifar100"}
    assert set(cells.values()) == {(1, 2, 3)}
    found = {(c.record.label, c.flat().get("memory_per_class")) for c in cells}
    paper = {"sgd", "rmsprop", "stable-sgd", "tag-rmsprop", "ewc + sgd", "a-gem + sgd", "er + sgd"}
    keeping = {("a-gem + sgd", 1), *(("er + sgd", size) for size in (1, 5, 10))}
    without = (paper | {"multitask + sgd"}) - {label for label, _ in keeping}
    assert found == keeping | {(label, None) for label in without}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("streams = [", "no readable TOML file"),
        ("stream = ['rotated-digits']", "unknown key stream. Did you mean streams"),
        (SMALL + "epoch = 2", "epoch is no setting of rotated-digits, .* Did you mean epochs"),
        (SMALL + "epochs = 'two'", 'epochs must be int, and is "two"'),
        (SMALL + "epochs = 2025-01-01", 'epochs must be int, and is "2025-01-01"'),
        (SMALL + "b = 3", "sweep.toml: b is no setting of rotated-digits, naive, sgd, mlp"),
        (SMALL + "method = 'er'", "method is no setting of a sweep: list it under methods"),
        (SMALL + "[[runs]]\nmethod = ['er']", "entry 1: unknown key method. Did you mean methods"),
        (SMALL + "[[runs]]\n[[runs]]\nsettings = {decay = 0.5}", "entry 2: decay is no setting of"),
        (SMALL + "[runs]\nseeds = [1]", r"write the entries of runs as \[\[runs\]\]"),
        (SMALL + "[[runs]]\nstreams = ['rotated-digit']", "Did you mean rotated-digits"),
        ("streams = 'rotated-digits'", "streams must be a list of names"),
        ("streams = []", "streams must be a list of names"),
        ("seeds = [1.5]", "seeds must be a list of numbers"),
        ("seeds = [true]", "seeds must be a list of numbers"),
        ("settings = 3", "settings must be a table"),
        (SMALL.replace("[1, 2]", "[1, 1]"), "sweep.toml: --seeds must be"),
        ("optimizers = ['sgd']", "A sweep needs streams"),
        ("streams = ['split-cub']", "A sweep needs optimizers"),
    ],
)
def test_bad_files(text, message):
    with pytest.raises(UserError, match=message):
        plan(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.toml"], "no sweep file nowhere.toml"),
        ([], "A sweep needs streams"),
        (["--streams", "rotated-digit"], "Did you mean rotated-digits"),
        (["--optimizers", "sgd", "adm"], "Did you mean adam"),
        (["--methods", "ers"], "Did you mean er"),
        ([*SGD, "--set", "epoch=2"], "epoch is no setting of rotated-digits"),
        (["--set", "epochs"], "FIELD=VALUE"),
        (["--streams", "split-cub", "--optimizers", "sgd"], "python -m train prepare split-cub"),
        ([*SGD, "--processes", "0"], "--processes"),
        ([*OGD, "--set", "max_examples=5"], "task '0 deg' of rotated-digits has only 5"),
    ],
)
def test_mistakes_fail_before_any_work(capsys, arguments, message):
    assert main(["sweep", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not pathlib.Path("sweep").exists()


# What is missing.


def test_only_what_is_missing(monkeypatch, reported, capsys):
    pool = FakePool(monkeypatch, lambda config, seed, task: 0.5)
    command = ["sweep", write(SMALL)]
    assert main([*command, "--seeds", "1"]) == 0
    assert pool.take() == ["rotated-digits sgd seed 1", "rotated-digits adam seed 1"]
    capsys.readouterr()
    assert main([*command, "--dry-run"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == [*2 * ["finished"], *2 * ["missing"], "4"]
    assert said[-1] == "4 runs: 2 finished, 2 missing."
    assert len(json.loads(pathlib.Path("sweep/sweep.json").read_text())[0]["seeds"]) == 1
    # More seeds are the same sweep, grown.
    assert main(command) == 0
    assert pool.take() == ["rotated-digits sgd seed 2", "rotated-digits adam seed 2"]
    assert main(command) == 0
    assert pool.take() == []
    (first, _), *_, (last, out) = reported
    assert (len(first), len(last), out) == (2, 4, pathlib.Path("sweep/report"))


def test_one_failure_costs_one_run(monkeypatch, reported, capsys):
    broken = {("adam", 1)}
    pool = FakePool(
        monkeypatch,
        lambda c, seed, task: Failure("broken") if (c["optimizer"], seed) in broken else 0.5,
    )
    assert main(["sweep", write(SMALL)]) == 1
    said = capsys.readouterr().out
    assert "rotated-digits adam seed 1 failed (sweep/" in said
    assert "seed-1.log): broken" in said
    ((roots, _),) = reported
    assert len(roots) == 3
    broken.clear()
    pool.take()
    assert main(["sweep", "sweep.toml"]) == 0
    assert pool.take() == ["rotated-digits adam seed 1"]


@pytest.mark.parametrize(
    ("arguments", "difference"),
    [
        (["--seeds", "1"], "it has seed 2 of rotated-digits sgd too"),
        (["--optimizers", "sgd"], "it has rotated-digits adam too"),
        (["--set", "epochs=3"], "its rotated-digits sgd has epochs: 1, not 3"),
    ],
)
def test_another_sweep_in_the_directory(monkeypatch, reported, capsys, arguments, difference):
    pool = FakePool(monkeypatch, lambda config, seed, task: 0.5)
    assert main(["sweep", write(SMALL)]) == 0
    pool.take()
    before = pathlib.Path("sweep/sweep.json").read_bytes()
    assert main(["sweep", "sweep.toml", *arguments]) == 2
    assert difference in capsys.readouterr().err
    assert pool.take() == []
    assert pathlib.Path("sweep/sweep.json").read_bytes() == before
    assert main(["sweep", "sweep.toml", *arguments, "--overwrite"]) == 0
    assert len(pool.take()) == len(reported[-1][0]) > 0


def test_a_config_that_is_missing_is_told_from_its_twins(monkeypatch, reported, capsys):
    FakePool(monkeypatch, lambda config, seed, task: 0.5)
    entries = [f"[[runs]]\nsettings = {{epochs = {epochs}}}\n" for epochs in (1, 2)]
    assert main(["sweep", write(SMALL + "".join(entries))]) == 0
    assert main(["sweep", write(SMALL + entries[0])]) == 2
    assert "it has rotated-digits sgd epochs=2 too" in capsys.readouterr().err


def test_two_sweeps_cannot_share_a_directory(monkeypatch, capsys):
    pathlib.Path("sweep").mkdir()
    lock = directory.lock(pathlib.Path("sweep"))
    assert main(["sweep", write(SMALL)]) == 2
    assert "Another process is at work in sweep" in capsys.readouterr().err
    os.close(lock)


# With processes.


def results(out):
    """What every run measured, to the bit."""
    found = sorted(pathlib.Path(out).rglob("metrics.jsonl"))
    return {path.relative_to(out): path.read_bytes() for path in found}


def stop_once_started(out):
    """Sends SIGTERM to this process, as soon as a run has something to lose."""
    while not any(content for content in results(out).values()):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow  # tests/faults stops single runs in the fast suite.
def test_stopped_and_resumed_to_the_bit(capsys):
    longer = "--set=epochs=120", "--set=steps_per_call=1", "--set=log_every=1", "--processes=2"
    command = ["sweep", write(SMALL), "--seeds", "1", *longer]
    thread = threading.Thread(target=stop_once_started, args=["sweep"])
    thread.start()
    assert main(command) == 128 + signal.SIGTERM
    thread.join()
    said = capsys.readouterr().out
    assert "Stopped at 0 of 2 runs; everything is saved. To go on: python -m train sweep" in said
    partly = results("sweep")
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "done 2 of 2" in said
    assert "sgd" in said.partition("Written to")[0].partition("accuracy %")[2]
    assert pathlib.Path("sweep/report/report.md").exists()

    assert main([*command, "--out", "whole"]) == 0
    assert results("sweep") == results("whole") != partly

    logs = {path: path.stat().st_mtime_ns for path in pathlib.Path("sweep").rglob("*.log")}
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in logs} == logs


def shell_jobs(script, monkeypatch, console):
    """The pool with a shell command in place of a worker."""
    real = subprocess.Popen

    def popen(command, **arguments):
        return real(["/bin/sh", "-c", script], **arguments)

    monkeypatch.setattr(processes.subprocess, "Popen", popen)
    path = pathlib.Path("runs")
    config = preset("rotated-digits", "sgd")
    listed = [
        Job(name=f"job {seed}", config=config, seed=seed, tasks=10, directory=path / f"seed-{seed}")
        for seed in (1, 2)
    ]
    return processes.run_jobs(listed, Display(console), processes=1)


@pytest.mark.parametrize(
    ("script", "why", "diverged"),
    [
        ("echo first; echo last; exit 1", "last", False),
        ("exit 7", "exit code 7", False),
        (f"echo nan; exit {DIVERGED}", "nan", True),
        ("kill -9 $$", "killed by SIGKILL, as where memory runs out", False),
    ],
)
def test_why_a_worker_failed(script, why, diverged, monkeypatch, console):
    failed = shell_jobs(script, monkeypatch, console)
    assert list(failed.values()) == 2 * [Failure(why, diverged)]
    assert "done 0 of 2, 2 failed" in console.file.getvalue()


def test_a_pool_stops_its_workers(monkeypatch, console):
    """The one at work gets the signal, the one waiting is not started."""
    threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(Stopped, match="0 of 2 runs"):
        shell_jobs("exec sleep 60", monkeypatch, console)
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_workers_end_with_their_pool():
    """A pool that is killed leaves no process behind that would hold its runs."""
    longer = ["--set=epochs=1000", "--set=steps_per_call=1", "--set=log_every=1", "--seeds", "1"]
    command = [sys.executable, "-m", "train", "sweep", write(SMALL), *longer]
    pool = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not results("sweep"):
        assert pool.poll() is None
        time.sleep(0.05)
    pool.kill()
    pool.wait()
    deadline = time.monotonic() + 30
    (run, *_) = (path.parent for path in pathlib.Path("sweep").rglob("metrics.jsonl"))
    while True:
        try:
            os.close(directory.lock(run))
            break
        except UserError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
