"""The published results: which runs the sweeps ask for, that they work, and what is committed."""

import contextlib
import dataclasses
import json
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest

from benchmarks import publish
from train import report
from train.launch import sweep
from train.launch.jobs import Places, Streams, standing
from train.launch.seeds import run_seeds
from train.paper.presets import experiment, preset, variant
from train.run.config import Config
from train.run.directory import Keeping
from train.run.progress import Progress
from train.run.records import FILE, find_runs, read_measured

from .tiny_data import write

pytestmark = pytest.mark.ci

ROOT = pathlib.Path(__file__).parents[2]
SWEEPS = sorted(publish.RESULTS.glob("*.toml"))


def plan_of(name: str) -> sweep.Seeds:
    path = publish.RESULTS / f"{name}.toml"
    return sweep.plan({}, sweep.read(path), preset)


def row_of(config: Config) -> tuple[str, str, str]:
    """Method, optimizer, and what is changed in the preset."""
    return config.method.name, config.optimizer.name, variant(config.record)


def seeds_of(plan: sweep.Seeds) -> dict[tuple[str, str, str], int]:
    """How many seeds each row has."""
    return {row_of(config): len(seeds) for config, seeds in plan.items()}


# What the sweeps ask for.


def test_split_cifar100_has_the_papers_rows():
    found = seeds_of(plan_of("split_cifar100"))
    wanted = {
        **{("naive", name, ""): 3 for name in ("sgd", "adagrad", "adam", "stable-sgd")},
        **{("naive", name, ""): 3 for name in ("tag-adagrad", "tag-adam")},
        **{(method, "sgd", ""): 3 for method in ("ewc", "a-gem", "multitask")},
        **{("naive", name, ""): 5 for name in ("rmsprop", "tag-rmsprop", "tag-self")},
        ("naive", "tag-anchored", ""): 5,
        ("er", "tag-anchored", ""): 2,
        ("er", "sgd", ""): 5,
        ("naive", "tag-rmsprop", "alpha_scope=leaf"): 5,
        ("naive", "tag-rmsprop", "bank=compressed"): 5,
        **{(method, "tag-rmsprop", ""): 2 for method in ("ewc", "a-gem", "er")},
        **{("naive", name, ""): 2 for name in ("tag-uniform", "tag-age", "tag-g")},
    }
    assert {row: found.get(row, 0) for row in wanted} == wanted
    # Besides, only what the authors did otherwise.
    assert set(found) - set(wanted) == {
        ("a-gem", "sgd", "statistics_twice=True"),
        ("er", "sgd", "replay_current_task=True"),
        ("er", "tag-rmsprop", "learning_rate=0.00025"),
        ("ewc", "sgd", "ewc_lambda=1.0,fisher=batch"),
        ("multitask", "sgd", "epochs=6"),
        ("multitask", "sgd", "multitask_order=in-turn,epochs=6"),
        ("naive", "tag-g", "alpha_scope=leaf"),
        ("naive", "tag-rmsprop", "eps_in_sqrt=False"),
        ("naive", "tag-uniform", "eps_in_sqrt=False"),
    }
    for config in plan_of("split_cifar100"):
        assert (config["stream"], config["num_tasks"]) == ("split-cifar100", 20)
        assert config["max_examples"] is None
        assert config["epochs"] == (6 if "epochs=6" in variant(config.record) else 1)
        assert config["epochs"] == 1 or config["method"] == "multitask"
        assert config["optimizer"] != "tag-g" or config["num_gradients"] == 1


def test_rotated_mnist_has_the_papers_rows():
    plan = plan_of("rotated_mnist")
    rows = [("naive", "sgd", ""), ("naive", "tag-rmsprop", ""), ("er", "sgd", "")]
    assert seeds_of(plan) == dict.fromkeys(rows, 5)
    for config in plan:
        found = config["stream"], config["num_tasks"], config["max_examples"]
        assert found == ("rotated-mnist", 10, None)


def test_five_datasets_is_of_subsets_of_like_size():
    plan = plan_of("five_datasets")
    rows = [("naive", "sgd"), ("naive", "rmsprop"), ("naive", "tag-rmsprop"), ("er", "sgd")]
    assert seeds_of(plan) == {(*row, "max_examples=5000"): 5 for row in rows}
    assert {config["stream"] for config in plan} == {"five-datasets"}


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_sweep_says_where_its_runs_are(path):
    """One stream, in the directory beside the file."""
    assert len({config["stream"] for config in plan_of(path.stem)}) == 1
    place = f"benchmarks/results/{path.stem}"
    assert f"#   python -m train sweep --out {place} {place}.toml\n" in path.read_text()


# That they work, in small.


def run_once(cells: list[Config], path: pathlib.Path) -> None:
    """One seed of each config, on two tasks of a few tiny images."""
    write(path / "data", "cifar100")
    cells = [config.changed({"num_tasks": 2, "max_examples": 20}) for config in cells]
    streams = Streams(Places(data_dir=(path / "data",), cache_dir=path / "cache"))
    jobs = sweep.jobs(
        dict.fromkeys(cells, (1,)),
        lambda config: experiment(path / "runs", config.record),
        streams,
        Keeping(),
    )
    for job in jobs:
        assert run_seeds([job], streams, Progress(), "serial").failed == {}
    assert {standing(job) for job in jobs} == {"finished"}
    groups, _ = report.collect([path / "runs"])
    assert len(groups) == len(cells)
    for group in groups:
        assert np.isfinite(group.values("accuracy")).all()


def test_split_cifar100_in_small(tmp_path):
    """The rows that take ways of their own, with a network that is compiled in a moment."""
    rows = [
        *(("naive", "stable-sgd", ""), ("a-gem", "tag-rmsprop", "")),
        ("ewc", "sgd", "ewc_lambda=1.0,fisher=batch"),
        ("er", "sgd", "replay_current_task=True"),
        ("multitask", "sgd", "multitask_order=in-turn,epochs=6"),
    ]
    chosen = [config for config in plan_of("split_cifar100") if row_of(config) in rows]
    assert len(chosen) == len(rows)
    mlp = preset("split-cifar100", "sgd", model="mlp").changed({"hidden": (8,)}).model
    run_once([dataclasses.replace(config, model=mlp) for config in chosen], tmp_path)


@pytest.mark.slow
def test_all_of_split_cifar100_in_small(tmp_path):
    run_once(list(plan_of("split_cifar100")), tmp_path)


# What is committed.


def lines_of(text: str) -> list[str]:
    """Without plots, which another version of matplotlib may draw otherwise."""
    return [line for line in text.splitlines() if line and not line.startswith("![")]


def test_the_readme_is_made_from_the_runs():
    """Else: python -m benchmarks.publish."""
    with contextlib.chdir(publish.RESULTS):
        sections, _ = publish.read()
        text = publish.text(sections, {section.title: {} for section in sections})
        committed = pathlib.Path("README.md").read_text()
        assert lines_of(committed) == lines_of(text)
        shown = re.findall(r"^!\[.*\]\((.*)\)$", committed, flags=re.MULTILINE)
        assert sorted(shown) == sorted(path.as_posix() for path in publish.PLOTS.iterdir())
        assert len(shown) >= len(sections)


def test_the_projects_readme_says_what_the_runs_say():
    """Else: python -m benchmarks.publish; and what is said of the table, by hand."""
    page = publish.FRONT_PAGE.read_text()
    with contextlib.chdir(publish.RESULTS):
        sections, _ = publish.read()
        assert page == publish.front_page(page, sections)
        published = pathlib.Path("README.md").read_text()
        digits = json.loads(pathlib.Path("digits_rates.json").read_text())["rows"]
    published += " ".join(f"{max(row['accuracy'].values()):.1f}" for row in digits)
    (said,) = re.findall(r"^## Results$(.*?)^## ", page, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^\|.*$|\(.*?\.png\)", "", said, flags=re.MULTILINE)
    figures = re.findall(r"\d+\.\d+", prose)
    assert len(figures) >= 5
    assert [figure for figure in figures if figure not in published] == []


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_run_is_one_of_its_sweep(path):
    """Where it lies, and with every setting; else it would be trained again."""
    out = path.with_suffix("")
    asked = {
        experiment(out, config.record) / f"seed-{seed}": config.record
        for config, seeds in plan_of(path.stem).items()
        for seed in seeds
    }
    for place in find_runs([out]):
        run = read_measured(place)
        assert place == experiment(out, run.config) / f"seed-{run.seed}"
        assert run.config.differences(asked[place]) == []
        assert (run.config["loss"], run.config["score"]) == ("cross-entropy", "accuracy")


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a checkout")
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)


def test_runs_are_kept_without_what_only_resumes_them():
    kept = git("ls-files", "benchmarks/results").stdout.split()
    runs = [pathlib.PurePath(path) for path in kept if "/seed-" in path]
    names = {"config.json", "environment.json", "metrics.jsonl", FILE}
    assert {path.name for path in runs} == names
    assert len(runs) == len(names) * len({path.parent for path in runs})
    assert sum((ROOT / path).stat().st_size for path in kept) < 8e6


@pytest.mark.parametrize(
    ("name", "ignored"),
    [
        ("lock", True),
        ("sweep.json", True),
        ("report/report.html", True),
        ("stream/er/adam/seed-1.log", True),
        ("stream/er/adam/seed-1/lock", True),
        ("stream/er/adam/seed-1/checkpoints/0/state", True),
        ("stream/er/adam/seed-1/matrices.partial", True),
        ("stream/er/adam/seed-1/matrices.json", False),
        ("stream/er/adam/seed-1/metrics.jsonl", False),
    ],
)
def test_what_a_sweep_leaves_is_ignored_or_not(name, ignored):
    found = git("check-ignore", "--quiet", f"benchmarks/results/split_cifar100/{name}")
    assert found.returncode == (0 if ignored else 1)
