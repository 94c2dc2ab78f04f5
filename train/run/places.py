"""Where a command finds data and keeps results."""

import dataclasses
import pathlib

from train.errors import UserError
from train.run.config import Config, variant


@dataclasses.dataclass(frozen=True, kw_only=True)
class Places:
    """Where data are found and results are kept, and how often the state is saved."""

    out: pathlib.Path = pathlib.Path("runs")
    """Runs go to OUT/STREAM/METHOD/OPTIMIZER/seed-N, those that change the preset to a directory
    named after the change before seed-N. The same command again resumes them."""
    data_dir: tuple[pathlib.Path, ...] = ()
    """Where tensorflow-datasets keeps its data; several allowed. Default: $TFDS_DATA_DIR."""
    cache_dir: pathlib.Path | None = None
    """Where decoded images are kept. Default: $TAG_OPTAX_CACHE, else ~/.cache/tag_optax."""
    checkpoint_every: int = 1000
    """Steps of a task between two checkpoints; the end of a task always makes one."""
    keep: int = 2
    """How many checkpoints to keep."""
    tensorboard: bool = False
    """Write TensorBoard scalars too."""
    overwrite: bool = False
    """Throw away what a run directory holds, instead of resuming it."""
    stop_after: int | None = None
    """Learn only so many tasks now; the same command without it goes on."""

    def __post_init__(self) -> None:
        for name in ("checkpoint_every", "keep", "stop_after"):
            value = getattr(self, name)
            if value is not None and value < 1:
                flag = "--" + name.replace("_", "-")
                raise UserError(f"{flag} must be at least 1, and is {value}.")

    def experiment(self, config: Config) -> pathlib.Path:
        """A directory for each config.

        >>> from train.run.config import preset
        >>> Places().experiment(preset("split-cub", "tag-adam", "er")).as_posix()
        'runs/split-cub/er/tag-adam'
        """
        return self.out / config.stream / config.method / config.optimizer / variant(config)

    def seed_directory(self, config: Config, seed: int) -> pathlib.Path:
        return self.experiment(config) / f"seed-{seed}"
