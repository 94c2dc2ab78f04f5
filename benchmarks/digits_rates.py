"""The learning rates of `rotated-digits`: for each optimizer the best of one grid.

    python -m benchmarks.digits_rates

Every optimizer is trained at every rate on 90 % of the training data, three seeds, and judged by
its final average accuracy on the other 10 %; the test data are not touched. The presets carry the
winners.
"""

import argparse
import dataclasses
import pathlib
import tempfile
import typing

import numpy as np
import rich.console

from benchmarks import measure
from train.launch.seeds import run_seeds
from train.run import config, metrics
from train.run.places import Places
from train.run.rundir import read_result

RATES = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0)
SEEDS = (1, 2, 3)


def final_accuracies(settings: config.Config, seeds: tuple[int, ...]) -> list[float]:
    """The average accuracy at the stream's end for each seed; 0 where it failed."""
    with tempfile.TemporaryDirectory() as scratch:
        places = Places(out=pathlib.Path(scratch))
        quiet = rich.console.Console(quiet=True)
        failed = run_seeds(settings, seeds, places, quiet, "serial")
        return [
            0.0
            if seed in failed
            else metrics.summary(
                read_result(places.seed_directory(settings, seed)).accuracy
            ).accuracy
            for seed in seeds
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--optimizers", nargs="+", default=list(typing.get_args(config.OptimizerName))
    )
    parser.add_argument("--quick", action="store_true", help="a trial; the record is kept apart")
    arguments = parser.parse_args()
    rates, seeds = (RATES[3:5], SEEDS[:1]) if arguments.quick else (RATES, SEEDS)
    record = measure.environment("benchmarks.digits_rates") | {"seeds": seeds, "rows": []}
    for optimizer in arguments.optimizers:
        preset = config.preset("rotated-digits", optimizer)
        found = {}
        for rate in rates:
            settings = dataclasses.replace(preset, learning_rate=rate, evaluate_on="validation")
            found[rate] = 100 * np.mean(final_accuracies(settings, seeds))
        best = max(found, key=lambda rate: found[rate])
        record["rows"].append(
            {
                "optimizer": optimizer,
                "best": best,
                "accuracy": {f"{r:g}": a for r, a in found.items()},
            }
        )
        shown = "  ".join(f"{rate:g}: {accuracy:.1f}" for rate, accuracy in found.items())
        print(f"{optimizer:12} best {best:g}   {shown}", flush=True)
    print("written to", measure.write("digits_rates" + "_quick" * arguments.quick, record))


if __name__ == "__main__":
    main()
