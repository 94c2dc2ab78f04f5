"""The report as CSV: every run, and every metric of every group."""

import csv
import math
import pathlib
from typing import Any

from train.report.comparison import METRICS, compare
from train.report.groups import Group
from train.run import metrics
from train.run.config import Config

_GROUP = ("stream", "evaluate_on", "method", "optimizer", "learning_rate", "epochs")


def write_runs(groups: list[Group], path: pathlib.Path) -> pathlib.Path:
    """One line a run, at full precision; accuracies as fractions."""
    fields = [metric.field for metric in METRICS]
    rows = []
    for group in groups:
        for run in group.runs:
            summary = metrics.summary(run.accuracy)
            values = [_number(getattr(summary, field)) for field in fields]
            rows.append([*_names(group.config), group.label, run.seed, *values, run.path])
    return _write(path, [*_GROUP, "label", "seed", *fields, "run"], rows)


def write_summary(groups: list[Group], path: pathlib.Path) -> pathlib.Path:
    """One line a group and metric, with the paper's figure and the difference in its deviations."""
    headings = [*_GROUP, "label", "settings", "complete_data", "seeds", "metric", "unit"]
    headings += ["mean", "std", "paper_mean", "paper_std", "difference", "source", "note"]
    rows = []
    for group in groups:
        settings = ", ".join(group.settings())
        start = [*_names(group.config), group.label, settings, group.complete, len(group.runs)]
        for metric in METRICS:
            found = compare(group, metric)
            mean, std, source, note = found.reference or (math.nan, math.nan, "", "")
            numbers = found.mean, found.std, mean, std, found.difference
            end = [*map(_number, numbers), source, note]
            rows.append([*start, metric.field, metric.unit or "fraction", *end])
    return _write(path, headings, rows)


def _names(config: Config) -> list[Any]:
    return [getattr(config, name) for name in _GROUP]


def _number(value: float) -> float | str:
    """Nothing, where there is no number."""
    return "" if math.isnan(value) else value


def _write(path: pathlib.Path, headings: list[str], rows: list[list[Any]]) -> pathlib.Path:
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        csv.writer(file).writerows([headings, *rows])
    return path
