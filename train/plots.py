"""Figures of a run: accuracy along the stream, accuracy matrix, alpha, and methods compared.

Every function takes plain arrays and returns a figure. Accuracies come in [0, 1] and are drawn in
percent, any other score as it is; tasks are indexed from zero and drawn from one. A leading axis
counts seeds; NaN is left blank. pyplot is not used: it keeps every figure in global state.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator, LogLocator, NullLocator
from numpy.typing import ArrayLike, NDArray

from train import plot_style as look
from train.plot_style import Style

MOST_NUMBERS = 12  # Tasks beyond which numbers in a matrix would touch.
MOST_EXPONENT = 700  # Beyond it a power of e is no float.
ACCURACY = "accuracy"
NOTHING = "–"


def accuracy_along_stream(
    curves: Mapping[str, ArrayLike], *, title: str, score: str = "accuracy", narrow: bool = False
) -> Figure:
    """The average accuracy A_t of each method, ``curves[method][seed, t]``, task by task.

    A ``narrow`` figure, for a screen held upright, has its legend below."""
    size = (look.NARROW, 3.4 + 0.19 * (len(curves) + 1)) if narrow else (look.WIDE, 4.8)
    figure = look.blank(*size, title)
    axes = look.plain(figure.add_subplot())
    _draw_curves(axes, curves, score, legend_below=narrow)
    axes.set_ylabel(f"average {_shown(score)[1]}", fontsize=look.TEXT)
    tasks, most = np.shape(next(iter(curves.values())))[-1], look.MOST_TICKS // (1 + narrow)
    look.count_tasks(axes, tasks, "tasks learned", most=most)
    return figure


def accuracy_matrix(
    a: ArrayLike,
    task_names: Sequence[str],
    *,
    title: str,
    limits: tuple[float, float] | None = None,
    score: str = "accuracy",
) -> Figure:
    """A heat map of ``a[t, s]`` (or ``a[seed, t, s]``): the accuracy on task s after task t.

    A name may be empty. ``limits``, in what is drawn, give several figures one colour scale."""
    names = [look.wrap(name) for name in task_names]
    tasks = len(names)
    factor, unit = _shown(score)
    measured = np.where(np.tri(tasks, dtype=bool), _mean_matrix(a), np.nan)
    low, high = limits or round_limits([measured], score)
    shown = factor * measured
    numbers = {
        (t, s): f"{shown[t, s]:{'.1f' if score == ACCURACY else '.3g'}}"
        for t, s in np.argwhere(~np.isnan(shown) & (tasks <= MOST_NUMBERS))
    }
    cell = max(0.5 if tasks <= MOST_NUMBERS else 0.32, look.height_of(names))
    cell = max(cell, 0.085 * max(map(len, numbers.values()), default=0))
    side = max(3.0, tasks * cell)
    longest = max(len(line) for name in names for line in name.split("\n"))
    figure = look.blank(side + 1.8 + 0.08 * longest, side + 1.1, title)
    axes = figure.add_subplot()
    edges = np.arange(tasks + 1) + 0.5
    tiles: Style = dict(cmap="cividis", vmin=low, vmax=high, edgecolors="white", linewidth=1)
    mesh = axes.pcolormesh(edges, edges, np.ma.masked_invalid(shown), **tiles)
    style: Style = dict(ha="center", va="center", fontsize=look.SMALL)
    for (t, s), number in numbers.items():
        red, green, blue, _ = mesh.to_rgba(shown[t, s])
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        axes.text(s + 1, t + 1, number, color=look.ON_DARK if dark else look.ON_BRIGHT, **style)
    axes.invert_yaxis()
    # The names are written once, and across only the numbers: no slanted text.
    axes.set_xticks(range(1, tasks + 1))
    axes.set_yticks(range(1, tasks + 1), [f"{name}  {n}" for n, name in enumerate(names, 1)])
    axes.tick_params(length=0, labelsize=look.SMALL, labelcolor=look.INK)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("evaluated on task", fontsize=look.TEXT)
    axes.set_ylabel("after learning task", fontsize=look.TEXT, labelpad=8)
    bar = figure.colorbar(mesh, ax=axes, fraction=0.03, pad=0.02, aspect=40)
    bar.set_label(unit, fontsize=look.TEXT)
    bar.ax.tick_params(labelsize=look.SMALL)
    bar.outline.set_linewidth(0)
    return figure


def alpha(alpha_matrix: ArrayLike, *, title: str, b: float | None) -> Figure:
    """Every ``alpha[t, s]`` with s != t, and its range over s for each task t of the stream.

    Without a ``b`` the figure does not say between which ends the weights may lie."""
    matrix = _weights(alpha_matrix)
    figure = look.blank(look.WIDE, 4.5, title)
    axes = look.plain(figure.add_subplot())
    t, s = np.nonzero(~np.isnan(_others(matrix)))
    dots: Style = dict(color=look.DOTS, markersize=4.5, markeredgewidth=0, alpha=0.6)
    axes.plot(t + 1, matrix[t, s], "o", label="each task s", **dots)
    _draw_alpha_range(axes, matrix, b)
    axes.set_ylabel("α(t, s) (log scale)", fontsize=look.TEXT)
    look.count_tasks(axes, len(matrix), "task t")
    return figure


def alpha_and_accuracy(
    alpha_matrix: ArrayLike,
    curves: Mapping[str, ArrayLike],
    s: int,
    *,
    title: str,
    b: float | None,
    score: str = "accuracy",
) -> Figure:
    """One task s as the stream goes on: ``alpha[t, s]`` above, its accuracy below.

    ``curves[method][seed, t]`` is the accuracy ``a[t, s]``; both start where s is learned."""
    matrix = _weights(alpha_matrix)
    tasks = len(matrix)
    since = np.arange(tasks) >= s
    figure = look.blank(look.WIDE, 6.2, title)
    above, below = (look.plain(axes) for axes in figure.subplots(2, 1))
    of_s = np.where(since, _others(matrix)[:, s], np.nan)
    black: Style = dict(color=look.INK, markersize=5, zorder=3, label=f"s = {s + 1}")
    above.plot(np.arange(1, tasks + 1), of_s, "o-", **black)
    _draw_alpha_range(above, np.where(since[:, None], matrix, np.nan), b)
    above.set_ylabel(f"α(t, {s + 1}) (log scale)", fontsize=look.TEXT)
    _draw_curves(below, {name: np.where(since, a, np.nan) for name, a in curves.items()}, score)
    quantity, _, unit = _shown(score)[1].partition(" ")
    below.set_ylabel(f"{quantity} on task {s + 1} {unit}".strip(), fontsize=look.TEXT)
    look.count_tasks(above, tasks, "", first=s + 1)
    look.count_tasks(below, tasks, "task t", first=s + 1)
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

    ``unit`` is the quantity with its unit; ``reference`` gives mean and standard deviation of the
    paper for some methods. The bars of some may be ``hatched``, and all be ``in_order`` as they are
    given. A ``narrow`` figure is without the numbers beside the bars."""
    reference = reference or {}
    results = {name: _over_seeds(seeds) for name, seeds in values.items()}
    sign = 1 if lower_is_better else -1
    order = list(results)
    if not in_order:
        order.sort(key=lambda name: np.nan_to_num(sign * results[name][0], nan=math.inf))
    means, stds = np.array([results[name] for name in order]).T
    several = np.array([np.size(values[name]) > 1 for name in order])
    places = np.arange(len(order))
    names = [look.wrap(name, look.NAME_WIDTH // 2 if narrow else look.NAME_WIDTH) for name in order]
    height = 1.7 + max(0.42, look.height_of(names)) * len(order)
    figure = look.blank(look.NARROW if narrow else look.WIDE, height, title)
    axes = look.plain(figure.add_subplot())
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.axvline(0, color=look.GREY, linewidth=0.8)
    bars: Style = dict(height=0.62, color=look.BARS, edgecolor="white", linewidth=0)
    hatches = ["////" if name in hatched else "" for name in order]
    axes.barh(places, means, label=f"measured, {_seeds_in_words(values)}", hatch=hatches, **bars)
    thin: Style = dict(fmt="none", ecolor=look.INK, elinewidth=1.2, capsize=3)
    known = [place for place, name in enumerate(order) if name in reference]
    # The measured deviation and the paper's are at two heights: neither can cover the other.
    high, low = places - (0.1 if known else 0), np.array(known) + 0.15
    axes.errorbar(means[several], high[several], xerr=stds[several], **thin)
    most = np.nanmax(np.abs(means), initial=0)
    digits = ".4g" if most >= 1e4 or 0 < most < 1e-3 else ".2f" if most >= 2 else ".3f"
    shown = np.where(several, stds, np.nan)
    cells = [_number(*pair, digits) for pair in zip(means, shown, strict=True)]
    if not narrow:
        look.column(axes, 8, "measured", dict(enumerate(cells)), look.INK)
    if known:
        paper = np.array([reference[order[place]] for place in known])
        hollow: Style = dict(fmt="D", color=look.COLOURS[1], mfc="white", markersize=6, capsize=3)
        axes.errorbar(paper[:, 0], low, xerr=paper[:, 1], label="paper, mean ± s.d.", **hollow)
        if not narrow:
            indent = 14 + 6.2 * max(map(len, ["measured", *cells]))  # Points, beyond the first.
            theirs = {place: _number(*reference[order[place]], ".2f") for place in known}
            look.column(axes, indent, "paper", theirs, look.COLOURS[1])
    axes.set_yticks(places, names, fontsize=look.TEXT)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(order) - 0.5, -0.5)
    better = "lower" if lower_is_better else "higher"
    axes.set_xlabel(f"{unit}, {better} is better", fontsize=look.TEXT)
    below: Style = dict(loc="outside lower center", frameon=False, fontsize=look.SMALL)
    figure.legend(ncols=1 if narrow else 2, **below)
    return figure


def _draw_curves(
    axes: Axes, curves: Mapping[str, ArrayLike], score: str, *, legend_below: bool = False
) -> None:
    """One line for each ``curves[method][seed, t]`` as shown, in a band of one deviation."""
    lines = []
    factor = _shown(score)[0]
    means = {name: _over_seeds(factor * np.asarray(curve)) for name, curve in curves.items()}
    # All tasks learned at once give one value, at the end: a level to compare with, not a curve.
    measured = {name: ~np.isnan(mean) for name, (mean, _) in means.items()}
    levels = [name for name, some in measured.items() if some[-1] and some.sum() == 1 < len(some)]
    for i, name in enumerate(levels):
        dashes = (0, (1 + 2 * i, 1 + i / 2))  # Dots, then longer and longer.
        grey: Style = dict(color=look.GREY, linestyle=dashes, linewidth=1.8)
        lines.append(axes.axhline(means[name][0][-1], label=look.wrap(name), **grey))
    for i, name in enumerate(name for name in means if name not in levels):
        mean, std = means[name]
        x = np.arange(1, len(mean) + 1)
        colour = look.COLOURS[i % len(look.COLOURS)]
        hollow = i // len(look.MARKERS) % 2
        style: Style = dict(color=colour, linestyle=look.LINES[i % len(look.LINES)], markersize=5)
        style["marker"] = look.MARKERS[i % len(look.MARKERS)]
        style["markerfacecolor"] = "white" if hollow else colour
        lines += axes.plot(x, mean, label=look.wrap(name), **style)
        if len(np.asarray(curves[name])) > 1:
            axes.fill_between(x, mean - std, mean + std, color=colour, alpha=0.1, linewidth=0)
    # The order of the legend is that of the lines' right ends.
    ends = {line: [y for y in np.asarray(line.get_ydata()) if not np.isnan(y)] for line in lines}
    lines.sort(key=lambda line: ends[line][-1] if ends[line] else -math.inf, reverse=True)
    look.legend(axes, _seeds_in_words(curves), below=legend_below, handles=lines)


def _seeds_in_words(values: Mapping[str, ArrayLike]) -> str:
    counts = {len(np.asarray(seeds)) for seeds in values.values()}
    if counts == {1}:
        return "one seed"
    return f"mean ± s.d. over {counts.pop() if len(counts) == 1 else 'the'} seeds"


def _draw_alpha_range(axes: Axes, matrix: NDArray[np.float64], b: float | None) -> None:
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
    ranges = (("maximum", highest, "--"), ("mean", means, "-"), ("minimum", lowest, "--"))
    for name, line, dashes in ranges:
        axes.plot(x, line, dashes, label=f"{name} over s", color=look.GREY, linewidth=1.3)
    unrelated: Style = dict(color=look.COLOURS[1], linestyle=":", linewidth=1.8)
    axes.axhline(1, label="unrelated: 1", **unrelated)
    heading = "α(t, s) with s ≠ t"
    if b is not None:
        # The ends of the scale are written, not drawn: they may lie decades away from every weight.
        ends = f"same direction: {_exp(-b, '.2g')}\nopposed: {_exp(b, '.3g')}"
        heading += f", b = {b:g}\n{ends}"
    look.legend(axes, heading)


def _exp(exponent: float, digits: str) -> str:
    if abs(exponent) > MOST_EXPONENT:
        return f"e^{exponent:g}"
    number = f"{math.exp(exponent):{digits}}"
    return f"{float(number):,g}" if exponent > 0 else number


def _others(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)


def _mean_matrix(matrix: ArrayLike) -> NDArray[np.float64]:
    return _over_seeds(matrix)[0] if np.ndim(matrix) == 3 else np.asarray(matrix, np.float64)


def _weights(matrix: ArrayLike) -> NDArray[np.float64]:
    """Those that a logarithmic axis can show: a large b takes weights to 0 and to infinity."""
    matrix = _mean_matrix(matrix)
    return np.where((matrix > 0) & np.isfinite(matrix), matrix, np.nan)


def _over_seeds(values: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation over the first axis, NaN where one seed has no value."""
    values = np.asarray(values, np.float64)
    return values.mean(axis=0), values.std(axis=0)


def _shown(score: str) -> tuple[float, str]:
    """What a score is multiplied by, and what its axis says."""
    return (100, "accuracy (%)") if score == ACCURACY else (1, score)


def round_limits(
    matrices: Iterable[NDArray[np.float64]], score: str = "accuracy"
) -> tuple[float, float]:
    """The range of what is drawn: of percents, out to multiples of ten."""
    values = _shown(score)[0] * np.concatenate([np.ravel(matrix) for matrix in matrices])
    finite = values[~np.isnan(values)]
    if not finite.size:
        return 0, 100
    low, high = float(finite.min()), float(finite.max())
    if score != ACCURACY:
        return low, high if high > low else low + max(abs(low), 1)
    low = 10 * math.floor(low / 10)
    return low, max(low + 10, 10 * math.ceil(high / 10))


def spread(mean: float, std: float, digits: str, nothing: str = NOTHING) -> str:
    """Mean and deviation, as far as there are any."""
    if math.isnan(mean):
        return nothing
    return f"{mean:{digits}}" + ("" if math.isnan(std) else f" ± {std:{digits}}")


def _number(mean: float, std: float, digits: str) -> str:
    return spread(mean, std, digits, "no value").replace("-", "\N{MINUS SIGN}")
