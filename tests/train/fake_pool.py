"""Runs that take no time: what they learn is a function of their config and seed."""

import json

import numpy as np

from train.launch import processes
from train.launch.processes import Failure
from train.run import config as configs
from train.run import matrices
from train.run.matrices import Matrices


class FakePool:
    """Stands in for the processes; remembers what it was asked to do.

    Args:
      accuracy: (config, seed, task) -> the average accuracy after that task, or why it fails.
    """

    def __init__(self, monkeypatch, accuracy):
        self.accuracy = accuracy
        self.asked = []
        monkeypatch.setattr(processes, "run_jobs", self.run_jobs)
        monkeypatch.setattr(processes, "num_processes", lambda asked: asked or 1)

    def take(self):
        """The names of what was asked for since the last time."""
        asked, self.asked = self.asked, []
        return asked

    def run_jobs(self, jobs, console, *, processes, done=0, ended=lambda job, failure: None):
        self.asked += [job.name for job in jobs]
        failed = {}
        for job in jobs:
            failure = self._learn(job)
            if failure is not None:
                failed[job] = failure
            ended(job, failure)
        return failed

    def _learn(self, job):
        tasks = job.config.num_tasks
        job.directory.mkdir(parents=True, exist_ok=True)
        written = configs.to_json(job.config) | {"seed": job.seed}
        (job.directory / "config.json").write_text(json.dumps(written))
        matrix = np.full((tasks, tasks), np.nan)
        for task in range(job.places.stop_after or tasks):
            found = self.accuracy(job.config, job.seed, task + 1)
            if isinstance(found, Failure):
                return found
            matrix[task, : task + 1] = found
            names = [f"task {t}" for t in range(tasks)]
            measured = Matrices(matrix, None, names, ["none"])
            matrices.write(job.directory / matrices.FILE, measured)
        return None
