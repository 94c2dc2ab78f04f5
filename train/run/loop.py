"""The loop: every task's steps, then an evaluation; checkpoints, records and stops between."""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from train.errors import UserError
from train.methods import TrainState
from train.run import hosts, metrics
from train.run.checkpoint import Checkpoints
from train.run.directory import Bystander, Keeping, RunDirectory
from train.run.engine import Engine
from train.run.progress import RunProgress
from train.run.records import FILE, Matrices, Position, Recorder, to_nested, write_matrices
from train.run.signals import Stopped
from train.run.step import Outcome


class SeedRun:
    """One seed of a run, as far as it has come: its state, its records, its checkpoints."""

    def __init__(self, engine: Engine, directory: RunDirectory | Bystander, keeping: Keeping):
        self.seed = directory.seed
        self.directory = directory
        self.position = Position()
        self.notes: list[str] = []
        """What was found when the run was opened, for the user."""
        self._checkpoints = None
        if directory.checkpoints is not None:
            self._checkpoints = Checkpoints(
                directory.checkpoints, keep=keeping.keep, fingerprint=engine.fingerprint
            )
        self.begun, mark = False, None
        if self._checkpoints is not None and self._checkpoints.latest() is not None:
            self.begun = True
            saved, notes, self.notes = self._checkpoints.restore(
                engine.shapes(), resizable=engine.resizable()
            )
            self.state = engine.resized(saved, self.seed)
            mark = notes.pop("metrics")
            self.position = Position(**notes)
        else:
            hosts.together(self._check_no_records)
            self.state = engine.init_one(self.seed)
        tasks = [task.name for task in engine.stream.tasks]
        sources = list(engine.stream.sources)
        self.matrices = Matrices.empty(tasks, sources, has_alpha=engine.has_alpha)
        total = sum(engine.steps()[: self.position.task]) + self.position.step
        self.recorder = Recorder(
            directory.metrics, mark, tensorboard=keeping.tensorboard, total_steps=total
        )
        for record in self.recorder.records:
            if record["kind"] == "eval":
                self.matrices.take(record, engine.learned_after(record["task"] - 1).stop - 1)

    def _check_no_records(self) -> None:
        """Refuses to begin a run where there are records of one: it would write over them."""
        metrics = self.directory.metrics
        if metrics is not None and metrics.exists() and metrics.stat().st_size:
            raise UserError(
                f"{metrics.parent} has records of a run, and {self.directory.checkpoints} no "
                "checkpoint to go on from. Put the checkpoints back; --overwrite throws the run "
                "away and starts it anew."
            )

    def save(self, total: int, state: TrainState, *, wait: bool = False) -> None:
        if self._checkpoints is not None:
            notes = dataclasses.asdict(self.position) | {"metrics": self.recorder.mark()}
            self._checkpoints.save(total, state, notes, wait=wait)

    def fail(self, why: str, advice: str) -> None:
        """The seed cannot go on; the others do."""
        latest = None if self._checkpoints is None else self._checkpoints.latest()
        kept = "" if latest is None else f" The state at step {latest} is kept."
        self.position.failed = f"{why}{kept} {advice}"

    def close(self, *, answering: bool = True) -> None:
        """Without answering, other processes are gone, and a checkpoint would wait for them."""
        checkpoints, self._checkpoints = self._checkpoints, None
        try:
            if answering and checkpoints is not None:
                checkpoints.close()
        finally:
            self.recorder.close()


class Run:
    """A stream learned by one seed, or by several side by side that stand at the same step."""

    def __init__(
        self, engine: Engine, runs: Sequence[SeedRun], keeping: Keeping, display: RunProgress
    ):
        self._engine = engine
        self._runs = runs
        self._seeds = tuple(run.seed for run in runs)
        self._every = keeping.checkpoint_every
        self._steps = engine.steps()
        self.task, self.step = runs[0].position.task, runs[0].position.step
        self._state = engine.join([run.state for run in runs])
        for run in runs:
            if not run.begun:
                # From here on a run that has records and no checkpoint has lost it.
                run.save(0, run.state, wait=True)
            for note in run.notes:
                display.say(f"{note} Going on from step {self._total(self.step)}.")
        self._end = min(keeping.stop_after or len(self._steps), len(self._steps))
        self._underway: tuple[range, Outcome] | None = None
        self._display = display

    def finish(self) -> dict[int, str]:
        """Goes on from where the run stands to its end, or for as many tasks as it was asked to.

        Returns the seeds that failed, and why; raises Stopped after a signal, all of it saved.
        """
        with hosts.catch_stop() as stop_signal, contextlib.ExitStack() as stack:
            for run in self._runs:
                stack.push(lambda kind, *_, run=run: run.close(answering=kind is not hosts.Lost))
            stack.enter_context(hosts.noticing())
            stack.enter_context(self._display.showing())
            while self.task < self._end and self._well():
                steps = self._some_steps()
                learned = self.step == self._steps[self.task]
                signum = stop_signal(
                    range(self._total(steps.start) + 1, self._total(steps.stop) + 1)
                )
                if learned or signum is not None or self.step % self._every == 0:
                    self._take_losses()
                    if learned and self._well():
                        self._end_task()
                    if not self._well():
                        break
                    self._save()
                if signum is not None and self.task < self._end:
                    raise Stopped(signum, f"task {self.task + 1}, step {self.step}")
            for index, run in enumerate(self._runs):
                run.state = self._engine.split(self._state, index)
        return {run.seed: run.position.failed for run in self._runs if run.position.failed}

    def _well(self) -> list[int]:
        return [i for i, run in enumerate(self._runs) if run.position.failed is None]

    def _total(self, step: int) -> int:
        return sum(self._steps[: self.task]) + step

    def _some_steps(self) -> range:
        """One call's worth of steps, not past the task's end or the next checkpoint."""
        end = min(
            self.step + self._engine.steps_per_call,
            self._steps[self.task],
            (self.step // self._every + 1) * self._every,
        )
        steps = range(self.step, end)
        self._state, outcomes = self._engine.train(self._state, self._seeds, self.task, steps)
        # The device is busy with this call; meanwhile the host looks at the one before it.
        self._take_losses()
        self._underway = steps, outcomes
        self.step = end
        return steps

    def _take_losses(self) -> None:
        """Waits for the call under way, and records its losses."""
        if self._underway is None:
            return
        (steps, outcomes), self._underway = self._underway, None
        losses, finite = jax.device_get(outcomes)
        taken = np.asarray(losses, np.float64)
        for step, by_seed, well in zip(steps, taken, finite, strict=True):
            for index in self._well():
                loss = float(by_seed[index])
                self._take_loss(self._runs[index], step + 1, loss, bool(well[index]))
        self._display.step(self.task, steps.stop, float(np.mean(taken)))

    def _take_loss(self, run: SeedRun, step: int, loss: float, finite: bool) -> None:
        position, length = run.position, self._steps[self.task]
        settings = self._engine.config.run
        if finite:
            position.losses.append(loss)
        elif settings.on_nonfinite == "skip":
            position.skip()
        else:
            what = "gradient is not finite" if math.isfinite(loss) else f"loss became {loss}"
            return run.fail(
                f"The {what} at task {self.task + 1}, step {step}.",
                "Try a smaller --learning-rate; --on-nonfinite skip goes on without such steps.",
            )
        if position.skipped_of_task() == length:
            why = f"Not one of the {length} steps of task {self.task + 1} was finite."
            run.fail(why, "Try a smaller --learning-rate.")
        elif step % settings.log_every == 0 or step == length:
            losses, position.losses = position.losses, []
            mean = {"loss": math.fsum(losses) / len(losses)} if losses else {}
            skipped = sum(position.skipped)
            counted = {"skipped": skipped} if skipped else {}
            self._record(run, "train", step, **mean, **counted)

    def _record(self, run: SeedRun, kind: str, step: int, **values: Any) -> None:
        place = {"task": self.task + 1, "step": step, "total_steps": self._total(step)}
        run.recorder.write({"kind": kind, **place, **values})

    def _end_task(self) -> None:
        """Lets the method look back, evaluates on every task so far, and goes over to the next."""
        self._state = self._engine.end_task(self._state, self._seeds, self.task)
        finite = self._engine.finite(self._state)
        for index in self._well():
            if not finite[index]:
                why = f"What the method keeps of task {self.task + 1} is not finite."
                self._runs[index].fail(why, "Try a smaller --learning-rate.")
        if not self._well():
            return
        learned = self._engine.learned_after(self.task)
        scores = self._engine.scores(self._state, learned)
        for index in self._well():
            run, step, alpha = self._runs[index], self._steps[self.task], {}
            accuracies = scores[index].tolist()
            if self._engine.has_alpha:  # The mean of the steps; rows behind are of tasks to come.
                added = np.asarray(self._state.alpha_sum, np.float64).reshape(len(self._runs), -1)
                added, steps = added[index, : len(learned)], step - run.position.skipped_of_task()
                alpha["alpha"] = to_nested(np.where(added > 0, added, np.nan) / steps)
            run.matrices.take({"accuracies": accuracies, **alpha}, len(learned) - 1)
            summary = dataclasses.asdict(metrics.summary(run.matrices.accuracy))
            measured = {name: value for name, value in summary.items() if math.isfinite(value)}
            self._record(run, "eval", step, accuracies=accuracies, **measured, **alpha)
            if run.directory.path is not None:
                write_matrices(run.directory.path / FILE, run.matrices)
        average = float(scores[self._well()].mean())
        self._display.evaluated(self.task, average, percent=self._engine.scores_are_shares)
        self.task, self.step = self.task + 1, 0

    def _save(self) -> None:
        for index in self._well():
            run = self._runs[index]
            run.position.task, run.position.step = self.task, self.step
            run.save(self._total(self.step), self._engine.split(self._state, index))
