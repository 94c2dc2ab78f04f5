"""Writes a report: Markdown with its plots, CSV, and one HTML page."""

import io
import pathlib
import tempfile
from collections.abc import Callable

import matplotlib
import PIL.Image
from matplotlib.figure import Figure

from train.errors import UserError
from train.report import page, tables
from train.report.drawings import Drawing, drawings
from train.report.groups import Group, Section, sections

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
    made = out / "report.html"
    if not out.is_dir() or (made.is_file() and page.MADE_BY in made.read_text("utf-8", "replace")):
        return
    other = min((p.name for p in out.iterdir() if not p.name.startswith(_WORKSHOP)), default=None)
    if other:
        raise UserError(
            f"{out} holds {other} and no report: move it away, or choose another --out."
        )


def _write(groups: list[Group], out: pathlib.Path) -> list[pathlib.Path]:
    found = sections(groups)
    text, parts = tables.opening(found), []
    written = [
        tables.write_runs(groups, out / "results.csv"),
        tables.write_summary(groups, out / "summary.csv"),
    ]

    def keep(drawing: Drawing) -> str:
        written.append(out / f"{drawing.name}.png")
        save(drawing.figure, written[-1])
        return written[-1].name

    for section in found:
        shown, part = illustrated(section, keep)
        text += tables.lines(section, shown)
        parts.append(part)
    pages = {out / "report.md": "\n".join(text), out / "report.html": page.page(found, parts)}
    for path, content in pages.items():
        # The path of a run may be no text.
        path.write_text(content, encoding="utf-8", errors="backslashreplace")
    return [*pages, *written]


def illustrated(
    section: Section,
    keep: Callable[[Drawing], str | None],
    detailed: Callable[[Group], bool] = lambda group: True,
) -> tuple[dict[str, str], str]:
    """The files that `keep` made of a section's plots, by their titles, and its part of the page.

    One plot after the other, as each takes memory.
    """
    shown: dict[str, str] = {}
    compared, details = [], []
    for drawing in drawings(section, detailed):
        file = keep(drawing)
        if file:
            shown[drawing.title] = file
        (compared if drawing.narrow else details).append(page.figure(drawing))
    return shown, page.section_part(section, compared, details)


def save(figure: Figure, path: pathlib.Path) -> None:
    """Writes a PNG that is small enough to be kept beside a text.

    The same figure gives the same bytes."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    # A plot has few colours: with a palette it takes a third of the bytes.
    colours = PIL.Image.open(drawn).convert("RGB")
    colours.quantize(256, dither=PIL.Image.Dither.NONE).save(path, format="png", optimize=True)
