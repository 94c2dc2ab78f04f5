"""The report as one HTML page, complete in itself: no script, nothing to fetch."""

import io
import pathlib
import re
import string
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from html import escape

import matplotlib
from matplotlib.figure import Figure

import tag_optax
from train import plot_style
from train.report import comparison
from train.report.drawings import Drawing
from train.report.groups import Section, origins

MADE_BY = "Made by <code>python -m train report</code>"
"""Tells a report from any other page."""
# Colours that the page sets, for light and for dark; those of a heat map stay.
_VARIABLES = {colour: f"--line-{number}" for number, colour in enumerate(plot_style.COLOURS)} | {
    **{plot_style.INK: "--ink", "#000000": "--ink", "#ffffff": "--plot"},
    **{plot_style.GREY: "--muted", plot_style.GRID: "--grid", plot_style.BARS: "--bars"},
}
_HERE = pathlib.Path(__file__)


def page(sections: Sequence[Section], parts: Sequence[str]) -> str:
    """The whole document, of what `section_part` has made of each section."""
    introduction = [f"<p>{escape(text)}</p>" for text in comparison.explanation(sections)]
    if len(sections) > 1:
        links = [f'<li><a href="#{s.slug}">{escape(s.title)}</a></li>' for s in sections]
        introduction += ['<nav aria-label="Sections"><ul>', *links, "</ul></nav>"]
    paper = f'<p>The paper: <a href="{comparison.LINK}">{escape(comparison.PAPER)}</a>.</p>\n'
    compared = any(section.compared for section in sections)
    return string.Template(_HERE.with_name("page.html").read_text()).substitute(
        style=_HERE.with_name("page.css").read_text(),
        introduction="\n".join(introduction),
        sections="\n".join(parts),
        origin=f"{paper * compared}<p>{MADE_BY}, tag_optax {tag_optax.__version__}.</p>",
    )


def section_part(section: Section, figures: Sequence[str], details: Sequence[str]) -> str:
    """A section, with its plots from `figure`: those that compare groups, and those of single
    ones."""
    lines = [
        f'<section id="{section.slug}" aria-labelledby="{section.slug}-title">',
        f'<h2 id="{section.slug}-title">{escape(section.title)}</h2>',
        *_table(section),
    ]
    remarks = [f"<li>{escape(remark)}</li>" for remark in comparison.remarks(section)]
    lines += ['<ul class="remarks">', *remarks, "</ul>"] if remarks else []
    lines += [
        f'<p class="facts"><b>Seeds</b> {escape(comparison.seeds_in_words(section))}. '
        f"<b>Data</b> {escape('; '.join(section.sources()))}.</p>",
        *('<div class="figures">', *figures, "</div>"),
    ]
    if details:
        plots = ['<div class="figures">', *details, "</div>"]
        lines += _details("Each method by itself", len(details), "plot", plots)
    runs = ['<ul class="runs">']
    for origin in origins(section):
        command = [f"<p><code>{escape(origin.command)}</code></p>"] if origin.command else []
        runs += ["<li>", *command, f"<p>{escape('; '.join(origin.facts))}</p>", "<ul>"]
        runs += [*(f"<li>{escape(path)}</li>" for path in origin.runs), "</ul>", "</li>"]
    count = sum(len(group.runs) for group in section.groups)
    lines += _details("How the runs were made", count, "run", [*runs, "</ul>"])
    return "\n".join([*lines, "</section>"])


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


def _details(summary: str, count: int, noun: str, inside: list[str]) -> list[str]:
    counted = f"{count} {noun}" + ("s" if count != 1 else "")
    opening = f"<details><summary>{summary} <small>{counted}</small></summary>"
    return [opening, *inside, "</details>"]


def _table(section: Section) -> list[str]:
    """The table, and below it the notes of the paper's figures."""
    found, notes = comparison.rows(section)
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
    anchor = f"{section.slug}-note"
    body = []
    for group, compared in found:
        # A name may break after an underscore, where a phone leaves it little room.
        settings = escape(", ".join(group.settings())).replace("_", "_<wbr>")
        small = f"<small>{settings}</small>" if settings else ""
        cells = [
            f'<th scope="row" class="name">{escape(group.config.label)}{small}</th>',
            f"<td>{group.rate}</td><td>{len(group.runs)}</td>",
        ]
        for each in compared:
            cells.append(f'<td class="first">{_typeset(each.measured_text())}</td>')
            if section.compared:
                number = notes.get(each.note)
                link = f'<sup><a href="#{anchor}-{number}">{number}</a></sup>' if number else ""
                cells.append(f'<td class="paper">{_typeset(each.paper_text())}{link}</td>')
                cells.append(f'<td class="paper">{_typeset(each.difference_text())}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    numbered = [f'<li id="{anchor}-{n}">{escape(text)}</li>' for text, n in notes.items()]
    return [
        f'<div class="scroll table" tabindex="0" role="region" aria-label="{title}">',
        *("<table>", f"<caption>{title}</caption>"),
        *("<thead>", *head, "</thead>"),
        *("<tbody>", *body, "</tbody>"),
        *("</table>", "</div>"),
        *(['<ol class="notes">', *numbered, "</ol>"] if numbered else []),
    ]


def _typeset(number: str) -> str:
    """Real minus signs, and the deviation less prominent than the mean."""
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
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', written.getvalue()))
    for element in root.iter():
        _adapt(element, name, used)
    points = (root.attrib.pop(side).removesuffix("pt") for side in ("width", "height"))
    width, height = (round(float(length) * 96 / 72) for length in points)
    del root.attrib["version"]
    root.set("role", "img")
    root.set("style", f"--width: {width}px; --height: {height}px")
    body = "".join(ET.tostring(child, encoding="unicode") for child in root)
    attributes = "".join(f' {key}="{escape(value)}"' for key, value in root.attrib.items())
    return f"<svg{attributes}><title>{escape(title)}</title>{body}</svg>"


def _adapt(element: ET.Element, name: str, used: set[str]) -> None:
    """Drops namespaces, metadata, indentation, and the style sheet, which would rule the page;
    leaves fonts and colours to the page; and keeps used ids alone, unique in the page."""
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
    if "fill" in element.attrib:  # The ground of a hatched bar; a page's colours need a style.
        fill, rest = element.attrib.pop("fill"), element.get("style", "")
        element.set("style", f"fill: {fill}; {rest}")
    if "style" in element.attrib:
        style = re.sub(r"font-family: [^;]*;? ?", "", element.attrib["style"])
        for colour, variable in _VARIABLES.items():
            style = re.sub(colour, f"var({variable})", style, flags=re.IGNORECASE)
        element.set("style", style)
    for key, value in element.attrib.items():
        start = "#" if key == "href" else "url(#"  # Of a clip path, or a hatched bar's pattern.
        element.set(key, value.replace(start, f"{start}{name}-"))
    found = element.attrib.pop("id", None)
    if found in used:
        element.set("id", f"{name}-{found}")
