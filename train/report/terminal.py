"""A section as a table for the terminal: narrow, with the rest left to the files."""

import rich.box
import rich.table
from rich.text import Text

from train.paper import Reference
from train.report.comparison import METRICS, NOTHING, compare, remarks
from train.report.groups import Section


def table(section: Section) -> rich.table.Table:
    """All four metrics; beside the paper's means only the two that it compares everywhere."""
    shown = rich.table.Table(
        title=Text(section.title),
        title_justify="left",
        caption=Text("\n".join(remarks(section))),
        caption_justify="left",
        box=rich.box.SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    naive = all(group.config.method == "naive" for group in section.groups)
    shown.add_column("optimizer" if naive else "method", overflow="fold")
    chosen = METRICS[:2] if section.compared else METRICS
    for heading in ("rate", "seeds"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for metric in chosen:
        shown.add_column(metric.heading, justify="right", no_wrap=True)
        if section.compared:
            shown.add_column("paper", justify="right", no_wrap=True)
            shown.add_column("Δ", justify="right", no_wrap=True)
    for group in section.groups:
        # A Text, since brackets in a label are no markup.
        rate, seeds = f"{group.config.learning_rate:g}", str(len(group.runs))
        cells: list[str | Text] = [Text(group.label), rate, seeds]
        for metric in chosen:
            found = compare(group, metric)
            cells.append(found.measured_text())
            if section.compared:
                cells += [_mean(found.reference), found.difference_text()]
        shown.add_row(*cells)
    return shown


def _mean(reference: Reference | None) -> str:
    return f"{reference.mean:.2f}" if reference else NOTHING
