"""The published results: `benchmarks/results/README.md`, its plots and `report.html`.

    python -m benchmarks.publish

Every `NAME.toml` there is a sweep, and the directory `NAME` beside it holds its runs. Nothing in
the pages is written by hand: the same runs give the same pages. The main table of the project's own
README is made too, between its two marks.
"""

import argparse
import contextlib
import functools
import pathlib
import re
import shlex
from collections.abc import Sequence

from benchmarks import against_paper, findings
from train import report
from train.errors import UserError
from train.launch import sweep
from train.paper.presets import experiment, foreign, preset, usual
from train.report import Group, Section, tables
from train.report.comparison import METRICS, compare
from train.report.drawings import Drawing
from train.report.groups import origins
from train.report.page import page
from train.report.write import illustrated, save
from train.run.config import Record
from train.settings import flag

RESULTS = pathlib.Path(__file__).parent / "results"
FRONT_PAGE = pathlib.Path(__file__).parents[1] / "README.md"
PLOTS = pathlib.Path("plots")
_SHOWN = (  # The paper's figures; the page has all others too.
    *("accuracy", "methods-accuracy", "TAG-accuracy", "pairs-accuracy", "pairs-forgetting"),
    *("alpha-tag-rmsprop", "first-task-tag-rmsprop"),
)
_FRONT_STREAM = "split-cifar100"
_FRONT_ROWS = (  # Method and optimizer, from the lowest accuracy in the paper.
    *(("naive", "rmsprop"), ("ewc", "sgd"), ("naive", "sgd"), ("a-gem", "sgd")),
    *(("naive", "stable-sgd"), ("er", "sgd"), ("naive", "tag-adam"), ("naive", "tag-rmsprop")),
    *(("naive", "tag-adagrad"), ("naive", "tag-anchored"), ("er", "tag-rmsprop")),
    ("multitask", "sgd"),
)
_FRONT_MARKS = re.compile(r"(<!-- results -->\n).*?(<!-- end of results -->\n)", flags=re.DOTALL)
_FINDINGS = {
    "split-cifar100": (
        *(against_paper.order, against_paper.distances, against_paper.choices),
        findings.cosine,
        findings.anchor,
    ),
    "rotated-mnist": (findings.half_turn,),
}


Plots = dict[str, dict[str, str]]
"""Of each section, by their titles, the files that show them."""


def publish(results: pathlib.Path) -> list[pathlib.Path]:
    """Writes the pages of a directory of sweeps; returns the runs that are not finished."""
    # Paths in the pages are then relative to them, wherever the checkout is.
    with contextlib.chdir(results):
        sections, unfinished = read()
        PLOTS.mkdir(exist_ok=True)
        plots: Plots = {}
        parts = []
        for section in sections:
            keep = functools.partial(_keep, section)
            plots[section.title], part = illustrated(section, keep, _in_detail)
            parts.append(part)
        _remove_others(plots)
        pathlib.Path("report.html").write_text(page(sections, parts))
        pathlib.Path("README.md").write_text(text(sections, plots))
    return unfinished


def _keep(section: Section, drawing: Drawing) -> str | None:
    """The file of a plot that the README shows."""
    if drawing.name not in [f"{section.slug}-{end}" for end in _SHOWN]:
        return None
    file = PLOTS / f"{drawing.name}.png"
    save(drawing.figure, file)
    return file.as_posix()


def read() -> tuple[list[Section], list[pathlib.Path]]:
    """The sections of every sweep in this directory, and the runs that are not finished."""
    roots = [pathlib.Path(path.stem) for path in _sweeps() if pathlib.Path(path.stem).exists()]
    if not roots:
        raise UserError("No sweep has runs here: there is no NAME.toml with a directory NAME.")
    groups, unfinished = report.collect(roots)
    return report.sections(groups), unfinished


def text(sections: Sequence[Section], plots: Plots) -> str:
    """The README."""
    lines = [
        "<!-- Made by python -m benchmarks.publish: change nothing here by hand. -->",
        "",
        *tables.opening(sections),
        "Every run is here with its config, environment, losses and matrices, in "
        "`SWEEP/STREAM/METHOD/OPTIMIZER/[CHANGED SETTINGS/]seed-N`; [report.html](report.html) has "
        "the same tables with more plots. `python -m benchmarks.publish` makes both from the runs "
        "alone.",
        "",
    ]
    for section in sections:
        lines += tables.lines(section, plots[section.title])
        for say in _FINDINGS.get(section.stream, ()):
            lines += say(section)
        lines += _repetition(section)
    return "\n".join(lines).rstrip() + "\n"


def front_page(page: str, sections: Sequence[Section]) -> str:
    """The project's README with the main table as the runs have it."""
    (section,) = (section for section in sections if section.stream == _FRONT_STREAM)
    accuracy, forgetting, *_ = METRICS
    lines = [
        f"| `--stream {_FRONT_STREAM}` | seeds | accuracy % | paper | forgetting | paper |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for method, optimizer in _FRONT_ROWS:
        group = findings.find(section, optimizer, method)
        if group is None:
            continue
        options = f"--method {method} " * (method != "naive") + f"--optimizer {optimizer}"
        cells = [f"`{options}`", str(len(group.runs))]
        for metric in (accuracy, forgetting):
            found = compare(group, metric)
            cells += [found.measured_text(), found.paper_text()]
        lines.append("| " + " | ".join(cells) + " |")
    table = "\n".join(lines) + "\n"
    return _FRONT_MARKS.sub(lambda marks: f"{marks[1]}{table}{marks[2]}", page)


def _repetition(section: Section) -> list[str]:
    """The command of the sweep, those of its rows, and how the runs were made."""
    lines = ["### To repeat", ""]
    runs = {run.path for group in section.groups for run in group.runs}
    for path in _sweeps():
        plan = sweep.plan({}, sweep.read(path), preset)
        if not any(config.stream.name == section.stream for config in plan):
            continue
        asked = [
            experiment(pathlib.Path(path.stem), config.record) / f"seed-{seed}"
            for config, seeds in plan.items()
            for seed in seeds
        ]
        finished = sum(run in runs for run in asked)
        lines += [
            f"{finished} of {len(asked)} runs are finished. This does what is missing, and with "
            "another `--out` all of them again:",
            "",
            "```sh",
            f"python -m train sweep --out benchmarks/results/{path.stem} benchmarks/results/{path}",
            "```",
            "",
        ]
    lines += ["| row | command |", "|---|---|"]
    for group in section.groups:
        again = command(group.config, [run.seed for run in group.runs])
        lines.append(f"| {tables.escape(group.label)} | `{again}` |")
    lines += ["", "Made by:", ""]
    for origin in origins(section):
        runs = f"{len(origin.runs)} run{'s' * (len(origin.runs) > 1)}"
        facts = tables.escape(", ".join(origin.facts))
        made = f" `{origin.command}`," * bool(origin.command)
        lines.append(f"- {runs}:{made} {facts}")
    return [*lines, ""]


def command(record: Record, seeds: Sequence[int]) -> str:
    """What to type to make these runs once more.

    >>> from train.paper.presets import preset
    >>> config = preset("split-cub", "tag-adam").changed({"epochs": 2, "eps_in_sqrt": False})
    >>> command(config.record, [1])
    'python -m train run --stream split-cub --optimizer tag-adam --no-eps-in-sqrt --epochs 2
     --seeds 1'
    """
    papers, unknown = usual(record), foreign(record)
    words = ["python", "-m", "train", "run", "--stream", record["stream"]]
    words += ["--method", record["method"]] if record["method"] != "naive" else []
    words += ["--optimizer", record["optimizer"]]
    for name, value in record.items():
        # Of what comes from outside nobody knows the defaults without importing it.
        if value != papers[name] or name in unknown:
            match value:
                case bool():
                    words.append(flag(name if value else f"no_{name}"))
                case tuple():
                    words += [flag(name), *map(str, value)]
                case _:
                    words += [flag(name), str(value)]
    return shlex.join([*words, "--seeds", *map(str, seeds)])


def _sweeps() -> list[pathlib.Path]:
    return sorted(pathlib.Path().glob("*.toml"))


def _in_detail(group: Group) -> bool:
    """Of the many groups only those that the paper looks into."""
    kinds = (("naive", "sgd"), ("naive", "rmsprop"), ("naive", "tag-rmsprop"))
    return not group.apart and (group.config["method"], group.config["optimizer"]) in kinds


def _remove_others(plots: Plots) -> None:
    """Plots of an earlier time, which no page shows any more."""
    shown = {file for files in plots.values() for file in files.values()}
    for path in PLOTS.glob("*.png"):
        if path.as_posix() not in shown:
            path.unlink()


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    try:
        for path in publish(RESULTS):
            print(f"not finished, left out: {path}")
        with contextlib.chdir(RESULTS):
            sections, _ = read()
        FRONT_PAGE.write_text(front_page(FRONT_PAGE.read_text(), sections))
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    print(f"written to {RESULTS}: README.md, report.html, {PLOTS}; and the table of {FRONT_PAGE}")


if __name__ == "__main__":
    main()
