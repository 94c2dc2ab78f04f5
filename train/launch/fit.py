"""`fit`: a network learns a stream of tasks, from Python as from the command line."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from train import optimizers, settings
from train.errors import UserError
from train.launch.jobs import Places, Streams, tasks_learned
from train.launch.seeds import Parallel, run_seeds
from train.methods import Method
from train.run import hosts
from train.run.config import KINDS, Config, RunSettings, find, fits
from train.run.devices import Devices
from train.run.directory import Keeping, check, describe
from train.run.progress import Progress
from train.run.result import RunResult, load
from train.settings import Part
from train.streams import Stream


def fit(
    stream: Stream | str | Callable[[], Any],
    model: Any,
    optimizer: Any,
    method: Method | str = "naive",
    *,
    epochs: int = 1,
    batch_size: int = 10,
    seeds: int | Sequence[int] = (1,),
    loss: str | Callable[..., Any] = "auto",
    score: str | Callable[..., Any] = "auto",
    out: str | pathlib.Path | None = None,
    name: str | None = None,
    parallel: Parallel | None = None,
    mesh: str | None = None,
    bank_axis: str = "none",
    data_dir: str | pathlib.Path | Sequence[str | pathlib.Path] = (),
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> RunResult:
    """Learns the tasks of a stream one after another, and measures what is remembered.

    Args:
      stream: a `train.Stream`, a function that returns one, or the name of a built-in one.
      model: a function that takes `rngs` and returns an NNX module; a Linen module; what
        `train.from_equinox` returns; a `train.Model`; or a name. A function may also ask for
        `inputs` (the shape and type of an example) and `outputs` (how many the stream needs).
      optimizer: an optax transformation, a function that takes the number of tasks and returns
        one, or a name. The task reaches it as `task_id`, the loss as `value`.
      method: a `train.Method`, or a name: naive, ewc, a-gem, er, ogd, multitask.
      epochs: passes over each task's data.
      batch_size: examples in a step.
      seeds: every seed is a run of its own.
      loss: (outputs, targets) -> one number an example; by default cross-entropy for classes and
        the squared error for numbers.
      score: the same, more being better; by default accuracy, and the squared error turned round.
      out: a directory for records and checkpoints, one below it for each seed. The same call again
        resumes; with more tasks in the stream it goes on with these. Functions cannot be compared:
        what tells runs apart is settings, data, shapes and `name`. None: nothing is written.
      name: what the optimizer is called in tables, where it has no name of its own; a run under
        another name in the same directory is refused.
      parallel: how several seeds are run: "serial", "vmap" (side by side in one program),
        "processes" (one a core; needs `out`), or "auto", which chooses as the command line does.
        By default serial on a CPU and vmap on an accelerator.
      mesh: devices, as in "data=4" or "data=2,model=2".
      bank_axis: the mesh axis over which TAG's moments of the tasks are spread.
      data_dir: where tensorflow-datasets keeps its data, for built-in streams.
      progress: called with a line now and then: `print`, for example.
      **options: further settings by name: of the run (`clip`, `schedule`, `average`, ...), of what
        is kept (`checkpoint_every`, `keep`, `overwrite`, `stop_after`), and of the stream, model,
        optimizer and method that are given by name (`num_tasks`, `hidden`, `learning_rate`, ...).

    >>> import numpy as np, optax, train
    >>> from flax import nnx
    >>> rng = np.random.default_rng(0)
    >>> def task(turn):  # Which side of a line a point lies on; the line turns.
    ...     x = rng.normal(size=(200, 2)).astype(np.float32)
    ...     return x, (x @ np.array([np.cos(turn), np.sin(turn)]) > 0).astype(int)
    >>> stream = train.Stream.from_arrays([(task(t), task(t)) for t in (0, 0.5, 1)])
    >>> def net(rngs):
    ...     return nnx.Sequential(nnx.Linear(2, 16, rngs=rngs), nnx.relu,
    ...                           nnx.Linear(16, 2, rngs=rngs))
    >>> result = train.fit(stream, net, lambda tasks: optax.sgd(0.1), epochs=5)
    >>> result.matrix.shape, result.accuracy > 0.7
    ((3, 3), True)
    """
    keeping, rest = _taken(Keeping, options)
    run, rest = _taken(RunSettings, dict(rest, epochs=epochs, batch_size=batch_size))
    parts = dict(
        stream=stream, model=model, optimizer=optimizer, method=method, loss=loss, score=score
    )
    named = {kind: as_part(kind, given, name) for kind, given in parts.items()}
    config = Config(**named, run=run).changed(rest)  # type: ignore[arg-type]
    listed = (seeds,) if isinstance(seeds, int) else tuple(seeds)
    directories = [data_dir] if isinstance(data_dir, str | pathlib.Path) else data_dir
    places = Places(data_dir=tuple(map(pathlib.Path, directories)))
    if parallel is None:
        parallel = "serial" if jax.default_backend() == "cpu" else "vmap"
    if parallel == "processes" and out is None:
        raise UserError('parallel="processes" needs a directory for its runs: give out=.')
    return fit_config(
        config,
        listed,
        None if out is None else pathlib.Path(out),
        keeping=keeping,
        places=places,
        progress=Progress(progress) if progress else Progress(),
        parallel=parallel,
        devices=Devices(mesh=mesh, bank_axis=bank_axis),  # type: ignore[arg-type]
    )


def fit_config(
    config: Config,
    seeds: Sequence[int],
    out: pathlib.Path | None,
    *,
    keeping: Keeping,
    places: Places,
    progress: Progress,
    parallel: Parallel,
    devices: Devices,
) -> RunResult:
    """`fit`, of a config; the command line calls it too."""
    streams = Streams(places)
    title = f"{config.stream.name} {config.record.label}"
    jobs = [streams.job(title, config, seed, out, keeping) for seed in seeds]
    if streams.is_open(config) and not keeping.overwrite:
        facts = describe(streams.open(config))
        # Another stream's is refused, though all of it may be learned.
        kept = [(job.directory, job.seed) for job in jobs if job.directory is not None]
        hosts.together(lambda: [check(path, config, seed, facts) for path, seed in kept])
    done = run_seeds(jobs, streams, progress, parallel, devices=devices)
    model = config.model.value
    runs = []
    stream: Mapping[str, Any] = {}
    for job in jobs:
        if job.seed in done.trained:
            runs.append(done.trained[job.seed])
            stream = stream or describe(streams.open(config))
        elif job.seed not in done.failed and job.directory is not None and tasks_learned(job):
            read = load(job.directory, model)
            runs += read.runs
            stream = stream or read.stream
    if runs:
        config = config.resolved(np.dtype(stream.get("target_dtype", np.int32)))
    return RunResult(config.record, stream, model, runs, done.failed)


def as_part(kind: str, given: Any, name: str | None = None) -> Part:
    """What a user gives for a stream, model, optimizer, method, loss or score."""
    known, must_be = KINDS[kind]
    if isinstance(given, str):
        return find(kind, given)
    if isinstance(given, type) and issubclass(given, Method):
        given = given()
    if not fits(kind, given):
        raise UserError(f"A {kind} must be {must_be}, or one of {', '.join(known)}.")
    if kind == "optimizer":
        optimizers.make(given, 1)  # Says what it must be.
    if kind == "stream" and isinstance(given, Stream):
        return Part(given.name, given)
    for known_name, value in known.items():
        if value is given:
            return Part(known_name, value)
    is_instance = dataclasses.is_dataclass(given) and not isinstance(given, type)
    found = settings.name_of(type(given) if is_instance else given)
    unnamed = name if name and kind == "optimizer" else "given"
    return Part(found or unnamed, settings.with_settings(given, kind, must_be))


def _taken(kind: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The settings of a kind that are among the options, and the other options."""
    mine = {name: value for name, value in options.items() if name in settings.hints(kind)}
    return kind(**mine), {name: value for name, value in options.items() if name not in mine}
