import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from train import plots
from train.plot_style import COLOURS
from train.report.write import save
from train.run import metrics

pytestmark = pytest.mark.ci

NAN = math.nan
LONG = "tag-rmsprop with a reservoir of 1000 examples and a warm-up (b = 5, every step)"
RNG = np.random.default_rng(0)


def lower(a: np.ndarray) -> np.ndarray:
    return np.where(np.tri(a.shape[-1], dtype=bool), a, NAN)


def fake_curves(methods: int, seeds: int, tasks: int) -> dict[str, np.ndarray]:
    return {f"method-{i}": RNG.uniform(0.2, 0.9, (seeds, tasks)) for i in range(methods)}


def fake_alpha(tasks: int, b: float = 5.0) -> np.ndarray:
    return lower(np.exp(-b * RNG.uniform(-0.1, 1, (tasks, tasks))))


def texts(figure: Figure) -> list[Text]:
    """What a reader sees: drawn text, not the tick labels beyond the limits of their axis."""
    figure.draw_without_rendering()
    unseen = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks() + axis.get_minor_ticks():
                if not low <= tick.get_loc() <= high:
                    unseen |= {tick.label1, tick.label2}
    found = figure.findobj(Text)
    return [text for text in found if text.get_visible() and text.get_text() and text not in unseen]


def check_legible(figure: Figure, title: str) -> None:
    seen = texts(figure)
    canvas = figure.bbox
    for text in seen:
        box = text.get_window_extent()
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= canvas.x1 and box.y1 <= canvas.y1
        assert inside, f"{text.get_text()!r} is clipped"
        assert text.get_fontsize() >= 9, text.get_text()
    suptitle = figure.get_suptitle()
    assert suptitle.replace("\n", " ") == title
    assert figure.get_facecolor() == (1, 1, 1, 1)


def check_apart(figure: Figure, wanted: Callable[[Text], bool]) -> None:
    boxes = [text.get_window_extent() for text in texts(figure) if wanted(text)]
    assert len(boxes) > 1
    for i, box in enumerate(boxes):
        assert box.count_overlaps(boxes[i + 1 :]) == 0


def lines_of(axes: Axes) -> dict[str, np.ndarray]:
    return {str(line.get_label()): np.asarray(line.get_ydata()) for line in axes.lines}


def legend_of(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


# Accuracy along the stream.


@pytest.mark.parametrize(("methods", "seeds", "tasks"), [(8, 5, 20), (2, 5, 10), (3, 1, 5)])
def test_stream_draws_mean_and_band(methods: int, seeds: int, tasks: int) -> None:
    curves = fake_curves(methods, seeds, tasks)
    figure = plots.accuracy_along_stream(curves, title="A stream")
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("tasks learned", "average accuracy (%)")
    drawn = lines_of(axes)
    assert list(drawn) == list(curves)
    for name, values in curves.items():
        np.testing.assert_allclose(drawn[name], 100 * values.mean(axis=0))
    for line in axes.lines:
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, tasks + 1))
    assert len(axes.collections) == (methods if seeds > 1 else 0)
    for band, values in zip(axes.collections, curves.values(), strict=False):
        top = np.max(band.get_paths()[0].vertices[:, 1])
        assert top == pytest.approx(100 * np.max(values.mean(axis=0) + values.std(axis=0)))
    np.testing.assert_array_equal(axes.get_xticks(), np.arange(1, tasks + 1))
    check_legible(figure, "A stream")
    ticks = {label.get_text() for label in axes.get_xticklabels()}
    check_apart(figure, lambda text: text.get_text() in ticks)


def test_stream_without_colours() -> None:
    figure = plots.accuracy_along_stream(fake_curves(16, 1, 3), title="Many")
    # The pattern, since matplotlib calls every pattern of one's own "--".
    looks = {
        (line.get_marker(), line.get_markerfacecolor() == "white", str(line._dash_pattern))
        for line in figure.axes[0].lines
    }
    assert len(looks) == 16


def test_stream_legend_is_beside_and_in_the_order_of_the_lines() -> None:
    curves = {"low": [[0.9, 0.2]], "none": [[NAN, NAN]], "high": [[0.3, 0.8]]}
    figure = plots.accuracy_along_stream(curves, title="Order")
    (axes,) = figure.axes
    assert legend_of(axes) == ["high", "low", "none"]
    figure.draw_without_rendering()
    assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1


def test_stream_stops_where_a_seed_stops() -> None:
    figure = plots.accuracy_along_stream({"m": [[0.5, 0.6, NAN], [0.7, 0.8, 0.9]]}, title="NaN")
    np.testing.assert_allclose(lines_of(figure.axes[0])["m"], [60, 70, NAN])
    check_legible(figure, "NaN")


def test_stream_draws_what_is_measured_only_at_the_end_as_a_level() -> None:
    curves = {"all at once": [[NAN, NAN, 0.7], [NAN, NAN, 0.9]], "m": [[0.9, 0.5, 0.4]]}
    figure = plots.accuracy_along_stream(curves, title="Level")
    (axes,) = figure.axes
    drawn = lines_of(axes)
    np.testing.assert_allclose(drawn["all at once"], [80, 80])
    assert axes.lines[1].get_color() == COLOURS[0]  # The level takes no colour of the cycle.
    assert legend_of(axes) == ["all at once", "m"]
    check_legible(figure, "Level")


def test_stream_of_many_tasks_and_long_names() -> None:
    title = "A title so long that it must be broken: " + LONG
    figure = plots.accuracy_along_stream(
        {LONG: RNG.random((3, 100)), "b": RNG.random((2, 100))}, title=title
    )
    ticks = figure.axes[0].get_xticks()
    assert len(ticks) <= 20
    np.testing.assert_array_equal(ticks, np.round(ticks))
    check_legible(figure, title)
    assert figure.axes[0].get_window_extent().width > figure.bbox.width / 2


# Accuracy matrix.


def test_matrix_draws_the_lower_triangle_and_its_numbers() -> None:
    a = RNG.uniform(0.2, 0.95, (3, 5, 5))  # Above the diagonal too: measured, but not drawn.
    names = ["CIFAR-10", "MNIST", "SVHN", "notMNIST", "Fashion-MNIST"]
    figure = plots.accuracy_matrix(a, names, title="A matrix")
    axes, bar = figure.axes
    (mesh,) = axes.collections[:1]
    expected = lower(100 * a.mean(axis=0))
    np.testing.assert_allclose(mesh.get_array().filled(NAN), expected)
    numbers = {text.get_position(): text.get_text() for text in axes.texts}
    assert numbers == {
        (s + 1, t + 1): f"{expected[t, s]:.1f}" for t in range(5) for s in range(t + 1)
    }
    assert axes.yaxis_inverted()
    assert axes.get_xlabel() == "evaluated on task"
    assert axes.get_ylabel() == "after learning task"
    assert bar.get_ylabel() == "accuracy (%)"
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [f"{name}  {n}" for n, name in enumerate(names, 1)]
    check_legible(figure, "A matrix")


@pytest.mark.parametrize("tasks", [1, 12, 20])
def test_matrix_sizes(tasks: int) -> None:
    a = lower(RNG.random((tasks, tasks)))
    a[-1, 0] = NAN if tasks > 1 else 1.0
    figure = plots.accuracy_matrix(a, [f"{i} {LONG}" for i in range(tasks)], title="T")
    axes = figure.axes[0]
    assert len(axes.texts) == (np.sum(~np.isnan(a)) if tasks <= 12 else 0)
    check_legible(figure, "T")
    # Neither the names beside the map nor the numbers in it touch.
    check_apart(figure, lambda text: text in axes.texts or text in axes.get_yticklabels())


def test_matrix_limits() -> None:
    a = [[0.52, NAN], [0.47, 0.61]]
    mesh = plots.accuracy_matrix(a, ["", ""], title="T").axes[0].collections[0]
    assert mesh.get_clim() == (40, 70)
    mesh = plots.accuracy_matrix(a, ["", ""], title="T", limits=(0, 100)).axes[0].collections[0]
    assert mesh.get_clim() == (0, 100)


def test_matrix_of_nothing() -> None:
    figure = plots.accuracy_matrix(np.full((3, 3), NAN), ["a", "b", "c"], title="Nothing yet")
    check_legible(figure, "Nothing yet")


# Alpha.


@pytest.mark.parametrize(
    ("tasks", "b", "opposed"),
    [
        *((20, 5.0, "148"), (10, 7.0, "1,100"), (10, 1.0, "2.72"), (5, 0.1, "1.11")),
        *((6, 30.0, "1.07e+13"), (6, 699.0, "3.73e+303")),
    ],
)
def test_alpha_draws_range_and_dots(tasks: int, b: float, opposed: str) -> None:
    matrix = fake_alpha(tasks, b)
    figure = plots.alpha(matrix, title="Alpha", b=b)
    (axes,) = figure.axes
    drawn = lines_of(axes)
    rows = [matrix[t, :t] for t in range(1, tasks)]
    np.testing.assert_allclose(drawn["maximum over s"], [NAN, *map(np.max, rows)])
    np.testing.assert_allclose(drawn["mean over s"], [NAN, *map(np.mean, rows)])
    np.testing.assert_allclose(drawn["minimum over s"], [NAN, *map(np.min, rows)])
    np.testing.assert_array_equal(drawn["unrelated: 1"], 1)
    legend = axes.get_legend()
    assert legend is not None
    ends = f"same direction: {math.exp(-b):.2g}\nopposed: {opposed}"
    assert legend.get_title().get_text().endswith(ends)
    np.testing.assert_array_equal(drawn["each task s"], np.concatenate(rows))
    assert axes.get_yscale() == "log"
    assert axes.get_xlabel() == "task t"
    check_legible(figure, "Alpha")
    numbers = [label for label in axes.get_yticklabels() if label in texts(figure)]
    check_apart(figure, lambda text: text in numbers)


@pytest.mark.parametrize("matrix", [np.full((4, 4), NAN), np.ones((1, 1)), fake_alpha(2)])
def test_alpha_of_few_tasks(matrix: np.ndarray) -> None:
    check_legible(plots.alpha(matrix, title="Few", b=5), "Few")


def test_alpha_and_accuracy() -> None:
    tasks, s = 20, 3
    matrix = fake_alpha(tasks)
    curves = fake_curves(2, 5, tasks)
    figure = plots.alpha_and_accuracy(matrix, curves, s, title="Task 4", b=5)
    above, below = figure.axes
    drawn = lines_of(above)
    np.testing.assert_array_equal(drawn["s = 4"], [NAN] * (s + 1) + list(matrix[s + 1 :, s]))
    np.testing.assert_allclose(
        drawn["maximum over s"][s:], [max(matrix[t, :t]) for t in range(s, tasks)]
    )
    assert np.all(np.isnan(drawn["mean over s"][:s]))
    for name, line in lines_of(below).items():
        np.testing.assert_allclose(line, [NAN] * s + list(100 * curves[name].mean(axis=0)[s:]))
    assert above.get_ylabel() == "α(t, 4) (log scale)"
    assert below.get_ylabel() == "accuracy on task 4 (%)"
    assert below.get_xlabel() == "task t"
    assert above.get_xlim() == below.get_xlim() == (3.5, 20.5)
    check_legible(figure, "Task 4")


@pytest.mark.parametrize("s", [0, 9])
def test_alpha_and_accuracy_at_the_ends(s: int) -> None:
    curves = {LONG: RNG.random((1, 10)), "b": np.full((1, 10), NAN)}
    figure = plots.alpha_and_accuracy(fake_alpha(10), curves, s, title="End", b=7)
    check_legible(figure, "End")


# Bars.


def test_narrow_figures_are_legible() -> None:
    names = [*(f"er + tag-{i} (memory_per_class {i})" for i in range(5)), "multitask + sgd"]
    curves = {name: RNG.random((2, 20)) for name in names}
    curves[names[-1]][:, :-1] = NAN
    check_legible(plots.accuracy_along_stream(curves, title="Narrow", narrow=True), "Narrow")
    bars = {name: 100 * curve[:, -1] for name, curve in curves.items()}
    reference = {names[0]: (51.36, 3.21)}
    figure = plots.method_bars(
        bars, title="Narrow", unit="accuracy (%)", reference=reference, narrow=True
    )
    check_legible(figure, "Narrow")
    assert figure.get_figwidth() < 4.5


def test_bars_best_first_with_values() -> None:
    values = {"sgd": [50.0, 54.0], LONG: [61.0, 63.0], "unfinished": [40.0, NAN], "one": [55.0]}
    reference = {"sgd": (51.36, 3.21), "absent": (1.0, 1.0)}
    figure = plots.method_bars(values, title="Bars", unit="accuracy (%)", reference=reference)
    (axes,) = figure.axes
    names = [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()]
    assert names == [LONG, "one", "sgd", "unfinished"]
    np.testing.assert_array_equal([bar.get_width() for bar in axes.patches], [62, 55, 52, NAN])
    written = [text.get_text() for text in axes.texts]
    assert written[:5] == ["62.00 ± 1.00", "55.00", "52.00 ± 2.00", "no value", "measured"]
    assert written[5:] == ["51.36 ± 3.21", "paper"]
    assert axes.get_xlabel() == "accuracy (%), higher is better"
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["measured, mean ± s.d. over the seeds", "paper, mean ± s.d."]
    check_legible(figure, "Bars")
    check_apart(figure, lambda text: text in axes.texts or text in axes.get_yticklabels())


def test_bars_errors_and_paper_markers() -> None:
    values = {"a": [1.0, 3.0], "b": [4.0, 4.0]}
    figure = plots.method_bars(values, title="T", unit="u", reference={"a": (2.5, 0.5)})
    measured, paper = figure.axes[0].containers[1:]
    ends = [segment[:, 0] for segment in measured[2][0].get_segments()]
    np.testing.assert_allclose(ends, [[4, 4], [1, 3]])
    np.testing.assert_allclose(paper[0].get_xydata(), [[2.5, 1.15]])
    assert paper[0].get_markerfacecolor() == "white"
    np.testing.assert_allclose(paper[2][0].get_segments()[0][:, 0], [2, 3])


def test_bars_lower_is_better_and_negative_values() -> None:
    values = {"a": [0.2, 0.1], "b": [-0.12, -0.12], "c": [NAN]}
    figure = plots.method_bars(values, title="T", unit="forgetting", lower_is_better=True)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "a", "c"]
    assert axes.texts[0].get_text() == "\N{MINUS SIGN}0.120 ± 0.000"
    assert axes.get_xlabel() == "forgetting, lower is better"
    check_legible(figure, "T")


def test_bars_of_one_seed_and_of_nothing() -> None:
    values = {"a": [0.5], "b": [0.25]}
    figure = plots.method_bars(values, title="One", unit="accuracy", reference={"a": (0.4, 0.1)})
    axes = figure.axes[0]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["measured, one seed", "paper, mean ± s.d."]
    check_legible(figure, "One")
    check_apart(figure, lambda text: text in axes.texts)
    check_legible(plots.method_bars({"a": [NAN]}, title="None", unit="accuracy"), "None")


def test_bars_in_the_order_given_with_hatches() -> None:
    values = {"sgd": [51.0, 53.0], "tag": [62.0, 63.0], "adam": [70.0, 70.0]}
    style = dict(title="Pairs", unit="accuracy (%)")
    figure = plots.method_bars(values, **style, hatched=["tag"], in_order=True)
    check_legible(figure, "Pairs")
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["sgd", "tag", "adam"]
    assert [bool(bar.get_hatch()) for bar in axes.containers[0]] == [False, True, False]
    plain = plots.method_bars(values, **style).axes[0]
    assert [label.get_text() for label in plain.get_yticklabels()] == ["adam", "tag", "sgd"]
    assert not any(bar.get_hatch() for bar in plain.containers[0])


def test_eight_bars_of_summaries() -> None:
    runs = {f"{i} {LONG}": lower(RNG.random((5, 20, 20))) for i in range(8)}
    values = {name: [metrics.summary(a).forgetting for a in seeds] for name, seeds in runs.items()}
    paper = dict.fromkeys(values, (0.1, 0.01))
    figure = plots.method_bars(values, title="Eight", unit="forgetting", reference=paper)
    check_legible(figure, "Eight")
    axes = figure.axes[0]
    check_apart(figure, lambda text: text in axes.texts or text in axes.get_yticklabels())


# Saving.


def test_save_repeats_its_bytes(tmp_path: Path) -> None:
    written = []
    for name in ("one", "two"):
        figure = plots.alpha([[0.1, NAN], [0.5, 0.1]], title="Same", b=5)
        save(figure, tmp_path / f"{name}.png")
        written.append((tmp_path / f"{name}.png").read_bytes())
    assert written[0] == written[1]
    assert b"atplotlib v" not in written[0]
    assert b"Software" not in written[0]


def test_a_saved_picture_is_small_and_looks_the_same(tmp_path: Path) -> None:
    curves = {f"method {i}": RNG.random((3, 20)) for i in range(8)}
    figure = plots.accuracy_along_stream(curves, title="Eight")
    save(figure, tmp_path / "small.png")
    figure.savefig(tmp_path / "plain.png", dpi=150)
    small, plain = (
        PIL.Image.open(tmp_path / name).convert("RGB") for name in ("small.png", "plain.png")
    )
    assert small.size == plain.size == (1275, 720)
    difference = np.abs(np.asarray(small, np.int16) - np.asarray(plain, np.int16))
    assert np.quantile(difference, 0.999) < 32
    assert difference.mean() < 1
    assert 2 * (tmp_path / "small.png").stat().st_size < (tmp_path / "plain.png").stat().st_size
