"""The report as one HTML page, complete in itself: no script, nothing to fetch."""

import io
import pathlib
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from html import escape

import matplotlib
from matplotlib.figure import Figure

import tag_optax
from train import plot_style
from train.report import comparison
from train.report.comparison import Comparison, Rows
from train.report.drawings import Drawing
from train.report.groups import Group, Section, origins

MADE_BY = "Made by <code>python -m train report</code>"
"""Tells a report from any other page."""
_VARIABLES = {
    plot_style.INK: "--ink",
    "#000000": "--ink",
    "#ffffff": "--plot",
    plot_style.GREY: "--muted",
    plot_style.GRID: "--grid",
    plot_style.BARS: "--bars",
    **{
        colour: f"--line-{number}"
        for number, colour in enumerate(plot_style.COLOURS)
        if colour != "#000000"
    },
}
"""Colours that the page sets, for light and for dark; those of a heat map stay."""
_STYLE = pathlib.Path(__file__).with_name("page.css")


def page(sections: Sequence[Section], parts: Sequence[str]) -> str:
    """The whole document, of what `section_part` has made of each section."""
    paper = f'<p>The paper: <a href="{comparison.LINK}">{escape(comparison.PAPER)}</a>.</p>'
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        "<title>Results</title>",
        f"<style>\n{_STYLE.read_text()}</style>",
        "</head>",
        "<body>",
        "<header>",
        "<h1>Results</h1>",
        *(f"<p>{escape(text)}</p>" for text in comparison.explanation(sections)),
    ]
    if len(sections) > 1:
        lines.append('<nav aria-label="Sections"><ul>')
        lines += [f'<li><a href="#{s.slug}">{escape(s.title)}</a></li>' for s in sections]
        lines.append("</ul></nav>")
    lines += [
        "</header>",
        "<main>",
        *parts,
        "</main>",
        "<footer>",
        *([paper] if any(section.compared for section in sections) else []),
        f"<p>{MADE_BY}, tag_optax {tag_optax.__version__}.</p>",
        "</footer>",
        "</body>",
        "</html>",
        "",
    ]
    return "\n".join(lines)


def section_part(section: Section, figures: Sequence[str], details: Sequence[str]) -> str:
    """A section, with its plots from `figure`: those that compare groups, and those of single
    ones."""
    found, notes = comparison.rows(section)
    lines = [
        f'<section id="{section.slug}" aria-labelledby="{section.slug}-title">',
        f'<h2 id="{section.slug}-title">{escape(section.title)}</h2>',
        *_table(section, found, notes),
    ]
    if notes:
        lines.append('<ol class="notes">')
        for note, number in notes.items():
            lines.append(f'<li id="{section.slug}-note-{number}">{escape(note)}</li>')
        lines.append("</ol>")
    remarked = comparison.remarks(section)
    if remarked:
        lines += ['<ul class="remarks">', *(f"<li>{escape(r)}</li>" for r in remarked), "</ul>"]
    lines += [
        f'<p class="facts"><b>Seeds</b> {escape(comparison.seeds_in_words(section))}. '
        f"<b>Data</b> {escape('; '.join(section.sources()))}.</p>",
        *_figures(figures),
    ]
    if details:
        lines += _details("Each method by itself", len(details), "plot", _figures(details))
    return "\n".join([*lines, *_runs(section), "</section>"])


def figure(drawing: Drawing) -> str:
    """A drawing as an element, without the title that the page writes."""
    name, title = escape(drawing.name), escape(drawing.title)
    wide = ' class="wide"' if drawing.wide else ""
    roomy, narrow = "scroll", ""
    if drawing.narrow:
        inside = inline(drawing.narrow, f"{drawing.name}-narrow", drawing.title)
        roomy, narrow = "scroll roomy", f'<div class="narrow">{inside}</div>'
    return (
        f'<figure id="{name}"{wide}><figcaption>{title}</figcaption>'
        f'<div class="{roomy}" tabindex="0" role="group" aria-label="{title}">'
        f"{inline(drawing.figure, drawing.name, drawing.title)}</div>{narrow}</figure>"
    )


def _figures(figures: Sequence[str]) -> list[str]:
    return ['<div class="figures">', *figures, "</div>"]


def _details(summary: str, count: int, noun: str, inside: list[str]) -> list[str]:
    counted = f"{count} {noun}" + ("s" if count != 1 else "")
    opening = f"<details><summary>{summary} <small>{counted}</small></summary>"
    return [opening, *inside, "</details>"]


def _runs(section: Section) -> list[str]:
    """How every run was made."""
    lines = []
    for origin in origins(section):
        lines.append("<li>")
        if origin.command:
            lines.append(f"<p><code>{escape(origin.command)}</code></p>")
        lines += [f"<p>{escape('; '.join(origin.facts))}</p>", "<ul>"]
        lines += [f"<li>{escape(path)}</li>" for path in origin.runs]
        lines += ["</ul>", "</li>"]
    count = sum(len(group.runs) for group in section.groups)
    return _details("How the runs were made", count, "run", ['<ul class="runs">', *lines, "</ul>"])


def _table(section: Section, found: Rows, notes: Mapping[str, int]) -> list[str]:
    title = escape(f"{section.title}: means over seeds at the end of the stream")
    metrics = comparison.metrics_of(section.score)
    down = ' rowspan="2"' if section.compared else ""
    columns = [f'<th scope="col" class="name"{down}>method</th>']
    columns += [f'<th scope="col"{down}>{name}</th>' for name in ("rate", "seeds")]
    group = 'scope="colgroup" colspan="3"' if section.compared else 'scope="col"'
    columns += [f'<th {group} class="first">{escape(metric.heading)}</th>' for metric in metrics]
    head = [f"<tr>{''.join(columns)}</tr>"]
    if section.compared:
        below = '<th scope="col" class="first">measured</th><th scope="col">paper</th>'
        below += '<th scope="col"><abbr title="difference in the paper\'s deviations">Δ</abbr></th>'
        head.append(f"<tr>{below * len(metrics)}</tr>")
    return [
        f'<div class="scroll table" tabindex="0" role="region" aria-label="{title}">',
        "<table>",
        f"<caption>{title}</caption>",
        "<thead>",
        *head,
        "</thead>",
        "<tbody>",
        *(_row(section, group, compared, notes) for group, compared in found),
        "</tbody>",
        "</table>",
        "</div>",
    ]


def _row(
    section: Section, group: Group, compared: Sequence[Comparison], notes: Mapping[str, int]
) -> str:
    # A name may break after an underscore, where a phone leaves it little room.
    settings = escape(", ".join(group.settings())).replace("_", "_<wbr>")
    small = f"<small>{settings}</small>" if settings else ""
    cells = [
        f'<th scope="row" class="name">{escape(group.config.label)}{small}</th>',
        f"<td>{group.rate}</td>",
        f"<td>{len(group.runs)}</td>",
    ]
    for each in compared:
        cells.append(f'<td class="first">{_typeset(each.measured_text())}</td>')
        if section.compared:
            number = notes.get(each.reference.note) if each.reference else None
            link = f'<sup><a href="#{section.slug}-note-{number}">{number}</a></sup>'
            paper = _typeset(each.paper_text()) + (link if number else "")
            cells.append(f'<td class="paper">{paper}</td>')
            cells.append(f'<td class="paper">{_typeset(each.difference_text())}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _typeset(number: str) -> str:
    """Real minus signs, and the deviation less prominent than the mean.

    >>> _typeset("1.2 ± 0.5")
    '1.2 <span>± 0.5</span>'
    """
    text = escape(number.replace("-", "\N{MINUS SIGN}"))
    mean, sign, deviation = text.partition(" ± ")
    return f"{mean} <span>± {deviation}</span>" if sign else mean


def inline(figure: Figure, name: str, title: str) -> str:
    """The figure without its title, which the page writes, as an element `<svg>`."""
    figure.suptitle("")
    written = io.StringIO()
    # Text stays text, in the page's own font; the salt makes identifiers repeat.
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    root = ET.fromstring(written.getvalue())
    _strip(root)
    _rename(root, name)
    for element in root.iter():
        if "fill" in element.attrib:  # The ground of a hatched bar; a page's colours need a style.
            fill, rest = element.attrib.pop("fill"), element.get("style", "")
            element.set("style", f"fill: {fill}; {rest}")
        if "style" in element.attrib:
            style = re.sub(r"font-family: [^;]*;? ?", "", element.attrib["style"])  # The page's.
            for colour, variable in _VARIABLES.items():
                style = re.sub(colour, f"var({variable})", style, flags=re.IGNORECASE)
            element.set("style", style)
    width, height = root.attrib.pop("width"), root.attrib.pop("height")
    root.attrib.pop("version", None)
    root.set("role", "img")
    root.set("style", f"--width: {_pixels(width)}px; --height: {_pixels(height)}px")
    body = "".join(ET.tostring(child, encoding="unicode") for child in root)
    attributes = "".join(f' {key}="{escape(root.attrib[key])}"' for key in root.attrib)
    return f"<svg{attributes}><title>{escape(title)}</title>{body}</svg>"


def _strip(root: ET.Element) -> None:
    """Drops namespaces, metadata, indentation, and the style sheet, which would rule the page."""
    for element in root.iter():
        element.tail = None
        if element.text and not element.text.strip():
            element.text = None
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
        element.tag = element.tag.partition("}")[2]
        for key in list(element.attrib):
            if "}" in key:
                element.set(key.partition("}")[2], element.attrib.pop(key))
        if "d" in element.attrib:  # A hundredth of a point is finer than any screen.
            element.set("d", re.sub(r"(\.\d\d)\d+", r"\1", element.attrib["d"]))
        for child in list(element):
            empty = "fill: none; stroke: #ffffff" in child.get("style", "")  # A tile without value.
            if empty or child.tag.endswith(("}metadata", "}style")):
                element.remove(child)


def _rename(root: ET.Element, name: str) -> None:
    """Keeps the ids that something refers to, and makes them unique in the page."""
    used = set()
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == "href" and value.startswith("#"):
                used.add(value[1:])
                element.set(key, f"#{name}-{value[1:]}")
            else:  # A clip path, or the pattern of a hatched bar, which is in a style.
                used.update(re.findall(r"url\(#([^)]+)\)", value))
                element.set(key, value.replace("url(#", f"url(#{name}-"))
    for element in root.iter():
        found = element.attrib.pop("id", None)
        if found in used:
            element.set("id", f"{name}-{found}")


def _pixels(points: str) -> int:
    return round(float(points.removesuffix("pt")) * 96 / 72)
