"""A report beside the paper: which figure belongs to which config, and what is written."""

import csv
import html.parser
import io
import math
import pathlib
import re
import shlex
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import rich.console

from benchmarks.publish import command
from train import paper, report
from train.cli.main import RunCommand, main, parse
from train.errors import UserError
from train.paper import presets
from train.report import page, tables
from train.report.comparison import METRICS, compare, explanation, remarks, seeds_in_words
from train.report.drawings import drawings, families, pairs
from train.run.config import Config, Record
from train.run.records import FILE, Matrices, write_matrices

from .fake_runs import write_run
from .test_plots import check_legible

PAPER = pathlib.Path(paper.__file__).parent
STREAM_NAMES = {
    "Split-CIFAR100": "split-cifar100",
    "Split-miniImageNet": "split-mini-imagenet",
    "Split-CUB": "split-cub",
    "5-dataset": "five-datasets",
}
LOG_NAMES = dict(zip(("cifar", "imagenet", "cub", "5data"), STREAM_NAMES.values(), strict=True))
METHODS = {
    "Naive SGD": ("naive", "sgd"),
    "Naive Adagrad": ("naive", "adagrad"),
    "Naive RMSProp": ("naive", "rmsprop"),
    "Naive Adam": ("naive", "adam"),
    "Stable SGD": ("naive", "stable-sgd"),
    "TAG-RMSProp": ("naive", "tag-rmsprop"),
    "TAG-Adagrad": ("naive", "tag-adagrad"),
    "TAG-Adam": ("naive", "tag-adam"),
    "TAG-1": ("naive", "tag-uniform"),
    "TAG-age": ("naive", "tag-age"),
    "TAG-G": ("naive", "tag-g"),
    "EWC": ("ewc", "sgd"),
    "A-GEM": ("a-gem", "sgd"),
    "ER": ("er", "sgd"),
    "RMSProp EWC": ("ewc", "rmsprop"),
    "RMSProp A-GEM": ("a-gem", "rmsprop"),
    "RMSProp ER": ("er", "rmsprop"),
    "TAG-EWC": ("ewc", "tag-rmsprop"),
    "TAG-A-GEM": ("a-gem", "tag-rmsprop"),
    "TAG-ER": ("er", "tag-rmsprop"),
    "MTL": ("multitask", "sgd"),
    "Multi-task": ("multitask", "sgd"),
}
FIELDS = {
    "accuracy": "accuracy",
    "forgetting": "forgetting",
    "la": "learning_accuracy",
    "bwt": "backward_transfer",
}
# Rows that another row of the paper contradicts, or that repeat another setting's figure.
UNREACHABLE = {
    ("replay_memory", "Split-miniImageNet", "ER (M=1)", "accuracy"),
    ("replay_memory", "Split-miniImageNet", "ER (M=1)", "la"),
    ("replay_memory", "5-dataset", "ER (M=1)", "la"),
    ("replay_memory", "5-dataset", "TAG-RMSProp", "forgetting"),
    ("ablation", "5-dataset", "TAG-RMSProp", "forgetting"),
    *(("five_epochs", stream, "MTL", "accuracy") for stream in STREAM_NAMES),
}


def rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((PAPER / name).read_text().splitlines()))


def preset(stream: str, method: str, optimizer: str, **changes: Any) -> Config:
    """The birds start from pretrained weights, as in the paper."""
    if stream == "split-cub":
        changes = {"pretrained": "resnet18.safetensors"} | changes
    return presets.preset(stream, optimizer, method).changed(changes)


def reference(config: Config, field: str) -> paper.Reference | None:
    return paper.reference(config.record, field)


# Which figure belongs to which config.


def test_every_printed_row_has_its_config():
    missing = set()
    for row in rows("results.csv"):
        found = re.fullmatch(r"(.+?)(?: \((M|B)=(\d+)\))?", row["method"])
        assert found
        changes = {"epochs": 5} if row["table"] == "five_epochs" else {}
        if found[2]:
            changes[{"M": "memory_per_class", "B": "num_gradients"}[found[2]]] = int(found[3])
        config = preset(STREAM_NAMES[row["stream"]], *METHODS[found[1]], **changes)
        figure = reference(config, FIELDS[row["metric"]])
        tasks = config["num_tasks"]
        factor = tasks / (tasks - 1) if row["metric"] == "bwt" else 1
        printed = factor * float(row["mean"]), factor * float(row["std"])
        if figure is None or figure[:2] != pytest.approx(printed):
            missing.add((row["table"], row["stream"], row["method"], row["metric"]))
        elif row["metric"] == "bwt":
            assert "accuracy minus LA" in figure.note
    assert missing == UNREACHABLE


def test_every_logged_row_has_its_config():
    """At the settings that were logged; the figure is the log's where none is printed."""
    logs = 0
    for row in rows("author_results.csv"):
        changes: dict[str, Any] = dict(
            epochs=int(row["epochs-per-task"]),
            learning_rate=float(row["learning_rate"]),
            decay=float(row["learning rate decay(gamma)"]),
            dropout=float(row["dropout prob"]),
        )
        for column, name in (("mem", "memory_per_class"), ("lambda", "ewc_lambda"), ("b", "b")):
            if row[column]:
                changes[name] = int(row[column])
        usual = preset(LOG_NAMES[row["log"].split("_")[0]], *METHODS[row["method"]])
        config = usual.changed({name: changes[name] for name in changes if name in usual.flat()})
        assert paper.departures(config.record) == []
        figure = reference(config, "accuracy")
        assert figure
        assert "logged at" not in figure.note
        if figure.source == "the authors' log" and row["complete_runs"] != "3":
            assert figure.mean == float(row["acc"])
            logs += 1
        if config["method"] == "multitask":
            assert reference(config, "forgetting") is None
    assert logs > 40


@pytest.mark.parametrize(
    "changes",
    [
        dict(num_tasks=10),
        dict(max_examples=40),
        dict(evaluate_on="validation"),
        dict(order_seed=1),
        dict(batch_size=64),
        dict(b=3.0),
        dict(b1=0.5),
        dict(eps=1e-4),
        dict(epochs=2),
        dict(dropout=0.1),
        dict(learning_rate=0.005),
        dict(weight_decay=0.1),
        dict(clip=1.0),
        dict(schedule="cosine"),
        dict(average=0.9),
        dict(compute_dtype="bfloat16"),
        dict(mu_dtype="bfloat16"),
    ],
)
def test_another_setting_has_no_figure(changes):
    config = preset("split-cifar100", "naive", "tag-rmsprop")
    assert reference(config, "accuracy")
    changed = config.changed(changes)
    assert reference(changed, "accuracy") is None
    assert len(paper.departures(changed.record)) == 1


def test_another_network_or_loss_has_no_figure():
    config = presets.preset("split-cifar100", "sgd", model="resnet18")
    assert paper.departures(config.record) == ["model resnet18, not resnet18-reduced"]
    pretrained = config.changed({"pretrained": "weights.npz"}).record
    assert paper.departures(pretrained)[1:] == ["pretrained weights"]
    own = Record({**preset("split-cifar100", "naive", "sgd").record, "loss": "mine.own:loss"})
    assert paper.departures(own) == ["loss mine.own:loss, not auto"]


@pytest.mark.parametrize(
    ("optimizer", "relatedness"),
    [("tag-uniform", "uniform"), ("tag-age", "age"), ("tag-g", "first_gradients")],
)
def test_an_ablation_by_another_name_has_the_same_figure(optimizer, relatedness):
    named = preset("split-cifar100", "naive", optimizer)
    plain = preset("split-cifar100", "naive", "tag-rmsprop", relatedness=relatedness)
    assert reference(named, "accuracy")
    assert reference(plain, "accuracy") == reference(named, "accuracy")
    adam = preset("split-cifar100", "naive", "tag-adam", relatedness=relatedness)
    assert reference(adam, "accuracy") is None


@pytest.mark.parametrize(
    ("stream", "method", "optimizer"),
    [
        ("split-cifar100", "naive", "tag-self"),
        ("split-cifar100", "ogd", "sgd"),
        ("split-cifar100", "er", "adam"),
        ("split-cifar100", "multitask", "rmsprop"),
        ("rotated-mnist", "naive", "tag-rmsprop"),
    ],
)
def test_what_the_paper_does_not_have(stream, method, optimizer):
    config = preset(stream, method, optimizer)
    assert paper.departures(config.record) == ["the paper has no such run"]
    assert reference(config, "accuracy") is None


def test_birds_without_pretrained_weights_have_no_figure():
    config = preset("split-cub", "naive", "sgd", pretrained=None)
    assert paper.departures(config.record) == ["no pretrained weights"]


@pytest.mark.parametrize(
    ("method", "optimizer", "changes"),
    [
        (
            *("naive", "tag-rmsprop"),
            dict(alpha_scope="leaf", eps_in_sqrt=False, log_every=7, steps_per_call=3, capacity=40),
        ),
        ("ewc", "sgd", dict(fisher_samples=25)),
        ("a-gem", "sgd", dict(statistics_twice=True)),
    ],
)
def test_readings_of_the_paper_have_the_same_figure(method, optimizer, changes):
    config = preset("split-cifar100", method, optimizer)
    figure = reference(config, "accuracy")
    assert figure
    assert reference(config.changed(changes), "accuracy") == figure


@pytest.mark.parametrize(
    ("order", "epochs", "comparable"),
    [("shuffled", 1, True), ("shuffled", 6, False), ("in-turn", 1, False), ("in-turn", 6, True)],
)
def test_multitask_is_one_joint_pass_or_six_rounds(order, epochs, comparable):
    config = preset("split-cifar100", "multitask", "sgd", multitask_order=order, epochs=epochs)
    figure = reference(config, "accuracy")
    assert (figure is not None) == comparable
    assert figure is None or figure.mean == 67.70


@pytest.mark.parametrize(
    ("method", "optimizer", "appendix", "logged"),
    [("naive", "adagrad", 0.005, 0.01), ("er", "tag-rmsprop", 0.0005, 0.00025)],
)
def test_a_rate_logged_otherwise_is_noted(method, optimizer, appendix, logged):
    config = preset("split-cifar100", method, optimizer)
    assert config["learning_rate"] == appendix
    noted = reference(config, "accuracy")
    same = reference(config.changed({"learning_rate": logged}), "accuracy")
    assert noted
    assert same
    assert noted[:3] == same[:3]
    assert noted.note == f"the authors' log; logged at learning rate {logged:g}"
    assert same.note == "the authors' log"
    assert reference(config.changed({"learning_rate": 0.02}), "accuracy") is None


def test_contradictions_are_noted():
    config = preset("split-mini-imagenet", "er", "sgd", memory_per_class=5)
    found = reference(config, "accuracy")
    assert found
    assert found.mean == 58.49
    assert found.note == "the authors' log has 60.45 ± 0.27"
    twice = preset("split-cub", "naive", "tag-rmsprop", epochs=10)
    found = reference(twice, "accuracy")
    assert found
    assert found.mean == pytest.approx(59.575169)  # Of 5 complete runs, not of 3.


# Runs on disk.


def summary(out: pathlib.Path, stream: str) -> dict[tuple[str, str], dict[str, str]]:
    found = csv.DictReader((out / "summary.csv").read_text().splitlines())
    return {(row["label"], row["metric"]): row for row in found if row["stream"] == stream}


def shown(section: report.Section, width: int) -> str:
    console = rich.console.Console(file=io.StringIO(), width=width)
    console.print(report.table(section))
    return console.file.getvalue()


def test_the_difference_is_in_the_papers_deviations(tmp_path):
    config = preset("five-datasets", "naive", "tag-rmsprop")
    for seed, final in ((1, 0.60), (2, 0.62)):
        write_run(tmp_path, config, seed, final=final)
    ((group,), _) = report.collect([tmp_path])
    accuracy, forgetting, learned, transfer = (compare(group, metric) for metric in METRICS)
    assert (accuracy.mean, accuracy.std) == pytest.approx((61, 1))
    assert accuracy.difference == pytest.approx((61 - 62.59) / 1.82)
    assert accuracy.difference_text() == "-0.9 σ"
    assert forgetting.difference == pytest.approx((0.1 - 0.29) / 0.02)
    assert learned.difference == pytest.approx((61 + 8 - 86.08) / 0.55)
    # The paper's -23.49 is accuracy - LA, whose sum over 4 earlier tasks is divided by 5.
    assert transfer.reference
    assert transfer.mean == pytest.approx(-10)
    assert transfer.difference == pytest.approx((-8 - -23.49) / 1.73)


def test_no_difference_where_the_deviation_is_nothing(tmp_path):
    write_run(tmp_path, preset("split-cifar100", "naive", "stable-sgd"), 1)
    ((group,), _) = report.collect([tmp_path])
    found = compare(group, METRICS[1])
    assert found.paper_text() == "0.09 ± 0.00"
    assert found.difference_text() == "–"
    assert found.measured_text() == "0.100"  # One seed: no deviation.


def test_a_subset_is_not_compared(tmp_path):
    config = preset("split-cifar100", "naive", "sgd")
    write_run(tmp_path / "whole", config, 1)
    write_run(tmp_path / "part", config, 1, sources=["cifar100 3.0.2 (500 + 100)"])
    groups, _ = report.collect([tmp_path])
    assert [group.complete for group in groups] == [True, False]
    assert [group.reference("accuracy") is None for group in groups] == [False, True]
    assert len({group.label for group in groups}) == 2
    (section,) = report.sections(groups)
    assert any("subset of the data" in remark for remark in remarks(section))


def test_a_section_of_subsets_is_called_one(tmp_path):
    part = ["cifar100 3.0.2 (500 + 100)"]
    for optimizer in ("sgd", "adam"):
        write_run(tmp_path / "part", preset("split-cifar100", "naive", optimizer), 1, sources=part)
    (section,) = report.sections(report.collect([tmp_path])[0])
    assert section.title == "split-cifar100, subsets"
    assert remarks(section) == ["all methods: subset of the data, not compared with the paper."]
    write_run(tmp_path / "whole", preset("split-cifar100", "naive", "sgd"), 1)
    (section,) = report.sections(report.collect([tmp_path])[0])
    assert section.title == "split-cifar100"


def test_the_preset_is_called_by_its_name_alone(tmp_path):
    config = preset("split-cifar100", "naive", "tag-rmsprop")
    changes = (dict(eps_in_sqrt=False), {}, dict(alpha_scope="leaf"))
    for changed in changes:
        write_run(tmp_path, config.changed(changed), 1)
    (section,) = report.sections(report.collect([tmp_path])[0])
    assert [group.label for group in section.groups] == [
        "tag-rmsprop",
        "tag-rmsprop (eps_in_sqrt False)",
        "tag-rmsprop (alpha_scope leaf)",
    ]


def test_seeds_are_said_once_for_all_that_have_them(tmp_path):
    for optimizer, seeds in (("sgd", (1, 2)), ("adam", (1,)), ("rmsprop", (1,)), ("adagrad", (1,))):
        for seed in seeds:
            write_run(tmp_path, preset("split-cifar100", "naive", optimizer), seed)
    (section,) = report.sections(report.collect([tmp_path])[0])
    assert seeds_in_words(section) == "1; sgd: 1, 2"


MANY = [
    *(("naive", name) for name in ("sgd", "adagrad", "rmsprop", "adam", "stable-sgd")),
    *(("naive", f"tag-{name}") for name in ("rmsprop", "adagrad", "adam", "uniform", "self")),
    *(("er", name) for name in ("sgd", "tag-rmsprop", "adam")),
    *(("multitask", "sgd"),),
]


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> report.Section:
    """More groups than one plot can show; one of them changes its preset."""
    tmp_path = tmp_path_factory.mktemp("many")
    for method, optimizer in MANY:
        write_run(tmp_path, preset("split-cifar100", method, optimizer, num_tasks=4), 1)
    config = preset("split-cifar100", "er", "sgd", num_tasks=4, memory_per_class=5)
    write_run(tmp_path, config, 1)
    (section,) = report.sections(report.collect([tmp_path])[0])
    return section


def test_many_groups_are_drawn_by_families(many):
    found = {name: [group.label for group in groups] for name, groups in families(many).items()}
    assert list(found) == ["methods", "optimizers", "TAG", "settings"]
    # `num_tasks` is changed everywhere, and tells none apart.
    baselines = ["sgd", "stable-sgd", "tag-rmsprop", "er + sgd", "multitask + sgd"]
    assert found["methods"] == baselines
    assert found["TAG"] == ["tag-rmsprop", "tag-uniform", "tag-self", "er + tag-rmsprop"]
    assert found["settings"] == ["er + sgd", "er + sgd (memory_per_class 5)", "er + adam"]
    assert {label for labels in found.values() for label in labels} == {
        group.label for group in many.groups
    }


def test_few_groups_are_drawn_together_and_a_long_family_in_parts(many):
    few = replace(many, groups=many.groups[:10])
    assert families(few) == {"": few.groups}
    (group,) = (group for group in many.groups if group.label == "adam")
    rates = [replace(group, label=f"adam {i}", apart=(f"rate {i}",)) for i in range(23)]
    parts = families(replace(many, groups=rates))
    assert list(parts) == ["settings 1", "settings 2", "settings 3"]
    assert [group for groups in parts.values() for group in groups] == rates


def test_what_has_tag_stands_beside_what_has_not(many):
    found = [(without.label, tagged.label) for without, tagged in pairs(many)]
    assert found == [
        ("rmsprop", "tag-rmsprop"),
        ("adagrad", "tag-adagrad"),
        ("adam", "tag-adam"),
        ("er + sgd", "er + tag-rmsprop"),
    ]


def test_drawings_of_many_groups(many):
    detailed = [group for group in many.groups if group.label in ("tag-rmsprop", "tag-self")]
    names = [
        drawing.name.removeprefix("split-cifar100-")
        for drawing in drawings(many, lambda group: group in detailed)
    ]
    assert names == [
        *("methods-accuracy", "optimizers-accuracy", "TAG-accuracy", "settings-accuracy"),
        *("final-accuracy", "final-forgetting", "pairs-accuracy", "pairs-forgetting"),
        *("matrix-tag-rmsprop", "alpha-tag-rmsprop", "first-task-tag-rmsprop"),
        "matrix-tag-self",  # Its weights are all the same.
    ]


def test_a_hatched_bar_follows_the_page(many):
    (drawing,) = (found for found in drawings(many, lambda group: False) if "pairs-a" in found.name)
    text = page.inline(drawing.figure, "name", "<title>")
    assert text.startswith("<svg")
    assert "<title>&lt;title&gt;</title>" in text
    assert "var(--ink)" in text
    assert "font-family" not in text
    (pattern,) = re.findall(r'<pattern[^>]*id="(.*?)".*?</pattern>', text)
    assert text.count(f"url(#{pattern})") == 4  # A bar with TAG each.
    assert pattern.startswith("name-")
    assert not re.search("#8ccbef|#222222", text.lower())


def test_two_groups_are_not_drawn_as_a_pair_too(tmp_path):
    for optimizer in ("rmsprop", "tag-rmsprop"):
        write_run(tmp_path, preset("rotated-digits", "naive", optimizer, num_tasks=2), 1)
    (section,) = report.sections(report.collect([tmp_path])[0])
    assert not [drawing for drawing in drawings(section) if "pairs" in drawing.name]


@pytest.mark.parametrize(
    ("method", "optimizer", "changed"),
    [
        ("naive", "sgd", {}),
        ("er", "sgd", dict(replay_current_task=True, memory_per_class=5)),
        ("a-gem", "sgd", dict(statistics_twice=True)),
        ("multitask", "sgd", dict(multitask_order="in-turn", epochs=6)),
        ("ewc", "tag-rmsprop", dict(fisher_samples=None, eps_in_sqrt=False, b=2.5)),
        ("naive", "tag-adam", dict(max_examples=50, eps=1e-9, clip=1.0, schedule="cosine")),
    ],
)
def test_the_command_that_repeats_a_row(method, optimizer, changed):
    config = preset("split-cifar100", method, optimizer, **changed)
    assert repeated(config.resolved(np.int32)) == (config, (1, 3))


def test_the_command_names_another_network():
    config = presets.preset("split-cifar100", "sgd", model="mlp").changed({"hidden": (8, 4)})
    assert repeated(config) == (config, (1, 3))


def repeated(config: Config) -> tuple[Config, tuple[int, ...]]:
    """What the command line makes of the command."""
    python, *words = shlex.split(command(config.record, [1, 3]))
    assert (python, words[:2]) == ("python", ["-m", "train"])
    found = parse(words[2:])
    assert isinstance(found, RunCommand)
    return found.config, found.seeds


def test_validation_has_a_section_of_its_own(tmp_path):
    config = preset("split-cifar100", "naive", "sgd")
    write_run(tmp_path, config, 1)
    write_run(tmp_path, config.changed({"evaluate_on": "validation"}), 1)
    test, validation = report.sections(report.collect([tmp_path])[0])
    assert (test.title, validation.title) == ("split-cifar100", "split-cifar100, validation")
    assert test.compared
    assert not validation.compared
    assert "held-out training data" in remarks(validation)[0]
    assert [group.label for group in test.groups + validation.groups] == ["sgd", "sgd"]


def test_order_and_a_narrow_terminal(tmp_path):
    chosen = [
        *(("multitask", "sgd"), ("er", "tag-rmsprop"), ("er", "sgd"), ("ewc", "sgd")),
        *(("naive", "tag-rmsprop"), ("naive", "stable-sgd"), ("naive", "sgd")),
    ]
    for method, optimizer in chosen:
        for seed in (1, 2):
            write_run(tmp_path, preset("split-cifar100", method, optimizer), seed)
    (section,) = report.sections(report.collect([tmp_path])[0])
    wanted = [(method, optimizer) for method, optimizer in reversed(chosen)]
    wanted[3:6] = [("ewc", "sgd"), ("er", "sgd"), ("er", "tag-rmsprop")]
    assert [
        (group.config["method"], group.config["optimizer"]) for group in section.groups
    ] == wanted
    text = shown(section, 80)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "62.79" in text
    assert text.count("–") == 4  # Nobody forgets who learns all at once; stable-sgd's ± is 0.


def test_a_seed_counts_once(tmp_path, monkeypatch):
    config = preset("rotated-digits", "naive", "sgd")
    write_run(tmp_path / "a", config, 1, final=0.5)
    write_run(tmp_path / "b", config, 1, final=0.7)
    write_run(tmp_path / "b", config, 2, final=0.7)
    monkeypatch.chdir(tmp_path)
    ((group,), _) = report.collect([pathlib.Path("a"), tmp_path / "a"])
    assert (len(group.runs), group.repeated) == (1, ())  # The same directory, spelled twice.
    ((group,), _) = report.collect([tmp_path])
    assert [run.seed for run in group.runs] == [1, 2]
    assert len(group.repeated) == 1
    (section,) = report.sections([group])
    assert "repeats a seed" in remarks(section)[0]


def test_an_unfinished_run_is_left_out_and_said(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = preset("rotated-digits", "naive", "sgd", num_tasks=2)
    write_run(tmp_path / "runs", config, 1)
    write_run(tmp_path / "runs", config, 2, finished=False)
    assert main(["report", "runs"]) == 0
    said = capsys.readouterr().out
    assert "not finished, left out: runs/" in said
    assert "report.md, report.html, results.csv, summary.csv" in said
    assert len((tmp_path / "report/results.csv").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (FILE, b"", "cannot be read"),
        (FILE, b'{"accuracy": [[0.5, 0.', "cannot be read"),
        (FILE, b"\xff\xfe", "cannot be read"),
        ("config.json", b"{", "no readable JSON"),
        ("config.json", b"{}", "names no seed"),
    ],
)
def test_an_unreadable_run_is_one_sentence(tmp_path, name, content, message):
    write_run(tmp_path, preset("rotated-digits", "naive", "sgd"), 1)
    (file,) = tmp_path.rglob(name)
    file.write_bytes(content)
    with pytest.raises(UserError, match=f"{name}.*{message}"):
        report.collect([tmp_path])


def test_a_matrix_of_another_shape_is_refused(tmp_path):
    write_run(tmp_path, preset("rotated-digits", "naive", "sgd"), 1)
    (file,) = tmp_path.rglob(FILE)
    write_matrices(file, Matrices(np.ones((3, 3)), None, ["a", "b"], ["digits"]))
    with pytest.raises(UserError, match="no matrix of its 2 tasks"):
        report.collect([tmp_path])


def test_a_place_that_cannot_be_written(tmp_path):
    write_run(tmp_path / "runs", preset("rotated-digits", "naive", "sgd", num_tasks=2), 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Choose another --out"):
        report.write(report.collect([tmp_path / "runs"])[0], tmp_path / "file")


# What is not the paper's: names from outside, scores, and numbers of any size.


def outside(**changes: Any) -> Record:
    """Of parts that nobody could import."""
    names = dict(stream="mine.data:waves", method="mine:hold", optimizer="mine.opt:lion")
    names |= dict(model="mine.nets:Net", loss="squared-error", score="negative-error")
    settings = dict(pull=0.5, epochs=1, batch_size=10, evaluate_on="test", width=3, num_tasks=3)
    return Record(names | settings | changes)


@pytest.mark.parametrize("size", [1e-6, 1e30])
def test_a_score_of_any_size_is_reported_as_it_is(tmp_path, size):
    for pull, final in ((0.5, -size), (2.0, -2 * size)):
        for seed in (1, 2):
            change = -size * np.array([0.0, 0.5, seed])
            there, record = tmp_path / str(pull), outside(pull=pull)
            write_run(there, record, seed, final=final, change=change, sources=["waves"])
    groups, _ = report.collect([tmp_path])
    # Of settings from outside nobody knows which are the usual ones.
    labels = [f"mine:hold + mine.opt:lion (pull {pull})" for pull in (0.5, 2.0)]
    assert [group.label for group in groups] == labels
    (section,) = report.sections(groups)
    assert section.title == "mine.data:waves, negative-error"
    assert remarks(section) == []
    assert "all numbers are in its unit" in explanation([section])[1]
    for drawing in drawings(section):
        assert "%" not in "".join(axes.get_ylabel() for axes in drawing.figure.axes)
        check_legible(drawing.figure, drawing.title)
    html, text = page.section_part(section, [], []), "\n".join(tables.lines(section, {}))
    for written in (html.replace("\N{MINUS SIGN}", "-"), text, shown(section, 160)):
        assert f"{-2.5 * size:.4g}" in written
        assert "%" not in written
    tables.write_summary(groups, tmp_path / "summary.csv")
    row = summary(tmp_path, "mine.data:waves")[labels[0], "accuracy"]
    assert (row["unit"], row["learning_rate"]) == ("negative-error", "")
    assert float(row["mean"]) == pytest.approx(-2.5 * size)


def test_what_comes_from_outside_stands_behind_the_built_in(tmp_path):
    tag = preset("rotated-digits", "naive", "tag-rmsprop", num_tasks=2).record
    configs = [
        *(tag, Record({**tag, "optimizer": "mine:tag", "b": "much"})),
        *(Record({**tag, "stream": "mine:waves"}), Record({**tag, "method": "mine:hold"})),
    ]
    for number, config in enumerate(reversed(configs)):
        write_run(tmp_path / str(number), config, 1, sources=["x"], alpha=np.float64(0.5))
    groups, _ = report.collect([tmp_path])
    found = [(group.config["stream"], group.label) for group in groups]
    assert found == [
        ("rotated-digits", "tag-rmsprop"),
        ("rotated-digits", "mine:tag"),
        ("rotated-digits", "mine:hold + tag-rmsprop"),
        ("mine:waves", "tag-rmsprop"),
    ]
    digits, waves = report.sections(groups)
    assert (digits.title, waves.title) == ("rotated-digits, subsets", "mine:waves")
    for drawing in drawings(digits):
        check_legible(drawing.figure, drawing.title)


def test_two_scores_of_one_stream_stand_apart(tmp_path):
    for score in ("accuracy", "mine:top5"):
        config = Record({**preset("rotated-digits", "naive", "sgd").record, "score": score})
        write_run(tmp_path / score, config, 1)
    titles = [section.title for section in report.sections(report.collect([tmp_path])[0])]
    assert titles == ["rotated-digits", "rotated-digits, mine:top5"]


def test_a_very_large_b_is_drawn(tmp_path):
    """Its weights are 0 or infinite, but for tasks that are not related at all."""
    config = preset("rotated-digits", "naive", "tag-rmsprop", num_tasks=4, b=1e6)
    alpha = np.full((4, 4), 0.0)
    alpha[2] = math.inf
    alpha[3, :2] = 1e-38, 1e38
    write_run(tmp_path, config, 1, alpha=alpha)
    (section,) = report.sections(report.collect([tmp_path])[0])
    found = [drawing for drawing in drawings(section) if re.search("alpha|first", drawing.name)]
    assert len(found) == 2
    for drawing in found:
        check_legible(drawing.figure, drawing.title)
        text = page.figure(drawing)
        assert "same direction: e^-1e+06" in text
        assert "opposed: e^1e+06" in text


# The page.


class Page(html.parser.HTMLParser):
    """Checks that tags are balanced, and keeps ids, addresses and text."""

    VOID = ("meta", "br", "img", "hr", "link", "input", "wbr")

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href", "srcset", "action"):
                self.addresses.append((tag, value))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


NASTY = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> pathlib.Path:
    """Groups with figures of the paper, with one value only, and with nasty names."""
    runs = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        write_run(runs, preset("five-datasets", "naive", "tag-rmsprop"), seed)
        write_run(runs, preset("five-datasets", "multitask", "sgd"), seed)
    digits = preset("rotated-digits", "naive", "tag-rmsprop", num_tasks=2)
    write_run(runs, digits, 1, sources=[f"digits {NASTY} [b](c) | d"])
    for name in (NASTY, "a/b"):
        config = preset("split-cub", "naive", "sgd", pretrained=name, num_tasks=2)
        write_run(runs, config, 1)
    out = tmp_path_factory.mktemp("out")
    files = report.write(report.collect([runs])[0], out)
    assert all(file.exists() for file in files)
    assert [file.name for file in files[:2]] == ["report.md", "report.html"]
    return out


@pytest.mark.ci
def test_the_page_is_whole_and_alone(written):
    text = (written / "report.html").read_text()
    parsed = Page(text)
    assert len(parsed.ids) == len(set(parsed.ids))
    for tag, address in parsed.addresses:
        if address.startswith("#"):
            assert address[1:] in parsed.ids
        else:
            assert tag == "a" or address.startswith("data:")
    for used in re.findall(r"url\(([^)]*)\)", text):
        assert used[1:] in parsed.ids
    assert not {"script", "link", "iframe", "img"} & set(parsed.tags)
    assert "http" not in text.replace("https://arxiv.org/abs/2105.05155", "")
    # Every plot, and once more for narrow screens those that compare the groups of a section.
    plots = [path.stem for path in written.glob("*.png")]
    compared = [name for name in plots if name.endswith("-accuracy") or "-final-" in name]
    assert parsed.tags.count("svg") == len(plots) + len(compared)
    assert "python -m train run && echo <i>" in parsed.words  # As the run recorded it.


def test_the_page_has_every_group_and_nothing_of_theirs_is_markup(written):
    text = (written / "report.html").read_text()
    words = Page(text).words
    for label in ("tag-rmsprop", "multitask + sgd", f"sgd (pretrained {NASTY})", "pretrained a/b"):
        assert label in words
    assert "62.59 ± 1.82" in words
    assert "70.00 ± 4.44" in words
    assert "subset of the data" in words
    markdown = (written / "report.md").read_text()
    assert NASTY not in text + markdown
    for line in markdown.splitlines():
        if line.startswith("| naive | tag-rmsprop"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (10, 18)


def test_the_markdown_shows_its_plots(written):
    text = (written / "report.md").read_text()
    shown = re.findall(r"^!\[.*\]\((.*)\)$", text, flags=re.MULTILINE)
    assert sorted(shown) == sorted(path.name for path in written.glob("*.png"))
    links = re.findall(r"!\[.*?\]\(([^()]*)\)", text)
    assert len(links) == text.count("![") == len(shown)
    assert all((written / link).is_file() for link in links)
    assert "¹ printed as accuracy minus LA; here times 5/4" in text


def test_all_tasks_at_once_have_one_number(written):
    rows = summary(written, "five-datasets")
    accuracy = rows["multitask + sgd", "accuracy"]
    assert float(accuracy["mean"]) == pytest.approx(60)
    assert float(accuracy["difference"]) == pytest.approx((60 - 70) / 4.44)
    assert accuracy["source"] == "the paper's main table"
    for field in ("forgetting", "learning_accuracy", "backward_transfer"):
        row = rows["multitask + sgd", field]
        assert {row["mean"], row["std"], row["paper_mean"], row["difference"]} == {""}
    assert not list(written.glob("*matrix-multitask*"))
    cells = (written / "report.md").read_text().partition("| multitask |")[2].splitlines()[0]
    assert cells.count("–") == 9


def test_the_summary_is_precise(written):
    row = summary(written, "five-datasets")["tag-rmsprop", "forgetting"]
    assert (row["unit"], row["seeds"], row["complete_data"]) == ("fraction", "2", "True")
    difference = (float(row["mean"]) - 0.29) / 0.02
    assert math.isclose(float(row["difference"]), difference, rel_tol=1e-12)
