"""The report as one HTML page, complete in itself: no script, nothing to fetch."""

import dataclasses
import pathlib
from collections.abc import Sequence
from html import escape

import tag_optax
from train.report.comparison import (
    METRICS,
    Comparison,
    Footnotes,
    compare,
    remarks,
    seeds_in_words,
)
from train.report.explanation import LINK, PAPER, explanation
from train.report.groups import Group, Section
from train.report.provenance import origins
from train.run import config as configs

MADE_BY = "Made by <code>python -m train report</code>"
"""Tells a report from any other page."""
_STYLE = pathlib.Path(__file__).with_name("page.css")


@dataclasses.dataclass(frozen=True)
class Figure:
    """A plot as SVG, ready to be put in a page."""

    name: str
    title: str
    svg: str
    narrow: str | None
    """The same for a screen held upright."""
    detail: bool
    wide: bool


def page(sections: Sequence[tuple[Section, Sequence[Figure]]]) -> str:
    """The whole document."""
    compared = any(section.compared for section, _ in sections)
    paragraphs = [f"<p>{escape(text)}</p>" for text in explanation(compared=compared)]
    body = [
        "<header>",
        "<h1>Results</h1>",
        *paragraphs,
        *_contents([section for section, _ in sections]),
        "</header>",
        "<main>",
        *(line for section, figures in sections for line in _section(section, figures)),
        "</main>",
        "<footer>",
        f'<p>The paper: <a href="{LINK}">{escape(PAPER)}</a>.</p>' if compared else "",
        f"<p>{MADE_BY}, tag_optax {tag_optax.__version__}.</p>",
        "</footer>",
    ]
    return "\n".join(
        [
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
            *filter(None, body),
            "</body>",
            "</html>",
            "",
        ]
    )


def _contents(sections: Sequence[Section]) -> list[str]:
    if len(sections) < 2:
        return []
    links = "\n".join(f'<li><a href="#{s.slug}">{escape(s.title)}</a></li>' for s in sections)
    return [f'<nav aria-label="Sections"><ul>\n{links}\n</ul></nav>']


def _section(section: Section, figures: Sequence[Figure]) -> list[str]:
    notes = Footnotes()
    table = _table(section, notes)
    details = [figure for figure in figures if figure.detail]
    return [
        f'<section id="{section.slug}" aria-labelledby="{section.slug}-title">',
        f'<h2 id="{section.slug}-title">{escape(section.title)}</h2>',
        *table,
        *_notes(section, notes),
        f'<p class="facts"><b>Seeds</b> {escape(seeds_in_words(section))}. '
        f"<b>Data</b> {escape('; '.join(section.sources()))}.</p>",
        '<div class="figures">',
        *(_figure(figure) for figure in figures if not figure.detail),
        "</div>",
        *(_details("Each method by itself", len(details), "plot", _figures(details))),
        *_runs(section),
        "</section>",
    ]


def _figures(figures: Sequence[Figure]) -> list[str]:
    return ['<div class="figures">', *map(_figure, figures), "</div>"] if figures else []


def _figure(figure: Figure) -> str:
    name = escape(figure.name)
    wide = ' class="wide"' if figure.wide else ""
    roomy = "scroll roomy" if figure.narrow else "scroll"
    narrow = f'<div class="narrow">{figure.narrow}</div>' if figure.narrow else ""
    return (
        f'<figure id="{name}"{wide}><figcaption>{escape(figure.title)}</figcaption>'
        f'<div class="{roomy}" tabindex="0" role="group" aria-label="{escape(figure.title)}">'
        f"{figure.svg}</div>{narrow}</figure>"
    )


def _details(summary: str, count: int, noun: str, inside: list[str]) -> list[str]:
    if not inside:
        return []
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
        lines.append(f"<p>{escape('; '.join(origin.facts))}</p>")
        lines.append("<ul>")
        lines += [f"<li>{escape(path)}</li>" for path in origin.runs]
        lines += ["</ul>", "</li>"]
    count = sum(len(group.runs) for group in section.groups)
    return _details("How the runs were made", count, "run", ['<ul class="runs">', *lines, "</ul>"])


def _notes(section: Section, notes: Footnotes) -> list[str]:
    lines = []
    if notes.texts:
        lines.append('<ol class="notes">')
        for number, text in enumerate(notes.texts, start=1):
            lines.append(f'<li id="{section.slug}-note-{number}">{escape(text)}</li>')
        lines.append("</ol>")
    remarked = remarks(section)
    if remarked:
        lines += ['<ul class="remarks">', *(f"<li>{escape(r)}</li>" for r in remarked), "</ul>"]
    return lines


def _table(section: Section, notes: Footnotes) -> list[str]:
    title = escape(f"{section.title}: means over seeds at the end of the stream")
    return [
        f'<div class="scroll table" tabindex="0" role="region" aria-label="{title}">',
        "<table>",
        f"<caption>{title}</caption>",
        *_head(section.compared),
        "<tbody>",
        *(_row(section, group, notes) for group in section.groups),
        "</tbody>",
        "</table>",
        "</div>",
    ]


def _head(compared: bool) -> list[str]:
    down = ' rowspan="2"' if compared else ""
    columns = [f'<th scope="col" class="name"{down}>method</th>']
    columns += [f'<th scope="col"{down}>{name}</th>' for name in ("rate", "seeds")]
    if not compared:
        columns += [f'<th scope="col" class="first">{metric.heading}</th>' for metric in METRICS]
        return ["<thead>", f"<tr>{''.join(columns)}</tr>", "</thead>"]
    columns += [
        f'<th scope="colgroup" colspan="3" class="first">{metric.heading}</th>'
        for metric in METRICS
    ]
    below = '<th scope="col" class="first">measured</th><th scope="col">paper</th>'
    below += '<th scope="col"><abbr title="difference in the paper\'s deviations">Δ</abbr></th>'
    return [
        "<thead>",
        f"<tr>{''.join(columns)}</tr>",
        f"<tr>{below * len(METRICS)}</tr>",
        "</thead>",
    ]


def _row(section: Section, group: Group, notes: Footnotes) -> str:
    # A name may break after an underscore, where a phone leaves it little room.
    settings = escape(", ".join(group.settings())).replace("_", "_<wbr>")
    small = f"<small>{settings}</small>" if settings else ""
    cells = [
        f'<th scope="row" class="name">{escape(configs.label(group.config))}{small}</th>',
        f"<td>{group.config.learning_rate:g}</td>",
        f"<td>{len(group.runs)}</td>",
    ]
    for metric in METRICS:
        found = compare(group, metric)
        cells.append(f'<td class="first">{_typeset(found.measured_text())}</td>')
        if section.compared:
            cells.append(f'<td class="paper">{_paper(section, found, notes)}</td>')
            cells.append(f'<td class="paper">{_typeset(found.difference_text())}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _paper(section: Section, found: Comparison, notes: Footnotes) -> str:
    text = _typeset(found.paper_text())
    number = notes.number(found.reference.note) if found.reference else None
    if number is None:
        return text
    return f'{text}<sup><a href="#{section.slug}-note-{number}">{number}</a></sup>'


def _typeset(number: str) -> str:
    """Real minus signs, and the deviation less prominent than the mean.

    >>> _typeset("1.2 ± 0.5")
    '1.2 <span>± 0.5</span>'
    """
    text = escape(number.replace("-", "\N{MINUS SIGN}"))
    mean, sign, deviation = text.partition(" ± ")
    return f"{mean} <span>± {deviation}</span>" if sign else mean
