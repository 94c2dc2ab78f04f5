"""One seed of one config as a piece of work, and what a grid and a sweep do with many of them."""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import jax

from train import files, settings
from train.errors import UserError
from train.models import as_model
from train.run import directory as directories
from train.run import metrics, records
from train.run.config import Config
from train.run.directory import Keeping, RunDirectory
from train.run.progress import Progress
from train.streams import Stream, as_stream

Found = TypeVar("Found")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Places:
    """Where data are found."""

    data_dir: tuple[pathlib.Path, ...] = ()
    """Where tensorflow-datasets keeps its data; several allowed. Default: $TFDS_DATA_DIR."""
    cache_dir: pathlib.Path | None = None
    """Where decoded images are kept. Default: $TAG_OPTAX_CACHE, else ~/.cache/tag_optax."""


class Streams:
    """The streams of configs, each opened once."""

    def __init__(self, places: Places):
        self.places = places
        self._opened: dict[Hashable, Stream] = {}

    def _key(self, config: Config) -> Hashable:
        return config.stream, config.run.evaluate_on, config.run.max_examples

    def open(self, config: Config) -> Stream:
        """The stream of a config, as it is learned and evaluated."""
        run, key = config.run, self._key(config)
        if key not in self._opened:
            stream = as_stream(
                config.stream.value, self.places.data_dir or None, self.places.cache_dir
            )
            if run.evaluate_on == "validation":
                # What is chosen by it has seen nothing of the test part, not even its size.
                stream = stream.holding_out(0.1).without_test()
            if run.max_examples is not None:
                stream = stream.shortened(run.max_examples)
            self._opened[key] = stream
        return self._opened[key]

    def is_open(self, config: Config) -> bool:
        return self._key(config) in self._opened

    def num_tasks(self, config: Config) -> int:
        """How many tasks there are; a built-in stream says so without its data."""
        known = settings.values(config.stream.value).get("num_tasks")
        is_built_in = ":" not in config.stream.name
        return known if known and is_built_in else len(self.open(config).tasks)

    def job(
        self, title: str, config: Config, seed: int, out: pathlib.Path | None, keeping: Keeping
    ) -> "Job":
        """One seed of a config, kept in a directory of its own below `out`."""
        return Job(
            name=f"{title} seed {seed}",
            config=config,
            seed=seed,
            tasks=self.num_tasks(config),
            directory=None if out is None else out / f"seed-{seed}",
            keeping=keeping,
            places=self.places,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A run, whole or as far as `keeping.stop_after`."""

    name: str
    """What messages call it."""
    config: Config
    seed: int
    tasks: int
    """How many the stream has."""
    directory: pathlib.Path | None
    """Where it is kept; None: nowhere."""
    keeping: Keeping = dataclasses.field(default_factory=Keeping)
    places: Places = dataclasses.field(default_factory=Places)

    @property
    def log(self) -> pathlib.Path:
        """What its process says; beside the run, because a run's directory may be cleared."""
        assert self.directory is not None
        return self.directory.with_name(f"seed-{self.seed}.log")


def tasks_learned(job: Job) -> int:
    """How many tasks the run has learned; none where its directory holds another run."""
    path = job.directory
    if path is None or not (path / records.FILE).exists():
        return 0
    found = records.read_measured(path)
    # The run itself refuses the other one, and says how they differ.
    if found.seed != job.seed or directories.differences(found.config, job.config):
        return 0
    return metrics.summary(found.accuracy).tasks_finished if len(found.tasks) <= job.tasks else 0


def is_done(job: Job) -> bool:
    """Whether nothing is left of what the job asks for."""
    goal = min(job.keeping.stop_after or job.tasks, job.tasks)
    return not job.keeping.overwrite and tasks_learned(job) >= goal


def standing(job: Job) -> str:
    """Where the whole run stands: finished, under way or missing."""
    learned = tasks_learned(job)
    if learned >= job.tasks:
        return "finished"
    started = job.directory is not None and any(job.directory.glob("checkpoints/*"))
    return "under way" if started or learned else "missing"


def check_seeds(seeds: Sequence[int]) -> None:
    # A random key has 32 bits of a seed.
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0 or max(seeds) >= 2**32:
        raise UserError("--seeds must be one or more different numbers from 0 to 2^32 - 1.")


@contextlib.contextmanager
def undertaking(
    record: pathlib.Path, content: Any, jobs: Sequence[Job], streams: Streams, overwrite: bool
) -> Iterator[None]:
    """Writes down what is to be done, and keeps other processes out of the record's directory.

    What is missing of the data, and what a method or a network misses in it, is said before
    anything is written or started, and images are decoded once.
    """
    for config in dict.fromkeys(job.config for job in jobs if overwrite or not is_done(job)):
        stream = streams.open(config)
        inputs = jax.ShapeDtypeStruct(stream.input_shape, stream.fed_dtype)
        model = as_model(config.model.value, inputs, stream.num_outputs)
        _, stats = jax.eval_shape(model.init, jax.random.key(0))
        config.method.value.check(stream, stats)
    lock = directories.lock(record.parent)
    try:
        for job in jobs if overwrite else ():
            if job.directory is not None and job.directory.exists():
                RunDirectory(job.directory, job.config, job.seed, overwrite=True).close()
        files.write_json(record, content)
        yield
    finally:
        os.close(lock)


def read_record(path: pathlib.Path, understand: Callable[[Any], Found]) -> Found | None:
    """What an earlier command wrote down; None where there was none."""
    try:
        return understand(files.read_json(path))
    except FileNotFoundError:
        return None
    except UserError as error:
        raise UserError(f"{error} Remove it, or --overwrite.") from error
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        # Whatever a file can be that is JSON and no record.
        raise UserError(
            f"{path} cannot be understood ({error}). Remove it, or --overwrite."
        ) from error


def show_standing(jobs: Sequence[Job], progress: Progress, diverged: Collection[str] = ()) -> None:
    """A line for each run: finished, under way, missing, or known to diverge."""
    found = ["diverged" if job.name in diverged else standing(job) for job in jobs]
    for job, state in zip(jobs, found, strict=True):
        learned = f"  {tasks_learned(job)} of {job.tasks} tasks learned"
        progress.say(f"{state:10} {job.name}{learned if state == 'under way' else ''}")
    counted = [f"{found.count(state)} {state}" for state in dict.fromkeys(found)]
    progress.say(f"{len(jobs)} runs: {', '.join(counted)}.")
