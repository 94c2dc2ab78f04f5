"""The loop: every task's steps, then an evaluation; checkpoints, records and stops between."""

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from train.launch.display import Display
from train.run import hosts, metrics
from train.run.checkpoint import Checkpoints
from train.run.engine import Engine
from train.run.history import History
from train.run.rundir import Bystander, RunDirectory
from train.run.signals import Stopped
from train.run.step import Outcome


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
        self._checkpoints = Checkpoints(
            checkpoint_directory, keep=keep, fingerprint=engine.fingerprint
        )
        if self._checkpoints.latest() is None:
            hosts.together(
                lambda: [each.check_no_records(checkpoint_directory) for each in directories]
            )
            self._state = engine.init(self._seeds)
            self._history = History.start(len(self._seeds), len(engine.stream.tasks))
            # From here on a run that has records and no checkpoint has lost it.
            self._save(wait=True)
        else:
            self._state, self._history, notes = self._checkpoints.restore(
                engine.shapes(), resizable=engine.resizable()
            )
            for note in notes:
                display.say(f"{note} Going on from step {self._total()}.")
        self._recorders = [
            directory.recorder(records, tensorboard=tensorboard)
            for directory, records in zip(directories, self._history.records, strict=True)
        ]
        self._end = min(stop_after or len(self._steps), len(self._steps))
        self._underway: tuple[range, Outcome] | None = None
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
                        if not self._going():
                            break
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
        self._state, outcomes = self._engine.train(self._state, self._seeds, history.task, steps)
        # The device is busy with this call; meanwhile the host looks at the one before it.
        self._take_losses()
        self._underway = steps, outcomes
        history.step = end
        return steps

    def _take_losses(self) -> None:
        """Waits for the call under way, and records its losses."""
        if self._underway is None:
            return
        (steps, outcomes), self._underway = self._underway, None
        losses, finite = jax.device_get(outcomes)
        taken = np.asarray(losses, np.float64)
        for step, by_seed, well in zip(steps, taken, finite, strict=True):
            for seed, loss in enumerate(by_seed):
                if seed not in self._history.failed:
                    self._take_loss(seed, step + 1, float(loss), bool(well[seed]))
        self._display.step(self._history.task, steps.stop, float(np.mean(taken)))

    def _take_loss(self, seed: int, step: int, loss: float, finite: bool) -> None:
        history, task = self._history, self._history.task
        if finite:
            history.losses[seed].append(loss)
        elif self._engine.config.on_nonfinite == "skip":
            history.skipped[seed][task] += 1
        else:
            what = "gradient is not finite" if math.isfinite(loss) else f"loss became {loss}"
            self._fail(
                seed,
                f"The {what} at task {task + 1}, step {step}.",
                "Try a smaller --learning-rate; --on-nonfinite skip goes on without such steps.",
            )
            return
        if history.skipped[seed][task] == self._steps[task]:
            why = f"Not one of the {self._steps[task]} steps of task {task + 1} was finite."
            self._fail(seed, why, "Try a smaller --learning-rate.")
        elif step % self._engine.config.log_every == 0 or step == self._steps[task]:
            losses, history.losses[seed] = history.losses[seed], []
            mean = {"loss": math.fsum(losses) / len(losses)} if losses else {}
            skipped = sum(history.skipped[seed])
            counted = {"skipped": skipped} if skipped else {}
            self._record(seed, "train", task, step, **mean, **counted)

    def _fail(self, seed: int, why: str, advice: str) -> None:
        """A seed that cannot go on; the others do."""
        kept = f"The state at step {self._checkpoints.latest()} is kept."
        self._history.failed[seed] = f"{why} {kept} {advice}"

    def _record(self, seed: int, kind: str, task: int, step: int, **values: Any) -> None:
        total = self._total_steps(task, step)
        record = {"kind": kind, "task": task + 1, "step": step, "total_steps": total, **values}
        self._history.records[seed].append(record)
        self._recorders[seed].write(record)

    def _end_task(self) -> None:
        """Lets the method look back, evaluates on every task so far, and goes over to the next."""
        history, task = self._history, self._history.task
        self._state = self._engine.end_stage(self._state, self._seeds, task)
        for seed in np.flatnonzero(~self._engine.finite(self._state)).tolist():
            if seed not in history.failed:
                why = f"What the method keeps of task {task + 1} is not finite."
                self._fail(seed, why, "Try a smaller --learning-rate.")
        if not self._going():
            return
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
        taken = np.array(self._steps) - np.array(self._history.skipped)[:, : len(self._steps)]
        return np.where(added > 0, added, np.nan) / taken[:, :, None]

    def _total(self) -> int:
        return self._total_steps(self._history.task, self._history.step)

    def _save(self, *, wait: bool = False) -> None:
        self._checkpoints.save(self._total(), self._state, self._history, wait=wait)
