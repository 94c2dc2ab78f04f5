"""The loop: every task's steps, then an evaluation; checkpoints, records and stops between."""

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from train import hosts, metrics
from train.checkpoint import Checkpoints
from train.display import Display
from train.engine import Engine
from train.history import History
from train.rundir import Bystander, RunDirectory
from train.signals import Stopped


class Run:
    """A stream learned by one seed, or by several side by side."""

    def __init__(
        self,
        engine: Engine,
        directories: list[RunDirectory] | list[Bystander],
        checkpoint_directory: pathlib.Path,
        *,
        checkpoint_every: int,
        keep: int,
        tensorboard: bool = False,
        stop_after: int | None = None,
        display: Display,
    ):
        self._engine = engine
        self._directories = directories
        self._seeds = tuple(directory.seed for directory in directories)
        self._checkpoint_every = checkpoint_every
        self._steps = engine.steps()  # Of each stage: a task, or all tasks at once.
        self._checkpoints = Checkpoints(checkpoint_directory, keep=keep)
        if self._checkpoints.latest() is None:
            self._state = engine.init(self._seeds)
            self._history = History.start(len(self._seeds), len(engine.stream.tasks))
        else:
            self._state, self._history = self._checkpoints.restore(
                engine.shapes(), resizable=engine.resizable()
            )
        self._recorders = [
            directory.recorder(records, tensorboard=tensorboard)
            for directory, records in zip(directories, self._history.records, strict=True)
        ]
        self._end = min(stop_after or len(self._steps), len(self._steps))
        self._underway: tuple[range, jax.Array] | None = None
        self._display = display

    def finish(self) -> dict[int, str]:
        """Goes on from where the run stands to its end, or for as many tasks as it was asked to.

        Returns the seeds that failed, and why.

        Raises Stopped after a signal, with everything saved.
        """
        history = self._history
        with (
            hosts.catch_stop() as stop_signal,
            self._closing(),
            hosts.noticing(),
            self._display.showing(),
        ):
            while history.task < self._end and self._going():
                steps = self._some_steps()
                learned = history.step == self._steps[history.task]
                before = self._total_steps(history.task, 0)
                signum = stop_signal(range(before + steps.start + 1, before + steps.stop + 1))
                if learned or signum is not None or history.step % self._checkpoint_every == 0:
                    self._take_losses()
                    if not self._going():
                        break
                    if learned:
                        self._end_task()
                    self._save()
                if signum is not None and history.task < self._end:
                    raise Stopped(signum, f"task {history.task + 1}, step {history.step}")
        return {self._seeds[position]: why for position, why in history.failed.items()}

    def _going(self) -> bool:
        return len(self._history.failed) < len(self._seeds)

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        answering = True
        try:
            yield
        except hosts.Lost:
            answering = False
            raise
        finally:
            if answering:  # Else a checkpoint under way would wait for the process that is gone.
                self._checkpoints.close()
            for recorder in self._recorders:
                recorder.close()

    def _total_steps(self, task: int, step: int) -> int:
        return sum(self._steps[:task]) + step

    def _some_steps(self) -> range:
        """One call's worth of steps, not past the task's end or the next checkpoint."""
        history, every = self._history, self._checkpoint_every
        end = min(
            history.step + self._engine.steps_per_call,
            self._steps[history.task],
            (history.step // every + 1) * every,
        )
        steps = range(history.step, end)
        self._state, losses = self._engine.train(self._state, self._seeds, history.task, steps)
        # The device is busy with this call; meanwhile the host looks at the one before it.
        self._take_losses()
        self._underway = steps, losses
        history.step = end
        return steps

    def _take_losses(self) -> None:
        """Waits for the call under way, and records its losses."""
        if self._underway is None:
            return
        (steps, losses), self._underway = self._underway, None
        taken = np.asarray(losses, np.float64)
        for step, by_seed in zip(steps, taken, strict=True):
            for seed, loss in enumerate(by_seed):
                if seed not in self._history.failed:
                    self._take_loss(seed, step + 1, loss)
        self._display.step(self._history.task, steps.stop, float(np.mean(taken)))

    def _take_loss(self, seed: int, step: int, loss: float) -> None:
        history = self._history
        if not math.isfinite(loss):
            self._fail(seed, f"The loss became {loss} at task {history.task + 1}, step {step}.")
            return
        history.losses[seed].append(loss)
        if step % self._engine.config.log_every == 0 or step == self._steps[history.task]:
            mean = math.fsum(history.losses[seed]) / len(history.losses[seed])
            history.losses[seed] = []
            self._record(seed, "train", history.task, step, loss=mean)

    def _fail(self, seed: int, why: str) -> None:
        """A seed that cannot go on; the others do."""
        last = self._checkpoints.latest()
        kept = (
            "There is no checkpoint yet." if last is None else f"The state at step {last} is kept."
        )
        self._history.failed[seed] = f"{why} {kept} Try a smaller --learning-rate."

    def _record(self, seed: int, kind: str, task: int, step: int, **values: Any) -> None:
        total = self._total_steps(task, step)
        record = {"kind": kind, "task": task + 1, "step": step, "total_steps": total, **values}
        self._history.records[seed].append(record)
        self._recorders[seed].write(record)

    def _end_task(self) -> None:
        """Lets the method look back, evaluates on every task so far, and goes over to the next."""
        history, task = self._history, self._history.task
        self._state = self._engine.end_stage(self._state, self._seeds, task)
        learned = self._engine.learned_after(task)
        accuracies = self._engine.accuracies(self._state, learned)
        history.accuracy[:, learned.stop - 1, : learned.stop] = accuracies
        alpha = self._alpha()
        for seed, directory in enumerate(self._directories):
            if seed in history.failed:
                continue
            summary = dataclasses.asdict(metrics.summary(history.accuracy[seed]))
            measured = {name: value for name, value in summary.items() if math.isfinite(value)}
            row = accuracies[seed].tolist()
            self._record(seed, "eval", task, history.step, accuracies=row, **measured)
            directory.write_matrices(
                history.accuracy[seed],
                alpha[seed] if self._engine.has_alpha else None,
                [task.name for task in self._engine.stream.tasks],
                list(self._engine.stream.sources),
            )
        well = [seed for seed in range(len(self._seeds)) if seed not in history.failed]
        self._display.evaluated(task, float(accuracies[well].mean()))
        history.task, history.step = task + 1, 0

    def _alpha(self) -> np.ndarray:
        """float64[seeds, T, T]: alpha(t, s) averaged over the steps of task t, NaN where unseen."""
        added = np.asarray(self._state.alpha_sum, np.float64)
        added = added.reshape(-1, *added.shape[-2:])
        return np.where(added > 0, added, np.nan) / np.array(self._steps)[None, :, None]

    def _save(self) -> None:
        total = self._total_steps(self._history.task, self._history.step)
        self._checkpoints.save(total, self._state, self._history)
