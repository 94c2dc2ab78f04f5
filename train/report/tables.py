"""Tables for the terminal, as Markdown, and as CSV: every run, and every metric of every group."""

import csv
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import rich.box
import rich.table
from rich.text import Text

from train.plots import NOTHING
from train.report import comparison
from train.report.groups import Group, Section
from train.run import metrics

_GROUP = ("stream", "evaluate_on", "method", "optimizer", "learning_rate", "epochs")
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def table(section: Section) -> rich.table.Table:
    """All four metrics; only two beside the paper's means, which it compares everywhere, and of
    scores that may be of any size."""
    style: Any = dict(title_justify="left", caption_justify="left", padding=0, show_edge=False)
    caption = Text("\n".join(comparison.remarks(section)))
    title, box = Text(section.title), rich.box.SIMPLE_HEAD
    shown = rich.table.Table(title=title, caption=caption, box=box, **style)
    naive = all(group.config["method"] == "naive" for group in section.groups)
    shown.add_column("optimizer" if naive else "method", overflow="fold")
    known = comparison.metrics_of(section.score)
    chosen = known if known == comparison.METRICS and not section.compared else known[:2]
    for heading in ("rate", "seeds"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for metric in chosen:
        # Only a score's name may be long.
        heading, short = Text(metric.heading), metric in comparison.METRICS
        shown.add_column(heading, justify="right", no_wrap=short, overflow="fold")
        if section.compared:
            shown.add_column("paper", justify="right", no_wrap=True)
            shown.add_column("Δ", justify="right", no_wrap=True)
    for group, compared in comparison.rows(section)[0]:
        # A Text, since brackets in a label are no markup.
        cells: list[str | Text] = [Text(group.label), group.rate, str(len(group.runs))]
        for each in compared[: len(chosen)]:
            cells.append(each.measured_text())
            if section.compared:
                figure = each.reference
                cells += [f"{figure.mean:.2f}" if figure else NOTHING, each.difference_text()]
        shown.add_row(*cells)
    return shown


def opening(sections: Sequence[Section]) -> list[str]:
    """The title of a page in Markdown, and how to read its tables."""
    paragraphs = [escape(paragraph) for paragraph in comparison.explanation(sections)]
    return [line for paragraph in ("# Results", *paragraphs) for line in (paragraph, "")]


def lines(section: Section, plots: Mapping[str, str]) -> list[str]:
    """A section in Markdown: heading, table, notes, sources and plots, by their titles the files
    that show them."""
    headings = ["method", "optimizer", "settings", "rate", "seeds"]
    for metric in comparison.metrics_of(section.score):
        headings += [metric.heading, "paper", "Δ"] if section.compared else [metric.heading]
    # Names to the left, numbers to the right.
    table = [headings, ["---"] * 3 + ["---:"] * (len(headings) - 3)]
    found, notes = comparison.rows(section)
    for group, compared in found:
        names = group.config["method"], group.config["optimizer"], ", ".join(group.settings())
        cells = [*names, group.rate, str(len(group.runs))]
        for each in compared:
            cells.append(each.measured_text())
            if section.compared:
                number = notes.get(each.note)
                raised = f" {str(number).translate(_RAISED)}" if number else ""
                cells += [each.paper_text() + raised, each.difference_text()]
        table.append([escape(cell) for cell in cells])
    sources = escape("; ".join(section.sources()))
    numbered = [f"{str(n).translate(_RAISED)} {escape(text)}" for text, n in notes.items()]
    parts = [
        [f"## {section.title}"],
        ["| " + " | ".join(row) + " |" for row in table],
        ["  \n".join(numbered)] if numbered else [],
        [f"- {escape(remark)}" for remark in comparison.remarks(section)],
        [f"Seeds: {comparison.seeds_in_words(section)}. Data: {sources}."],
        [f"![{escape(title)}]({file})" for title, file in plots.items()],
    ]
    return [line for part in parts if part for line in (*part, "")]


def escape(text: str) -> str:
    """Text as it is, in a cell or a line of Markdown."""
    return re.sub(r"([\\|\[\]*_`])", r"\\\1", text).replace("<", "&lt;").replace("\n", " ")


def write_runs(groups: list[Group], path: pathlib.Path) -> pathlib.Path:
    """One line a run, at full precision; accuracies as fractions."""
    fields = [metric.field for metric in comparison.METRICS]
    lines: list[list[Any]] = [[*_GROUP, "label", "seed", *fields, "run"]]
    for group in groups:
        for run in group.runs:
            summary = metrics.summary(run.accuracy)
            values = [_number(getattr(summary, field)) for field in fields]
            lines.append([*_names(group), group.label, run.seed, *values, run.path])
    return _write(path, lines)


def write_summary(groups: list[Group], path: pathlib.Path) -> pathlib.Path:
    """One line a group and metric, with the paper's figure and the difference in its deviations."""
    headings = [*_GROUP, "label", "settings", "complete_data", "seeds", "metric", "unit"]
    headings += ["mean", "std", "paper_mean", "paper_std", "difference", "source", "note"]
    lines: list[list[Any]] = [headings]
    for group in groups:
        settings = ", ".join(group.settings())
        start = [*_names(group), group.label, settings, group.complete, len(group.runs)]
        own_unit = "fraction" if group.score == "accuracy" else group.score
        for metric in comparison.metrics_of(group.score):
            found = comparison.compare(group, metric)
            mean, std, source, note = found.reference or (math.nan, math.nan, "", "")
            numbers = map(_number, (found.mean, found.std, mean, std, found.difference))
            unit = metric.unit or own_unit
            lines.append([*start, metric.field, unit, *numbers, source, note])
    return _write(path, lines)


def _names(group: Group) -> list[Any]:
    return [group.config.get(name, "") for name in _GROUP]


def _number(value: float) -> float | str:
    """Nothing, where there is no number."""
    return "" if math.isnan(value) else value


def _write(path: pathlib.Path, lines: list[list[Any]]) -> pathlib.Path:
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        csv.writer(file).writerows(lines)
    return path
