"""Which figure of the paper a config is to be compared with, if any.

A config has one where its stream, method, optimizer, epochs and memory are those of a row, and no
other setting that changes results departs from the paper. A setting that the paper tuned may have
the value of the paper's appendix (the preset) or the one in the authors' log, which differ in
places; a note says where the logged one is another. Points on which the paper and its authors' code
differ compare with the same row.

How rows that contradict each other are read:

- The printed figure comes before the log; a note gives the logged one where the two differ by more
  than rounding (Split-miniImageNet: Naive SGD; ER with 5 and 10 examples a class).
- A figure printed in several tables is taken from the main table. Others differ for ER on
  Split-miniImageNet (52.76 where the sizes of memory are compared: probably at the rate 0.1, at
  which 2 and 3 examples were logged, not 0.05), and in the last digit for 5-dataset.
- MTL in the table of five epochs repeats the single pass, which is all that was logged: left out.
- A method logged twice (`cub_10`, TAG-RMSProp) counts with more complete runs.
- MTL goes six times through the tasks in turn, though its row says one epoch: so does
  `--method multitask --multitask-order in-turn --epochs 6`, and a single pass over all tasks
  shuffled together is held against the same row.
- Multi-task rows of the log have forgetting and LA copied from elsewhere: only accuracy counts.
- BWT is defined as a mean over the T - 1 earlier tasks, but every printed figure is accuracy - LA,
  whose sum is divided by T: it is multiplied by T / (T - 1) here.
"""

import csv
import functools
import pathlib
from typing import NamedTuple, TypeAlias

from train.paper.presets import ABLATIONS, usual
from train.run.config import Record


class Reference(NamedTuple):
    """A figure of the paper, in its units: percent, and forgetting as a fraction."""

    mean: float
    std: float
    source: str  # The table, or the authors' log.
    note: str  # What to know when comparing; mostly empty.


AUTHORS_LOG = "the authors' log"
MAIN_TABLE = "the paper's main table"
_TABLES = {  # In the order in which they are trusted.
    "single_pass": MAIN_TABLE,
    "bwt": "the paper's table of BWT",
    "five_epochs": "the paper's table of five epochs",
    "replay_memory": "the paper's table of memory sizes",
    "ablation": "the paper's table of TAG's variants",
}
_METRICS = {"la": "learning_accuracy", "bwt": "backward_transfer"}  # Others have their own names.
_STREAMS = {  # In results.csv, in author_results.csv.
    "split-cifar100": ("Split-CIFAR100", "cifar"),
    "split-mini-imagenet": ("Split-miniImageNet", "imagenet"),
    "split-cub": ("Split-CUB", "cub"),
    "five-datasets": ("5-dataset", "5data"),
}
_ALONE = {  # Optimizers without a method.
    **dict(sgd="Naive SGD", adagrad="Naive Adagrad", rmsprop="Naive RMSProp", adam="Naive Adam"),
    **{"stable-sgd": "Stable SGD", "tag-adagrad": "TAG-Adagrad", "tag-adam": "TAG-Adam"},
}
# Of TAG-RMSProp, by what weighs the other tasks, whatever name the optimizer goes by.
_WEIGHED = {"cosine": "TAG-RMSProp", "uniform": "TAG-1", "age": "TAG-age"}
_COMBINED = {"sgd": "", "rmsprop": "RMSProp ", "tag-rmsprop": "TAG-"}  # Before EWC, A-GEM or ER.

# Columns of the log that hold a setting which the paper tuned, or fixed for a stream.
_TUNED = {
    **{"learning_rate": "learning_rate", "learning rate decay(gamma)": "decay"},
    **{"dropout prob": "dropout", "lambda": "ewc_lambda", "b": "b"},
}
_NOT_COMPARED = (
    # Points on which the paper and its authors' code differ.
    *("alpha_scope", "eps_in_sqrt", "replay_current_task", "fisher", "fisher_samples"),
    *("statistics_twice", "multitask_order"),
    # What changes no result.
    *("log_every", "steps_per_call", "capacity"),
    # What names the row, or is compared by itself.
    *("stream", "method", "optimizer", "epochs", "memory_per_class", "num_gradients"),
    *("relatedness", "pretrained"),
)
_ROUNDING = {"accuracy": 0.06, "learning_accuracy": 0.06, "forgetting": 0.006}

STREAMS = tuple(_STREAMS)


_Key: TypeAlias = tuple[str, str, int | None, int]
"""What names a row in both files: stream, method, examples a class (of A-GEM and ER), epochs."""


def reference(record: Record, metric: str) -> Reference | None:
    """The paper's figure for a field of `metrics.Summary`, or None where nothing is comparable."""
    key = _key(record)
    if key is None or departures(record):
        return None
    tuned, figures = _log().get(key, ({}, {}))
    theirs = figures.get(metric)
    notes = [
        f"logged at {name.replace('_', ' ')} {value:g}"
        for name, value in tuned.items()
        if name in record and value != record[name]
    ]
    if (key, metric) not in _printed():
        return theirs and Reference(*theirs, AUTHORS_LOG, "; ".join([AUTHORS_LOG, *notes]))
    mean, std, source = _printed()[key, metric]
    if theirs and abs(theirs[0] - mean) > _ROUNDING[metric]:
        notes.append("the authors' log has {:.4g} ± {:.2g}".format(*theirs))
    if metric == "backward_transfer":
        tasks = record["num_tasks"]
        mean, std = mean * tasks / (tasks - 1), std * tasks / (tasks - 1)
        times = f"here times {tasks}/{tasks - 1}, as BWT is defined"
        notes.insert(0, f"printed as accuracy minus LA; {times}")
    return Reference(mean, std, source, "; ".join(notes))


def departures(record: Record) -> list[str]:
    """Why a record cannot be compared with the paper; nothing where it can."""
    key = _key(record)
    if key is None or key not in {*_log(), *(found for found, _ in _printed())}:
        return ["the paper has no such run"]
    papers, (tuned, _) = usual(record), _log().get(key, ({}, {}))
    found = [
        f"{name} {value}, not {papers[name]}"
        for name, value in record.items()
        if name not in _NOT_COMPARED and value not in (papers[name], tuned.get(name, papers[name]))
    ]
    # Only the birds start from weights learned on ImageNet.
    pretrained = record.get("pretrained") is not None
    if pretrained != (record["stream"] == "split-cub"):
        found.append("pretrained weights" if pretrained else "no pretrained weights")
    return found


def _key(record: Record) -> _Key | None:
    method = _method(record)
    if record["stream"] not in _STREAMS or method is None:
        return None
    memory = record["memory_per_class"] if record["method"] in ("a-gem", "er") else None
    rounds = 6 if record.get("multitask_order") == "in-turn" else 1
    epochs, rest = divmod(record["epochs"], rounds)
    return None if rest else (record["stream"], method, memory, epochs)


def _method(record: Record) -> str | None:
    """The paper's name."""
    relatedness = record.get("relatedness", "cosine")
    tag_rmsprop = record["optimizer"] in ("tag-rmsprop", *ABLATIONS)
    match record["method"], record["optimizer"]:
        case "naive", _ if tag_rmsprop and relatedness == "first_gradients":
            return f"TAG-G (B={record['num_gradients']})"
        case "naive", _ if tag_rmsprop:
            return _WEIGHED.get(relatedness)
        case _ if relatedness != "cosine":
            return None
        case "naive", optimizer:
            return _ALONE.get(optimizer)
        case "multitask", "sgd":
            return "MTL"
        case ("ewc" | "a-gem" | "er") as method, optimizer if optimizer in _COMBINED:
            return _COMBINED[optimizer] + method.upper()
    return None


def _read(name: str) -> list[dict[str, str]]:
    with (pathlib.Path(__file__).parent / name).open(newline="") as file:
        return list(csv.DictReader(file))


@functools.cache
def _printed() -> dict[tuple[_Key, str], tuple[float, float, str]]:
    """Mean, deviation and table of every printed figure, by row and metric."""
    streams = {names[0]: stream for stream, names in _STREAMS.items()}
    found: dict[tuple[_Key, str], tuple[float, float, str]] = {}
    rows = _read("results.csv")
    for row in sorted(rows, key=lambda row: list(_TABLES).index(row["table"])):
        method, _, given = row["method"].partition(" (M=")
        # A-GEM and ER keep one example a class where nothing else is said.
        memory = int(given[:-1]) if given else 1 if method in ("A-GEM", "ER") else None
        epochs = 5 if row["table"] == "five_epochs" else 1
        if method == "MTL" and epochs > 1:
            continue
        key = streams[row["stream"]], method, memory, epochs
        figure = float(row["mean"]), float(row["std"]), _TABLES[row["table"]]
        found.setdefault((key, _METRICS.get(row["metric"], row["metric"])), figure)
    return found


@functools.cache
def _log() -> dict[_Key, tuple[dict[str, float], dict[str, tuple[float, float]]]]:
    """Of every row of the authors' log the values of what the paper tuned, and the figures."""
    streams = {names[1]: stream for stream, names in _STREAMS.items()}
    found: dict[_Key, tuple[dict[str, float], dict[str, tuple[float, float]]]] = {}
    # Of two for one key, the one with more complete runs counts.
    for row in sorted(_read("author_results.csv"), key=lambda row: -int(row["complete_runs"])):
        method = "MTL" if row["method"] == "Multi-task" else row["method"]
        memory = int(row["mem"]) if row["mem"] else None
        key = streams[row["log"].split("_")[0]], method, memory, int(row["epochs-per-task"])
        figures = {"accuracy": (float(row["acc"]), float(row["acc_sd"]))}
        if method != "MTL":
            figures["forgetting"] = float(row["forget"]), float(row["forget_sd"])
            figures["learning_accuracy"] = float(row["la"]), float(row["la_sd"])
        settings = {name: float(row[column]) for column, name in _TUNED.items() if row[column]}
        found.setdefault(key, (settings, figures))
    return found
