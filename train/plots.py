"""Figures of a run: accuracy along the stream, accuracy matrix, alpha, and methods compared.

Every function takes plain arrays and returns a figure. Accuracies come in
[0, 1] and are drawn in percent, tasks are indexed from zero and drawn from one. A leading axis
counts seeds; NaN is left blank. pyplot is not used: it keeps every figure in global state.
"""

import math
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import AutoLocator, LogLocator, NullLocator
from matplotlib.typing import LineStyleType
from numpy.typing import ArrayLike, NDArray

from train.run.metrics import over_seeds

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
MOST_TICKS, MOST_NUMBERS = 20, 12  # Tasks beyond which labels would touch.

Style = dict[str, Any]


def accuracy_along_stream(
    curves: Mapping[str, ArrayLike], *, title: str, narrow: bool = False
) -> Figure:
    """The average accuracy A_t of each method, ``curves[method][seed, t]``, task by task.

    A ``narrow`` figure has its legend below, for a screen that is held upright.

    >>> accuracy_along_stream({"sgd": [[0.9, 0.7]]}, title="Stream").axes[0].get_ylabel()
    'average accuracy (%)'
    """
    size = (NARROW, 3.4 + 0.19 * (len(curves) + 1)) if narrow else (WIDE, 4.8)
    figure = _figure(*size, title)
    axes = _plain(figure.add_subplot())
    _draw_curves(axes, curves, legend_below=narrow)
    axes.set_ylabel("average accuracy (%)", fontsize=TEXT)
    tasks = np.shape(next(iter(curves.values())))[-1]
    _count_tasks(axes, tasks, "tasks learned", most=MOST_TICKS // 2 if narrow else MOST_TICKS)
    return figure


def accuracy_matrix(
    a: ArrayLike,
    task_names: Sequence[str],
    *,
    title: str,
    limits: tuple[float, float] | None = None,
) -> Figure:
    """A heat map of ``a[t, s]`` (or ``a[seed, t, s]``): the accuracy on task s after task t.

    A name may be empty. ``limits``, in percent, give several figures one colour scale.

    >>> accuracy_matrix([[0.9, np.nan], [0.5, 0.8]], ["a", "b"], title="A").axes[0].get_xlabel()
    'evaluated on task'
    """
    names = [_wrap(name) for name in task_names]
    tasks = len(names)
    percent = np.where(np.tri(tasks, dtype=bool), 100 * _mean_matrix(a), np.nan)
    low, high = limits or round_limits(percent)

    cell = max(0.5 if tasks <= MOST_NUMBERS else 0.32, _height(names))
    side = max(3.0, tasks * cell)
    longest = max(len(line) for name in names for line in name.split("\n"))
    figure = _figure(side + 1.8 + 0.08 * longest, side + 1.1, title)
    axes = figure.add_subplot()
    edges = np.arange(tasks + 1) + 0.5
    tiles: Style = dict(cmap="cividis", vmin=low, vmax=high, edgecolors="white", linewidth=1)
    mesh = axes.pcolormesh(edges, edges, np.ma.masked_invalid(percent), **tiles)
    if tasks <= MOST_NUMBERS:
        style: Style = dict(ha="center", va="center", fontsize=SMALL)
        for t, s in np.argwhere(~np.isnan(percent)):
            red, green, blue, _ = mesh.to_rgba(percent[t, s])
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            colour = ON_DARK if dark else ON_BRIGHT
            axes.text(s + 1, t + 1, f"{percent[t, s]:.1f}", color=colour, **style)
    axes.invert_yaxis()
    # The names are written once, and across only the numbers: no slanted text.
    numbers = range(1, tasks + 1)
    axes.set_xticks(numbers)
    axes.set_yticks(numbers, [f"{name}  {n}" for n, name in zip(numbers, names, strict=True)])
    axes.tick_params(length=0, labelsize=SMALL, labelcolor=INK)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("evaluated on task", fontsize=TEXT)
    axes.set_ylabel("after learning task", fontsize=TEXT, labelpad=8)
    bar = figure.colorbar(mesh, ax=axes, fraction=0.03, pad=0.02, aspect=40)
    bar.set_label("accuracy (%)", fontsize=TEXT)
    bar.ax.tick_params(labelsize=SMALL)
    bar.outline.set_linewidth(0)
    return figure


def alpha(alpha_matrix: ArrayLike, *, title: str, b: float) -> Figure:
    """Every ``alpha[t, s]`` with s != t, and its range over s for each task t of the stream.

    >>> alpha([[0.1, np.nan], [0.5, 0.1]], title="Alpha", b=5).axes[0].get_yscale()
    'log'
    """
    matrix = _mean_matrix(alpha_matrix)
    figure = _figure(WIDE, 4.5, title)
    axes = _plain(figure.add_subplot())
    t, s = np.nonzero(~np.isnan(_others(matrix)))
    dots: Style = dict(color=DOTS, markersize=4.5, markeredgewidth=0, alpha=0.6)
    axes.plot(t + 1, matrix[t, s], "o", label="each task s", **dots)
    _draw_alpha_range(axes, matrix, b)
    axes.set_ylabel("α(t, s) (log scale)", fontsize=TEXT)
    _count_tasks(axes, len(matrix), "task t")
    return figure


def alpha_and_accuracy(
    alpha_matrix: ArrayLike, curves: Mapping[str, ArrayLike], s: int, *, title: str, b: float
) -> Figure:
    """One task s as the stream goes on: ``alpha[t, s]`` above, its accuracy below.

    ``curves[method][seed, t]`` is the accuracy ``a[t, s]``; both start where s is learned.

    >>> curves = {"tag": [[0.9, 0.7]]}
    >>> figure = alpha_and_accuracy([[0.1, np.nan], [0.5, 0.1]], curves, 0, title="Task 1", b=5)
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['α(t, 1) (log scale)', 'accuracy on task 1 (%)']
    """
    matrix = _mean_matrix(alpha_matrix)
    tasks = len(matrix)
    since = np.arange(tasks) >= s
    figure = _figure(WIDE, 6.2, title)
    above, below = (_plain(axes) for axes in figure.subplots(2, 1))
    of_s = np.where(since, _others(matrix)[:, s], np.nan)
    black: Style = dict(color=INK, markersize=5, zorder=3)
    above.plot(np.arange(1, tasks + 1), of_s, "o-", label=f"s = {s + 1}", **black)
    _draw_alpha_range(above, np.where(since[:, None], matrix, np.nan), b)
    above.set_ylabel(f"α(t, {s + 1}) (log scale)", fontsize=TEXT)
    _draw_curves(below, {name: np.where(since, a, np.nan) for name, a in curves.items()})
    below.set_ylabel(f"accuracy on task {s + 1} (%)", fontsize=TEXT)
    _count_tasks(above, tasks, "", first=s + 1)
    _count_tasks(below, tasks, "task t", first=s + 1)
    above.tick_params(labelbottom=False)
    figure.align_ylabels()
    return figure


def method_bars(
    values: Mapping[str, ArrayLike],
    *,
    title: str,
    unit: str,
    lower_is_better: bool = False,
    reference: Mapping[str, tuple[float, float]] | None = None,
    hatched: Collection[str] = (),
    in_order: bool = False,
    narrow: bool = False,
) -> Figure:
    """The mean over seeds of each method's values, best first, with the standard deviation.

    ``unit`` is the quantity with its unit, such as ``"accuracy (%)"``, and the values are drawn
    as they are. ``reference`` gives mean and standard deviation of the paper for some methods. The
    bars of some may be ``hatched``, and all be ``in_order`` as they are given. A ``narrow`` figure
    is without the numbers beside the bars.

    >>> figure = method_bars({"sgd": [51.0, 53.0], "tag": [62.0]}, title="M", unit="accuracy (%)")
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['tag', 'sgd']
    """
    reference = reference or {}
    results = {name: over_seeds(seeds) for name, seeds in values.items()}
    sign = 1 if lower_is_better else -1
    order = list(results)
    if not in_order:
        order.sort(key=lambda name: np.nan_to_num(sign * results[name][0], nan=math.inf))
    means, stds = np.array([results[name] for name in order]).T
    several = np.array([np.size(values[name]) > 1 for name in order])
    places = np.arange(len(order))

    names = [_wrap(name, NAME_WIDTH // 2 if narrow else NAME_WIDTH) for name in order]
    height = 1.7 + max(0.42, _height(names)) * len(order)
    figure = _figure(NARROW if narrow else WIDE, height, title)
    axes = _plain(figure.add_subplot())
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.axvline(0, color=GREY, linewidth=0.8)
    label = f"measured, {_seeds_in_words(values)}"
    hatches = ["////" if name in hatched else "" for name in order]
    axes.barh(
        places,
        means,
        height=0.62,
        color=BARS,
        label=label,
        hatch=hatches,
        edgecolor="white",
        linewidth=0,
    )
    thin: Style = dict(fmt="none", ecolor=INK, elinewidth=1.2, capsize=3)
    known = [place for place, name in enumerate(order) if name in reference]
    # The measured deviation and the paper's are at two heights: neither can cover the other.
    high, low = places - (0.1 if known else 0), np.array(known) + 0.15
    axes.errorbar(means[several], high[several], xerr=stds[several], **thin)
    digits = 2 if np.nanmax(np.abs(means), initial=0) >= 2 else 3
    shown = np.where(several, stds, np.nan)
    cells = [_number(*pair, digits) for pair in zip(means, shown, strict=True)]
    if not narrow:
        _column(axes, 8, "measured", dict(enumerate(cells)), INK)

    if known:
        paper = np.array([reference[order[place]] for place in known])
        hollow: Style = dict(fmt="D", color=COLOURS[1], mfc="white", markersize=6, capsize=3)
        axes.errorbar(paper[:, 0], low, xerr=paper[:, 1], label="paper, mean ± s.d.", **hollow)
        indent = 14 + 6.2 * max(map(len, ["measured", *cells]))  # Points: beyond the first column.
        theirs = {place: _number(*reference[order[place]], 2) for place in known}  # As printed.
        if not narrow:
            _column(axes, indent, "paper", theirs, COLOURS[1])
    axes.set_yticks(places, names, fontsize=TEXT)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set_xlabel(f"{unit}, {'lower' if lower_is_better else 'higher'} is better", fontsize=TEXT)
    columns = 1 if narrow else 2
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=SMALL)
    return figure


def _figure(width: float, height: float, title: str) -> Figure:
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.07)
    figure = Figure(figsize=(width, height), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    letters = int(width * 72 / (0.6 * TITLE))
    style: Style = dict(x=0.1 / width, ha="left", fontsize=TITLE, fontweight="bold", color=INK)
    figure.suptitle(textwrap.fill(title, letters), **style)
    return figure


def _plain(axes: Axes) -> Axes:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(GREY)
    axes.tick_params(labelsize=SMALL, color=GREY, labelcolor=INK)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def _wrap(name: str, width: int = NAME_WIDTH) -> str:
    """Lines of a name, broken at spaces and behind underscores, and only then anywhere.

    >>> _wrap("er (memory_per_class 5)", 13)
    'er (memory_\\nper_class 5)'
    """
    lines = [""]
    for piece in re.findall(r"\s*[^\s_]+_*|_+", name):
        if len(lines[-1] + piece) > width:
            *whole, piece = textwrap.wrap(piece.strip(), width)
            lines += [*whole, ""]
        lines[-1] += piece
    return "\n".join(filter(None, lines))


def _height(names: Sequence[str]) -> float:
    """The inches that the tallest of some wrapped names needs, with a gap."""
    return 0.05 + 0.17 * max(name.count("\n") + 1 for name in names)


def _count_tasks(
    axes: Axes, tasks: int, label: str, *, first: int = 1, most: int = MOST_TICKS
) -> None:
    axes.set_xlim(first - 0.5, tasks + 0.5)
    axes.set_xticks(range(first, tasks + 1, math.ceil(tasks / most)))
    axes.set_xlabel(label, fontsize=TEXT)


def _legend(axes: Axes, title: str, *, below: bool = False, **options: Any) -> None:
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


def _draw_curves(
    axes: Axes, curves: Mapping[str, ArrayLike], *, legend_below: bool = False
) -> None:
    """One line for each ``curves[method][seed, t]`` in percent, in a band of one deviation."""
    lines = []
    means = {
        name: over_seeds(100 * np.asarray(curve, np.float64)) for name, curve in curves.items()
    }
    # All tasks learned at once give one value, at the end: a level to compare with, not a curve.
    levels = [name for name, (mean, _) in means.items() if _is_level(mean)]
    for i, name in enumerate(levels):
        dashes = (0, (1 + 2 * i, 1 + i / 2))  # Dots, then longer and longer.
        grey: Style = dict(color=GREY, linestyle=dashes, linewidth=1.8)
        lines.append(axes.axhline(means[name][0][-1], label=_wrap(name), **grey))
    for i, name in enumerate(name for name in means if name not in levels):
        mean, std = means[name]
        x = np.arange(1, len(mean) + 1)
        colour = COLOURS[i % len(COLOURS)]
        hollow = i // len(MARKERS) % 2
        style: Style = dict(marker=MARKERS[i % len(MARKERS)], linestyle=LINES[i % len(LINES)])
        style |= dict(color=colour, markerfacecolor="white" if hollow else colour, markersize=5)
        lines += axes.plot(x, mean, label=_wrap(name), **style)
        if len(np.asarray(curves[name])) > 1:
            axes.fill_between(x, mean - std, mean + std, color=colour, alpha=0.1, linewidth=0)
    # The order of the legend is that of the lines' right ends.
    lines.sort(key=lambda line: _last(line.get_ydata()), reverse=True)
    _legend(axes, _seeds_in_words(curves), below=legend_below, handles=lines)


def _is_level(mean: NDArray[np.float64]) -> bool:
    return len(mean) > 1 and bool(np.isnan(mean[:-1]).all() and np.isfinite(mean[-1]))


def _last(values: ArrayLike) -> float:
    values = np.asarray(values, np.float64)
    finite = values[~np.isnan(values)]
    return finite[-1] if finite.size else -math.inf


def _seeds_in_words(values: Mapping[str, ArrayLike]) -> str:
    counts = {len(np.asarray(seeds)) for seeds in values.values()}
    if counts == {1}:
        return "one seed"
    return f"mean ± s.d. over {counts.pop() if len(counts) == 1 else 'the'} seeds"


def _draw_alpha_range(axes: Axes, matrix: NDArray[np.float64], b: float) -> None:
    """The paper's grey lines and the weight of an unrelated task, on a logarithmic axis."""
    others = _others(matrix)
    x = np.arange(1, len(matrix) + 1)
    counts = np.sum(~np.isnan(others), axis=1)
    means = np.where(counts, np.nansum(others, axis=1) / np.maximum(counts, 1), np.nan)
    # fmax and fmin are silent where a task has no others.
    highest, lowest = np.fmax.reduce(others, axis=1), np.fmin.reduce(others, axis=1)
    axes.set_yscale("log")
    span = np.fmax.reduce(highest, initial=1) / np.fmin.reduce(lowest, initial=1)
    decades = LogLocator(subs=(1, 2, 5) if span < 1e4 else (1,))
    axes.yaxis.set_major_locator(AutoLocator() if span < 8 else decades)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    grey: Style = dict(color=GREY, linewidth=1.3)
    axes.plot(x, highest, "--", label="maximum over s", **grey)
    axes.plot(x, means, "-", label="mean over s", **grey)
    axes.plot(x, lowest, "--", label="minimum over s", **grey)
    unrelated: Style = dict(color=COLOURS[1], linestyle=":", linewidth=1.8)
    axes.axhline(1, label="unrelated: 1", **unrelated)
    # The ends of the scale are written, not drawn: they may lie decades away from every weight.
    opposed = float(f"{math.exp(b):.3g}")
    ends = f"same direction: {math.exp(-b):.2g}\nopposed: {opposed:,g}"
    _legend(axes, f"α(t, s) with s ≠ t, b = {b:g}\n{ends}")


def _others(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)


def _mean_matrix(matrix: ArrayLike) -> NDArray[np.float64]:
    matrix = np.asarray(matrix, np.float64)
    return over_seeds(matrix)[0] if matrix.ndim == 3 else matrix


def round_limits(percent: NDArray[np.float64]) -> tuple[float, float]:
    """The range of the values, out to multiples of ten."""
    finite = percent[~np.isnan(percent)]
    if not finite.size:
        return 0, 100
    low = 10 * math.floor(finite.min() / 10)
    return low, max(low + 10, 10 * math.ceil(finite.max() / 10))


def _number(mean: float, std: float, digits: int) -> str:
    if np.isnan(mean):
        return "no value"
    text = f"{mean:.{digits}f}" + ("" if np.isnan(std) else f" ± {std:.{digits}f}")
    return text.replace("-", "\N{MINUS SIGN}")


def _column(axes: Axes, indent: float, header: str, cells: Mapping[int, str], colour: str) -> None:
    """Text beside the axes, at the height of some bars, ``indent`` points from the right edge."""
    style: Style = dict(textcoords="offset points", fontsize=SMALL, color=colour)
    right = axes.get_yaxis_transform()
    for place, cell in cells.items():
        axes.annotate(cell, (1, place), (indent, 0), xycoords=right, va="center", **style)
    axes.annotate(header, (1, 1), (indent, 4), xycoords="axes fraction", va="bottom", **style)
