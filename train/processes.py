"""One process for each seed, as many at a time as there are cores."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import rich.console
import rich.live
import rich.text

from train import config as configs
from train.config import Config
from train.places import Places
from train.signals import Stopped, catch_stop

_LOOK_EVERY = 0.2  # seconds


def run(
    config: Config,
    seeds: Sequence[int],
    places: Places,
    console: rich.console.Console,
    *,
    together: int,
) -> dict[int, str]:
    """Runs every seed in a process of its own; returns those that failed, and why.

    The cores are dealt out as for `together` seeds, whether or not some have finished before.
    """
    free = share_cores(together)
    waiting, working, failed = list(seeds), {}, {}
    with tempfile.TemporaryDirectory() as scratch, catch_stop() as stop_signal:
        file = pathlib.Path(scratch) / "config.json"
        file.write_text(json.dumps(configs.to_json(config)))
        with _showing(console) as show:
            while waiting or working:
                while waiting and free:
                    seed, cores = waiting.pop(0), free.pop()
                    working[seed] = _Worker(
                        seed, cores, _command(file, seed, places), places, config
                    )
                time.sleep(_LOOK_EVERY)
                show([worker.status() for worker in working.values()])
                for seed, worker in list(working.items()):
                    code = worker.process.poll()
                    if code is not None:
                        free.append(worker.cores)
                        del working[seed]
                        if code != 0:
                            failed[seed] = worker.last_line() or f"exit code {code}"
                signum = stop_signal()
                if signum is not None:
                    _stop(list(working.values()))
                    raise Stopped(signum, f"seeds {', '.join(map(str, [*working, *waiting]))}")
    return failed


class _Worker:
    """A process, the cores it may use, and the log of what it says."""

    def __init__(
        self, seed: int, cores: set[int], command: list[str], places: Places, config: Config
    ):
        self.seed = seed
        self.cores = cores
        self._log = places.experiment(config) / f"seed-{seed}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("w") as log, _on_cores(cores):
            # In a session of its own: Ctrl-C reaches this process alone, which passes it on once.
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def last_line(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")

    def status(self) -> str:
        return self.last_line() or f"seed {self.seed} starting"


def _command(config_file: pathlib.Path, seed: int, places: Places) -> list[str]:
    command = [sys.executable, "-m", "train", "run", "--config", str(config_file)]
    command += ["--seeds", str(seed), "--out", str(places.out), "--keep", str(places.keep)]
    command += ["--checkpoint-every", str(places.checkpoint_every)]
    if places.data_dir:
        command += ["--data-dir", *map(str, places.data_dir)]
    if places.cache_dir is not None:
        command += ["--cache-dir", str(places.cache_dir)]
    for flag in ("tensorboard", "overwrite"):
        command += [f"--{flag}"] if getattr(places, flag) else []
    return command


def share_cores(num_seeds: int) -> list[set[int]]:
    """The cores, the same number for each of as many workers as can be busy at once."""
    if not hasattr(os, "sched_getaffinity"):  # Only Linux lets a process choose.
        return [set()] * min(num_seeds, os.cpu_count() or 1)
    cores = sorted(os.sched_getaffinity(0))
    workers = min(num_seeds, len(cores))
    share = len(cores) // workers
    return [set(cores[i * share : (i + 1) * share]) for i in range(workers)]


@contextmanager
def _on_cores(cores: set[int]) -> Iterator[None]:
    """A process started inside inherits these cores, and XLA makes that many threads."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _stop(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.send_signal(signal.SIGTERM)
    for worker in workers:
        worker.process.wait()


@contextmanager
def _showing(console: rich.console.Console) -> Iterator:
    """Yields a function that shows one line for each worker: live, or when a line is new."""
    if console.is_terminal:
        with rich.live.Live(console=console, transient=True) as live:
            yield lambda lines: live.update(rich.text.Text("\n".join(lines)))
        return
    said: set[str] = set()

    def say(lines: list[str]) -> None:
        for line in lines:
            if line not in said:
                said.add(line)
                console.print(line, soft_wrap=True, highlight=False, markup=False)

    yield say
