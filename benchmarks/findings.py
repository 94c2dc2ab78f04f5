"""What published runs say about the paper's claims, in sentences made from the numbers alone."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.stats

from train.paper.presets import preset
from train.report import Group, Section
from train.run import metrics

CONFIDENCE = 0.95
"""Of Student's interval, outside of which zero must lie for a difference to be called one."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """How much more one of two things is than the other, seed by seed."""

    values: np.ndarray

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def standard_error(self) -> float:
        """Of the mean; NaN for a single seed."""
        seeds = len(self.values)
        return float(self.values.std(ddof=1)) / math.sqrt(seeds) if seeds > 1 else math.nan

    @property
    def direction(self) -> int:
        """1 or -1 where the mean is clearly above or below zero, else 0.

        >>> few, many, one = [1.0, 1.4], [1.0, 1.4, 1.2, 1.1], [1.0]
        >>> [Difference(np.array(values)).direction for values in (few, many, one)]
        [0, 1, 0]
        """
        if len(self.values) < 2:
            return 0
        reach = scipy.stats.t.ppf((1 + CONFIDENCE) / 2, df=len(self.values) - 1)
        return int(np.sign(self.mean)) if abs(self.mean) > reach * self.standard_error else 0

    def text(self, digits: int, unit: str = "") -> str:
        """Mean, standard error, and how many seeds agree on the sign.

        >>> Difference(np.array([0.5, 1.0, -0.3])).text(1, " points")
        '+0.4 ± 0.4 points (above 0 in 2 of 3 seeds)'
        """
        above, seeds = int((self.values > 0).sum()), len(self.values)
        error = "" if seeds == 1 else f" ± {self.standard_error:.{digits}f}"
        return f"{self.mean:+.{digits}f}{error}{unit} (above 0 in {above} of {seeds} seeds)"


def paired(one: Group, other: Group, field: str, factor: float = 1) -> Difference | None:
    """One metric of one group minus the other's, on the seeds that both have.

    Paired, because a seed gives both the same initial network and the same batches.
    """
    first, second = ({run.seed: run for run in group.runs} for group in (one, other))
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None

    def value(run: Any) -> float:
        return getattr(metrics.summary(run.accuracy), field)

    return Difference(np.array([factor * (value(first[s]) - value(second[s])) for s in seeds]))


def find(section: Section, optimizer: str, method: str = "naive", **settings: Any) -> Group | None:
    """The group of a preset, or of a preset with these settings changed."""
    wanted = preset(section.stream, optimizer, method).changed(settings).record
    return next((g for g in section.groups if not g.config.differences(wanted)), None)


def cosine(section: Section) -> list[str]:
    """What TAG's cosine adds to its sums: Markdown, or nothing where the runs are missing."""
    named = {
        "one cosine": find(section, "tag-rmsprop"),
        "a cosine for each tensor": find(section, "tag-rmsprop", alpha_scope="leaf"),
        "no cosine": find(section, "tag-self"),
    }
    return _contrast(
        "What the cosine adds",
        "TAG-RMSProp weighs the second moments of earlier tasks by a cosine: one over all "
        "parameters (`tag-rmsprop`), or one for each tensor (`--alpha-scope leaf`). `tag-self` is "
        "the same without any: 1 for every earlier task.",
        named,
        [
            ("one cosine", "no cosine"),
            ("a cosine for each tensor", "no cosine"),
            ("one cosine", "a cosine for each tensor"),
        ],
        _range_of_weights(named["one cosine"]),
    )


def anchor(section: Section) -> list[str]:
    """What holding on to where the last task ended adds."""
    return _contrast(
        "What the anchor adds",
        "`tag-anchored` is `tag-self` with b = 7, pulled back to the parameters with which the "
        "last task ended (`--anchor 10`), and evaluated with averaged parameters (`--average "
        "0.99`). It keeps four copies of the parameters, and no examples.",
        {
            "anchored": find(section, "tag-anchored"),
            "not anchored": find(section, "tag-self"),
            "anchored ER": find(section, "tag-anchored", "er"),
            "TAGed ER": find(section, "tag-rmsprop", "er"),
        },
        [("anchored", "not anchored"), ("anchored ER", "TAGed ER")],
    )


def _contrast(
    title: str,
    text: str,
    named: dict[str, Group | None],
    comparisons: list[tuple[str, str]],
    further: Sequence[str] = (),
) -> list[str]:
    """A table of differences on the same seeds, and what can be said of each."""
    rows, verdicts = [], []
    for first, second in comparisons:
        one, other = named[first], named[second]
        if one is None or other is None:
            continue
        accuracy = paired(one, other, "accuracy", factor=100)
        forgetting = paired(one, other, "forgetting")
        if accuracy is None or forgetting is None:
            continue
        rows.append(f"| {first} – {second} | {accuracy.text(2)} | {forgetting.text(4)} |")
        verdicts.append(_verdict(first, second, accuracy, forgetting))
    if not rows:
        return []
    return [
        f"### {title}",
        "",
        f"{text} Differences on the same seeds, mean ± standard error; clear is what Student's "
        f"{100 * CONFIDENCE:g} % interval tells from 0:",
        "",
        "| | accuracy, points | forgetting |",
        "|---|---|---|",
        *rows,
        "",
        *verdicts,
        *further,
        "",
    ]


def _range_of_weights(group: Group | None) -> list[str]:
    """How far the weights of earlier tasks are from 1: a sentence, or nothing."""
    alphas = [run.alpha for run in group.runs if run.alpha is not None] if group else []
    if group is None or not alphas:
        return []
    earlier = np.tri(group.config["num_tasks"], k=-1, dtype=bool)
    low, middle, high = np.quantile([alpha[earlier] for alpha in alphas], (0.025, 0.5, 0.975))
    least, most = math.exp(-group.config["b"]), math.exp(group.config["b"])
    return [
        f"- The weights: of all α(t, s) of earlier tasks in `{group.label}`, each a mean "
        f"over the steps of task t, 95 % lie between {low:.2f} and {high:.2f}, half of them below "
        f"{middle:.2f}; cosines of 1 and -1 would give {least:.4f} and {most:.0f}."
    ]


def _verdict(first: str, second: str, accuracy: Difference, forgetting: Difference) -> str:
    """A sentence; what lies inside the interval is no difference that these seeds can show."""
    accurate = {1: "more accurate", -1: "less accurate", 0: "not clearly more or less accurate"}
    forgets = {1: "forgets more", -1: "forgets less", 0: "does not clearly forget more or less"}
    return (
        f"- {first[0].upper()}{first[1:]} against {second}: {accurate[accuracy.direction]}, and "
        f"{forgets[forgetting.direction]}."
    )


def half_turn(section: Section) -> list[str]:
    """Whether accuracy rises at 180 degrees, where the paper sees it rise: Markdown, or nothing."""
    tag = find(section, "tag-rmsprop")
    if tag is None or tag.config["num_tasks"] < 8:
        return []
    before, turned, after = 5, 6, 7  # The tasks at 150, 180 and 210 degrees, from zero.
    curves = {
        group.label: np.stack([metrics.average_accuracy(run.accuracy) for run in group.runs])
        for group in section.groups
    }
    gains = {label: 100 * np.diff(curve, axis=1) for label, curve in curves.items()}
    steps = {label: Difference(gain[:, before]) for label, gain in gains.items()}
    earlier, _, later = gains[tag.label][:, before - 1 : after].T
    more = Difference(steps[tag.label].values - (earlier + later) / 2)
    first = np.stack([run.accuracy[:, 0] for run in tag.runs])
    weights = np.stack([run.alpha[:, 0] for run in tag.runs if run.alpha is not None])
    neighbours = (weights[:, before] + weights[:, after]) / 2
    weight = Difference(weights[:, turned] - neighbours)
    mean = weights.mean(axis=0)
    verdict = {1: "confirmed", -1: "refuted, it falls", 0: "not confirmed, no clear change"}
    place = {1: "above", -1: "below", 0: "not clearly above or below"}
    first_task = Difference(100 * (first[:, turned] - first[:, before]))
    return [
        "### The half turn",
        "",
        "The paper reports that the average accuracy of TAG-RMSProp gains at the seventh task, "
        "180 degrees from the first, because some digits look the same again. Changes from the "
        "sixth task to the seventh, mean ± standard error over the seeds:",
        "",
        f"- Average accuracy of `{tag.label}`: {steps[tag.label].text(2, ' points')}; the claim is "
        f"{verdict[steps[tag.label].direction]}.",
        f"- The task before brings it {earlier.mean():+.2f} points and the one after "
        f"{later.mean():+.2f}; the half turn is {place[more.direction]} their mean: "
        f"{more.text(2, ' points')}.",
        *(
            f"- Average accuracy of `{label}`: {step.text(2, ' points')}."
            for label, step in steps.items()
            if label != tag.label
        ),
        f"- Accuracy of `{tag.label}` on the first task: {first_task.text(2, ' points')}.",
        f"- Its weights of the first task: α(7, 1) is {mean[turned]:.3f}, its neighbours α(6, 1) "
        f"{mean[before]:.3f} and α(8, 1) {mean[after]:.3f}. α(7, 1) is {place[weight.direction]} "
        f"their mean: {weight.text(3)}. The lower a weight, the more alike the gradients.",
        "",
    ]
