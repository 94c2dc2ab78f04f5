"""Writes a report: Markdown with its plots, CSV, and one HTML page."""

import pathlib
import tempfile

import matplotlib

from train import pictures
from train.errors import UserError
from train.report import markdown, svg, tables
from train.report.drawings import Drawing, drawings
from train.report.groups import Group, Section, sections
from train.report.page import MADE_BY, Figure, page

_WORKSHOP = ".unfinished-"


def write(groups: list[Group], out: pathlib.Path) -> list[pathlib.Path]:
    """Writes all files of a report into a directory; returns them, the pages first.

    The directory is new or empty, or holds an earlier report, which is replaced when this one is
    complete.
    """
    try:
        _check_free(out)
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=_WORKSHOP) as workshop:
            # Brackets and dollars in a label are no mathematics.
            with matplotlib.rc_context({"text.parse_math": False}):
                made = _write(groups, pathlib.Path(workshop))
            # The page first: whoever is killed in between leaves a directory that is a report's.
            for path in sorted(made, key=lambda path: path.suffix != ".html"):
                path.replace(out / path.name)
            return [out / path.name for path in made]
    except OSError as error:
        raise UserError(
            f"Cannot write to {out}: {error.strerror}. Choose another --out."
        ) from error


def _check_free(out: pathlib.Path) -> None:
    """Refuses a directory with files that no report has made."""
    page = out / "report.html"
    if not out.is_dir() or (page.is_file() and MADE_BY in page.read_text("utf-8", "replace")):
        return
    others = sorted(p.name for p in out.iterdir() if not p.name.startswith(_WORKSHOP))
    if others:
        raise UserError(
            f"{out} holds {others[0]} and no report: move it away, or choose another --out."
        )


def _write(groups: list[Group], out: pathlib.Path) -> list[pathlib.Path]:
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
    pages = {out / "report.md": "\n".join(text), out / "report.html": page(parts)}
    for path, content in pages.items():
        # The path of a run may be no text.
        path.write_text(content, encoding="utf-8", errors="backslashreplace")
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
