"""A section as Markdown."""

from collections.abc import Mapping, Sequence

from train.report.comparison import (
    Comparison,
    Footnotes,
    compare,
    explanation,
    metrics_of,
    remarks,
    seeds_in_words,
)
from train.report.groups import Group, Section

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def opening(sections: Sequence[Section]) -> list[str]:
    """The title and how to read the tables."""
    lines = ["# Results", ""]
    for paragraph in explanation(sections):
        lines += [escape(paragraph), ""]
    return lines


def lines(section: Section, plots: Mapping[str, str]) -> list[str]:
    """Heading, table, notes, sources and plots, by their titles the files that show them."""
    notes = Footnotes()
    table = _table(section, notes)
    remarked = [f"- {escape(remark)}" for remark in remarks(section)]
    numbered = [f"{_raised(n)} {escape(text)}" for n, text in enumerate(notes.texts, start=1)]
    parts = [
        [f"## {section.title}"],
        table,
        ["  \n".join(numbered)] if numbered else [],
        remarked,
        [f"Seeds: {seeds_in_words(section)}. Data: {escape('; '.join(section.sources()))}."],
        [f"![{escape(title)}]({file})" for title, file in plots.items()],
    ]
    return [line for part in parts if part for line in (*part, "")]


def _table(section: Section, notes: Footnotes) -> list[str]:
    headings = ["method", "optimizer", "settings", "rate", "seeds"]
    for metric in metrics_of(section.score):
        headings += [metric.heading, "paper", "Δ"] if section.compared else [metric.heading]
    # Names to the left, numbers to the right.
    rows = [headings, ["---"] * 3 + ["---:"] * (len(headings) - 3)]
    for group in section.groups:
        rows.append([escape(cell) for cell in _cells(group, section.compared, notes)])
    return ["| " + " | ".join(row) + " |" for row in rows]


def _cells(group: Group, compared: bool, notes: Footnotes) -> list[str]:
    names = group.config["method"], group.config["optimizer"], ", ".join(group.settings())
    cells = [*names, group.rate, str(len(group.runs))]
    for metric in metrics_of(group.score):
        found = compare(group, metric)
        cells.append(found.measured_text())
        if compared:
            cells += [_with_note(found, notes), found.difference_text()]
    return cells


def _with_note(found: Comparison, notes: Footnotes) -> str:
    number = notes.number(found.reference.note) if found.reference else None
    return found.paper_text() + (f" {_raised(number)}" if number else "")


def _raised(number: int) -> str:
    return str(number).translate(_RAISED)


def escape(text: str) -> str:
    r"""Text as it is, in a cell or a line.

    >>> escape("a|b <i> [c](d) memory_per_class")
    'a\\|b &lt;i> \\[c\\](d) memory\\_per\\_class'
    """
    for character in "\\|[]*_`":
        text = text.replace(character, "\\" + character)
    return text.replace("<", "&lt;").replace("\n", " ")
