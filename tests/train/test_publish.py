"""The pages of the published runs: made from the runs alone, and saying what these say."""

import pathlib
import re

import numpy as np
import pytest

from benchmarks import against_paper, findings, publish
from benchmarks.findings import Difference
from train import report
from train.errors import UserError
from train.launch import sweep
from train.paper.presets import preset

from .fake_runs import write_run

pytestmark = pytest.mark.ci

CIFAR = """
streams = ["split-cifar100"]
optimizers = ["rmsprop", "tag-rmsprop", "tag-self"]
seeds = [1, 2, 3]

[[runs]]

[[runs]]
optimizers = ["tag-rmsprop"]
settings = { alpha_scope = "leaf" }
"""
MNIST = """
streams = ["rotated-mnist"]
optimizers = ["sgd", "tag-rmsprop"]
seeds = [1, 2, 3]
"""
SEEDS = (1, 2, 3)


def section_of(path: pathlib.Path) -> report.Section:
    (section,) = report.sections(report.collect([path])[0])
    return section


def write_cosines(path, one, tensors, none, seeds=SEEDS):
    """Runs with one cosine, one for each tensor, and none: the accuracy of each seed."""
    tag = preset("split-cifar100", "tag-rmsprop")
    for config, finals in (
        (tag, one),
        (tag.changed({"alpha_scope": "leaf"}), tensors),
        (preset("split-cifar100", "tag-self"), none),
    ):
        for seed, final in zip(seeds, finals, strict=True):
            write_run(path, config, seed, final=final)


# Differences.


def test_a_difference_by_hand():
    found = Difference(np.array([1.0, 2.0, 6.0]))
    assert found.mean == pytest.approx(3)
    assert found.standard_error == pytest.approx(np.sqrt((4 + 1 + 9) / 2 / 3))
    assert found.text(1, " points") == "+3.0 ± 1.5 points (above 0 in 3 of 3 seeds)"
    assert Difference(np.array([-0.5])).text(2) == "-0.50 (above 0 in 0 of 1 seeds)"


def test_what_is_clear_follows_students_interval():
    # With three seeds the interval reaches 4.303 standard errors, not 1.96.
    spread = np.array([-1.0, 0.0, 1.0])  # Standard error 1 / sqrt(3).
    reach = 4.303 / np.sqrt(3)
    for mean, direction in ((reach + 0.01, 1), (reach - 0.01, 0), (-reach - 0.01, -1)):
        assert Difference(mean + spread).direction == direction
    assert Difference(np.array([5.0])).direction == 0


def test_pairs_are_of_the_same_seed(tmp_path):
    for optimizer, finals in (
        ("sgd", {1: 0.5, 2: 0.6, 3: 0.9}),
        ("adam", {2: 0.5, 1: 0.3, 7: 0.1}),
    ):
        for seed, final in finals.items():
            write_run(tmp_path, preset("split-cifar100", optimizer), seed, final=final)
    section = section_of(tmp_path)
    sgd, adam = (findings.find(section, name) for name in ("sgd", "adam"))
    assert sgd
    assert adam
    found = findings.paired(sgd, adam, "accuracy", factor=100)
    assert found
    np.testing.assert_allclose(found.values, [20, 10])
    assert findings.find(section, "rmsprop") is None
    assert findings.find(section, "sgd", momentum=0.5) is None


# Sentences.


def test_the_cosine_adds_what_the_runs_say(tmp_path):
    write_cosines(tmp_path, (0.62, 0.63, 0.61), (0.60, 0.61, 0.60), (0.60, 0.61, 0.59))
    text = "\n".join(findings.cosine(section_of(tmp_path)))
    assert "| one cosine – no cosine | +2.00 ± 0.00 (above 0 in 3 of 3 seeds) |" in text
    assert "One cosine against no cosine: more accurate, and does not clearly forget" in text
    assert "A cosine for each tensor against no cosine: not clearly more or less accurate" in text
    assert "95 % lie between 0.50 and 0.50, half of them below 0.50; cosines of 1 and -1" in text


def test_the_cosine_may_cost_something(tmp_path):
    write_cosines(tmp_path, (0.60, 0.61, 0.60), (0.5, 0.5, 0.5), (0.66, 0.66, 0.65))
    text = "\n".join(findings.cosine(section_of(tmp_path)))
    assert "One cosine against no cosine: less accurate" in text
    assert "One cosine against a cosine for each tensor: more accurate" in text


def test_an_authors_choice_beside_the_papers(tmp_path):
    """The paper's 49.06 ± 3.44 serves both, though only one is set as the paper says."""
    ewc = preset("split-cifar100", "sgd", "ewc")
    for seed, (ours, theirs) in enumerate(((0.42, 0.48), (0.44, 0.51)), start=1):
        write_run(tmp_path, ewc, seed, final=ours)
        write_run(tmp_path, ewc.changed({"fisher": "batch", "ewc_lambda": 1.0}), seed, final=theirs)
    (row,) = (
        line for line in against_paper.choices(section_of(tmp_path)) if line.startswith("| ewc")
    )
    assert "| 43.0 ± 1.0 | -1.8 σ | 49.5 ± 1.5 | +0.1 σ |" in row
    assert row.endswith("| +6.5 ± 0.5 (above 0 in 2 of 2 seeds) |")


@pytest.mark.parametrize(
    "choice", against_paper.CHOICES, ids=lambda choice: f"{choice.method} {choice.name}"
)
def test_every_choice_is_asked_for(choice):
    """A misspelt setting would only leave a row out."""
    path = publish.RESULTS / "split_cifar100.toml"
    usual = preset("split-cifar100", choice.optimizer, choice.method)
    changed = usual.changed(choice.settings)
    assert changed != usual
    assert {usual, changed} <= set(sweep.plan({}, sweep.read(path), preset))


def test_methods_that_swap_places_are_named(tmp_path):
    """In the paper: SGD 51.36, A-GEM 54.25, ER 59.14."""
    for method, final in (("naive", 0.52), ("a-gem", 0.60), ("er", 0.58)):
        write_run(tmp_path, preset("split-cifar100", "sgd", method), 1, final=final)
    write_run(tmp_path, preset("split-cifar100", "tag-self"), 1, final=0.1)  # No row of the paper.
    text = "\n".join(against_paper.order(section_of(tmp_path)))
    assert "`sgd` 52.0, `er + sgd` 58.0, `a-gem + sgd` 60.0. 2 of 3 pairs" in text
    assert (
        "`a-gem + sgd` is above `er + sgd` here (60.0 to 58.0), below it in the paper (54.25 ± "
        "2.00 to 59.14 ± 1.77). On the same seeds +2.0 points (above 0 in 1 of 1 seeds): no clear "
        "difference."
    ) in text


def test_an_authors_choice_that_restores_the_order_is_named(tmp_path):
    """In the paper A-GEM, 54.25, is below Stable SGD, 57.04."""
    agem = preset("split-cifar100", "sgd", "a-gem")
    for seed in (1, 2):
        write_run(tmp_path, preset("split-cifar100", "stable-sgd"), seed, final=0.56)
        write_run(tmp_path, agem, seed, final=0.58)
    (row,) = (line for line in against_paper.order(section_of(tmp_path)) if line[:2] == "- ")
    assert row.endswith(
        "On the same seeds +2.0 ± 0.0 points (above 0 in 2 of 2 seeds): a clear difference."
    )
    for seed in (1, 2):
        write_run(
            tmp_path, agem.changed({"statistics_twice": True}), seed, final=0.54 + 0.01 * seed
        )
    (row,) = (line for line in against_paper.order(section_of(tmp_path)) if line[:2] == "- ")
    assert row.endswith(
        " In the paper's order with the authors' choice (a-gem: running statistics moved twice): "
        "-0.5 ± 0.5 points (above 0 in 0 of 2 seeds)."
    )


def test_rows_far_from_the_papers_are_looked_into(tmp_path):
    """In the paper: TAG-RMSProp 62.79 ± 0.29, TAG-G 62.60 ± 0.38, SGD 51.36 ± 3.21."""
    tag_g = preset("split-cifar100", "tag-g")
    for seed, final in zip(SEEDS, (0.65, 0.652, 0.654), strict=True):
        write_run(tmp_path, tag_g, seed, final=final)
        write_run(tmp_path, tag_g.changed({"alpha_scope": "leaf"}), seed, final=final - 0.02)
        write_run(tmp_path, preset("split-cifar100", "sgd"), seed, final=0.55)
    write_run(tmp_path, preset("split-cifar100", "tag-rmsprop"), 1, final=0.61)
    lines = [line for line in against_paper.distances(section_of(tmp_path)) if line[:2] == "- "]
    # By hand: 2.6 / sqrt(0.2^2 / 3 + 0.38^2 / 4) = 11.7, with 5.9 degrees of freedom.
    assert lines == [
        "- `tag-rmsprop`: 61.0, the paper 62.79 ± 0.29 (-6.2 σ). One seed cannot tell whether the "
        "means differ.",
        "- `tag-g`: 65.2 ± 0.2, the paper 62.60 ± 0.38 (+6.8 σ). The means of 3 and 5 seeds differ "
        "(p = 2.7e-05). With the authors' choices: a cosine for each tensor, 63.2 ± 0.2 and "
        "+1.6 σ.",
    ]


def test_a_few_scattered_seeds_do_not_differ_from_the_paper(tmp_path):
    for seed, final in ((1, 0.60), (2, 0.68)):
        write_run(tmp_path, preset("split-cifar100", "tag-g"), seed, final=final)
    text = "\n".join(against_paper.distances(section_of(tmp_path)))
    assert "(+3.7 σ). The means of 2 and 5 seeds do not clearly differ (p = " in text


def test_methods_in_the_papers_order(tmp_path):
    for method, final in (("naive", 0.52), ("a-gem", 0.55)):
        write_run(tmp_path, preset("split-cifar100", "sgd", method), 1, final=final)
    text = "\n".join(against_paper.order(section_of(tmp_path)))
    assert "1 of 1 pairs of rows stand as in the paper." in text
    assert "is above" not in text


def test_nothing_is_said_of_missing_runs(tmp_path):
    write_run(tmp_path, preset("split-cifar100", "tag-rmsprop"), 1)
    write_run(tmp_path, preset("split-cifar100", "tag-self"), 2)  # Another seed: no pair.
    assert findings.cosine(section_of(tmp_path)) == []
    assert (
        against_paper.choices(section_of(tmp_path))
        == against_paper.order(section_of(tmp_path))
        == []
    )
    write_run(tmp_path / "mnist", preset("rotated-mnist", "sgd"), 1)
    assert findings.half_turn(section_of(tmp_path / "mnist")) == []


@pytest.mark.parametrize(
    ("step", "weight", "verdict", "place"),
    [
        (0.05, 0.3, "the claim is confirmed.", "is below their mean: -0.300"),
        (-0.05, 0.9, "the claim is refuted, it falls.", "is above their mean: +0.300"),
    ],
)
def test_the_half_turn(tmp_path, step, weight, verdict, place):
    for seed in SEEDS:
        change = np.zeros(10)
        change[6] = step + 0.001 * seed
        alpha = np.full((10, 10), 0.5)
        alpha[5:8, 0] = 0.5, weight, 0.7  # Of the tasks at 150, 180 and 210 degrees.
        config = preset("rotated-mnist", "tag-rmsprop")
        write_run(tmp_path, config, seed, change=change, alpha=alpha)
        write_run(tmp_path, preset("rotated-mnist", "sgd"), seed)
    text = "\n".join(findings.half_turn(section_of(tmp_path)))
    assert verdict in text
    assert f"α(7, 1) is {weight:.3f}, its neighbours α(6, 1) 0.500 and α(8, 1) 0.700" in text
    assert place in text
    # At the half turn a change comes, and with the next task it goes.
    assert f"the half turn is {'above' if step > 0 else 'below'} their mean: " in text
    # Both a[6, 6] and a[5, 5] are fresh, so that the mean over seven falls a little by itself.
    assert "Average accuracy of `sgd`: -0.24 ± 0.00 points (above 0 in 0 of 3 seeds)." in text


# The pages.


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> pathlib.Path:
    """Two sweeps, of which one is not finished."""
    path = tmp_path_factory.mktemp("results")
    (path / "cifar.toml").write_text(CIFAR)
    (path / "mnist.toml").write_text(MNIST)
    (path / "none_yet.toml").write_text('streams = ["split-cub"]\noptimizers = ["sgd"]\n')
    (path / "plots").mkdir()
    (path / "plots/of-old.png").write_bytes(b"")
    write_cosines(path / "cifar", (0.62, 0.63, 0.61), (0.60, 0.61, 0.60), (0.60, 0.61, 0.59))
    write_run(path / "cifar", preset("split-cifar100", "rmsprop"), 1)
    write_run(path / "cifar", preset("split-cifar100", "rmsprop"), 2, finished=False)
    alpha = np.linspace(0.5, 1.5, 100).reshape(10, 10)
    for seed in SEEDS:
        write_run(path / "mnist", preset("rotated-mnist", "tag-rmsprop"), seed, alpha=alpha)
    unfinished = publish.publish(path)
    assert [str(run) for run in unfinished] == ["cifar/split-cifar100/naive/rmsprop/seed-2"]
    return path


def test_the_readme_has_tables_findings_and_commands(results):
    text = (results / "README.md").read_text()
    assert "| naive | tag-rmsprop |  | 0.00025 | 3 | 62.0 ± 0.8 | 62.79 ± 0.29 | -2.7 σ |" in text
    assert "### What the cosine adds" in text
    assert "### The half turn" in text
    assert "10 of 12 runs are finished." in text
    assert "3 of 6 runs are finished." in text
    assert "train sweep --out benchmarks/results/cifar benchmarks/results/cifar.toml" in text
    again = "python -m train run --stream split-cifar100 --optimizer tag-rmsprop"
    assert f"| `{again} --alpha-scope leaf --seeds 1 2 3` |" in text
    assert "- 10 runs: `python -m train run && echo <i>`, commit abc1234, 2 cores" in text
    assert "split-cub" not in text


def test_the_readme_shows_the_plots_that_are_there(results):
    text = (results / "README.md").read_text()
    shown = re.findall(r"^!\[.*\]\((.*)\)$", text, flags=re.MULTILINE)
    assert sorted(shown) == sorted(f"plots/{path.name}" for path in (results / "plots").iterdir())
    assert "plots/split-cifar100-pairs-accuracy.png" in shown
    assert "plots/rotated-mnist-alpha-tag-rmsprop.png" in shown
    assert "plots/rotated-mnist-first-task-tag-rmsprop.png" in shown
    assert max(path.stat().st_size for path in (results / "plots").iterdir()) < 200_000


def test_the_pages_name_no_place_of_this_machine(results):
    for name in ("README.md", "report.html"):
        assert str(results) not in (results / name).read_text()
    assert "cifar/split-cifar100/naive/rmsprop/seed-1" in (results / "report.html").read_text()


def test_the_same_runs_give_the_same_pages(results):
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    publish.publish(results)
    after = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    assert before == after


def test_no_runs_at_all(tmp_path, monkeypatch, capsys):
    (tmp_path / "cifar.toml").write_text(CIFAR)
    with pytest.raises(UserError, match="No sweep has runs here"):
        publish.publish(tmp_path)
    monkeypatch.setattr(publish, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["publish"])
    with pytest.raises(SystemExit, match="error: No sweep has runs here"):
        publish.main()
