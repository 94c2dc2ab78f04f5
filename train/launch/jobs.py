"""One seed of one config, as a piece of work for a process, and how far it has come."""

import dataclasses
import pathlib
from collections.abc import Iterable
from typing import Any, Literal

from train.run import config as configs
from train.run import matrices, metrics
from train.run.config import Config
from train.run.places import Places
from train.run.rundir import read_result

Standing = Literal["finished", "under way", "missing"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A run, whole or as far as `places.stop_after`."""

    name: str
    """What messages call it."""
    config: Config
    seed: int
    places: Places

    @property
    def directory(self) -> pathlib.Path:
        return self.places.seed_directory(self.config, self.seed)

    @property
    def log(self) -> pathlib.Path:
        """What its process says; beside the run, because a run's directory may be cleared."""
        return self.directory.with_name(f"seed-{self.seed}.log")


def to_json(job: Job) -> dict[str, Any]:
    """As a worker is given it.

    >>> import json
    >>> places = Places(data_dir=(pathlib.Path("a"), pathlib.Path("b")))
    >>> job = Job(name="one", config=Config(hidden=(8, 8)), seed=1, places=places)
    >>> from_json(json.loads(json.dumps(to_json(job)))) == job
    True
    """
    places: dict[str, Any] = dataclasses.asdict(job.places)
    places["out"] = str(job.places.out)
    places["data_dir"] = [str(path) for path in job.places.data_dir]
    places["cache_dir"] = None if job.places.cache_dir is None else str(job.places.cache_dir)
    config = configs.to_json(job.config)
    return {"name": job.name, "config": config, "seed": job.seed, "places": places}


def from_json(fields: dict[str, Any]) -> Job:
    places = dict(fields["places"])
    places["out"] = pathlib.Path(places["out"])
    places["data_dir"] = tuple(map(pathlib.Path, places["data_dir"]))
    places["cache_dir"] = places["cache_dir"] and pathlib.Path(places["cache_dir"])
    return Job(
        name=fields["name"],
        config=configs.from_json(fields["config"], pathlib.Path("job")),
        seed=fields["seed"],
        places=Places(**places),
    )


def tasks_learned(job: Job) -> int:
    """How many tasks the run has learned; none where its directory holds another run."""
    if not (job.directory / matrices.FILE).exists():
        return 0
    result = read_result(job.directory)
    # The run itself refuses the other one, and says how they differ.
    same = (result.config, result.seed) == (job.config, job.seed)
    return metrics.summary(result.accuracy).tasks_finished if same else 0


def is_done(job: Job) -> bool:
    """Whether nothing is left of what the job asks for."""
    goal = min(job.places.stop_after or job.config.num_tasks, job.config.num_tasks)
    return not job.places.overwrite and tasks_learned(job) >= goal


def standing(job: Job) -> Standing:
    """Where the whole run stands."""
    if tasks_learned(job) == job.config.num_tasks:
        return "finished"
    checkpoints = job.directory / "checkpoints"
    started = checkpoints.exists() and any(checkpoints.iterdir())
    return "under way" if started or tasks_learned(job) else "missing"


def describe(config: Config, fields: Iterable[str]) -> str:
    """Some settings of a config, in few words.

    >>> describe(Config(learning_rate=0.00025, hidden=(8, 8)), ["learning_rate", "hidden"])
    'learning_rate=0.00025 hidden=8x8'
    """
    return " ".join(f"{name}={brief(getattr(config, name))}" for name in fields)


def brief(value: Any) -> str:
    """A setting as it is written on a command line.

    >>> brief(5.0), brief((100, 100)), brief(None), brief(True)
    ('5', '100x100', 'none', 'true')
    """
    match value:
        case None | bool():
            return str(value).lower()
        case float():
            return f"{value:g}" if float(f"{value:g}") == value else repr(value)
        case tuple():
            return "x".join(map(str, value))
    return str(value)
