"""Writes a report: Markdown with its plots, CSV, and one HTML page."""

import pathlib

from train import pictures
from train.errors import UserError
from train.report import markdown, svg, tables
from train.report.drawings import Drawing, drawings
from train.report.groups import Group, Section, sections
from train.report.page import Figure, page


def write(groups: list[Group], out: pathlib.Path) -> list[pathlib.Path]:
    """Writes all files of a report into a directory; returns them, the pages first."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        found = sections(groups)
        text = markdown.opening(found)
        parts: list[tuple[Section, list[Figure]]] = []
        written = [
            tables.write_runs(groups, out / "results.csv"),
            tables.write_summary(groups, out / "summary.csv"),
        ]
        for section in found:
            plots: dict[str, str] = {}
            figures = []
            for drawing in drawings(section):
                written.append(out / f"{drawing.name}.png")
                pictures.save(drawing.figure, written[-1])
                plots[drawing.title] = written[-1].name
                figures.append(inlined(drawing))
            text += markdown.lines(section, plots)
            parts.append((section, figures))
        pages = [out / "report.md", out / "report.html"]
        pages[0].write_text("\n".join(text))
        pages[1].write_text(page(parts))
    except OSError as error:
        raise UserError(
            f"Cannot write to {out}: {error.strerror}. Choose another --out."
        ) from error
    return [*pages, *written]


def inlined(drawing: Drawing) -> Figure:
    """A drawing as the page takes it: SVG, without the title that the page writes."""
    name, title = drawing.name, drawing.title
    return Figure(
        name,
        title,
        svg.inline(drawing.figure, name, title),
        drawing.narrow and svg.inline(drawing.narrow, f"{name}-narrow", title),
        drawing.detail,
        drawing.wide,
    )
