"""How every figure looks: colours, sizes, axes, legends, and names that may be long."""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.typing import LineStyleType

# Okabe and Ito's colours, safe for the colour-blind, with grey for their yellow, faint on white.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#000000"),
    *("#CC79A7", "#E69F00", "#56B4E9", "#707070"),
)
MARKERS = "osD^"  # Filled for four methods, hollow for the next four.
# Five, so that the ninth method has the colour and marker of the first, but not its line.
LINES: tuple[LineStyleType, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
INK, GREY, GRID, DOTS, BARS = "#222222", "#6E6E6E", "#E3E3E3", "#56B4E9", "#8CCBEF"
# On a coloured tile: not INK and white, which a page with a dark background exchanges.
ON_DARK, ON_BRIGHT = "#FEFEFE", "#111111"
WIDE, NARROW = 8.5, 4.1  # Inches.
TITLE, TEXT, SMALL = 12.0, 10.0, 9.0  # Points.
NAME_WIDTH = 30  # Characters in a line of a method's or a task's name.
MOST_TICKS = 20  # Tasks beyond which labels would touch.

Style = dict[str, Any]


def blank(width: float, height: float, title: str) -> Figure:
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.07)
    figure = Figure(figsize=(width, height), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    letters = int(width * 72 / (0.6 * TITLE))
    style: Style = dict(x=0.1 / width, ha="left", fontsize=TITLE, fontweight="bold", color=INK)
    figure.suptitle(textwrap.fill(title, letters), **style)
    return figure


def plain(axes: Axes) -> Axes:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(GREY)
    axes.tick_params(labelsize=SMALL, color=GREY, labelcolor=INK)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def wrap(name: str, width: int = NAME_WIDTH) -> str:
    """Lines of a name, broken at spaces and behind underscores, and only then anywhere."""
    lines = [""]
    for piece in re.findall(r"\s*[^\s_]+_*|_+", name):
        if len(lines[-1] + piece) > width:
            *whole, piece = textwrap.wrap(piece.strip(), width)
            lines += [*whole, ""]
        lines[-1] += piece
    return "\n".join(filter(None, lines))


def height_of(names: Sequence[str]) -> float:
    """The inches that the tallest of some wrapped names needs, with a gap."""
    return 0.05 + 0.17 * max(name.count("\n") + 1 for name in names)


def count_tasks(
    axes: Axes, tasks: int, label: str, *, first: int = 1, most: int = MOST_TICKS
) -> None:
    axes.set_xlim(first - 0.5, tasks + 0.5)
    axes.set_xticks(range(first, tasks + 1, math.ceil(tasks / most)))
    axes.set_xlabel(label, fontsize=TEXT)


def legend(axes: Axes, title: str, *, below: bool = False, **options: Any) -> None:
    """Beside the axes or below them, where it covers no data."""
    style: Style = dict(title=title, alignment="left", frameon=False, handlelength=3.2)
    style |= dict(fontsize=SMALL, title_fontsize=SMALL)
    if below:
        figure = axes.get_figure(root=True)
        assert figure is not None
        figure.legend(loc="outside lower left", **style, **options)
    else:
        place: Style = dict(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
        axes.legend(**place, **style, **options)


def column(axes: Axes, indent: float, header: str, cells: Mapping[int, str], colour: str) -> None:
    """Text beside the axes, at the height of some bars, ``indent`` points from the right edge."""
    style: Style = dict(textcoords="offset points", fontsize=SMALL, color=colour)
    right = axes.get_yaxis_transform()
    for place, cell in cells.items():
        axes.annotate(cell, (1, place), (indent, 0), xycoords=right, va="center", **style)
    axes.annotate(header, (1, 1), (indent, 4), xycoords="axes fraction", va="bottom", **style)
