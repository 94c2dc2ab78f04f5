"""The learning rates of `rotated-digits`: for each optimizer the best of one grid.

    python -m benchmarks.digits_rates

Every optimizer is trained at every rate on 90 % of the training data, three seeds, and judged by
its final average accuracy on the other 10 %; the test data are not touched. The presets carry the
winners.
"""

import argparse
import pathlib
import tempfile

import numpy as np

from benchmarks import measure
from train.launch.jobs import Job, Places, Streams
from train.launch.seeds import run_seeds
from train.optimizers import OPTIMIZERS
from train.paper.presets import preset
from train.run import metrics
from train.run.config import Config
from train.run.progress import Progress
from train.run.records import read_measured

RATES = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0)
SEEDS = (1, 2, 3)


def final_accuracies(config: Config, seeds: tuple[int, ...]) -> list[float]:
    """The average accuracy at the stream's end for each seed; 0 where it failed."""
    with tempfile.TemporaryDirectory() as scratch:
        directories = {seed: pathlib.Path(scratch) / str(seed) for seed in seeds}
        jobs = [
            Job(name=str(seed), config=config, seed=seed, tasks=config["num_tasks"], directory=path)
            for seed, path in directories.items()
        ]
        failed = run_seeds(jobs, Streams(Places()), Progress(), "serial").failed
        return [
            0.0 if seed in failed else metrics.summary(read_measured(path).accuracy).accuracy
            for seed, path in directories.items()
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS))
    parser.add_argument("--quick", action="store_true", help="a trial; the record is kept apart")
    arguments = parser.parse_args()
    rates, seeds = (RATES[3:5], SEEDS[:1]) if arguments.quick else (RATES, SEEDS)
    record = measure.environment("benchmarks.digits_rates") | {"seeds": seeds, "rows": []}
    for optimizer in arguments.optimizers:
        usual = preset("rotated-digits", optimizer).changed({"evaluate_on": "validation"})
        found = {}
        for rate in rates:
            config = usual.changed({"learning_rate": rate})
            found[rate] = 100 * np.mean(final_accuracies(config, seeds))
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
