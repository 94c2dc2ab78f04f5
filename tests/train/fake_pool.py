"""Runs that take no time: what they learn is a function of their config and seed."""

from train import files
from train.launch import processes
from train.launch.processes import Failure
from train.run import records
from train.run.records import Matrices


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

    def run_jobs(self, jobs, progress, *, processes, done=0, ended=lambda job, failure: None):
        self.asked += [job.name for job in jobs]
        failed = {}
        for job in jobs:
            failure = self._learn(job)
            if failure is not None:
                failed[job] = failure
            ended(job, failure)
        return failed

    def _learn(self, job):
        tasks = job.tasks
        job.directory.mkdir(parents=True, exist_ok=True)
        files.write_json(job.directory / "config.json", job.config.flat() | {"seed": job.seed})
        names = [f"task {t}" for t in range(tasks)]
        measured = Matrices.empty(names, ["none"], has_alpha=False)
        for task in range(job.keeping.stop_after or tasks):
            found = self.accuracy(job.config, job.seed, task + 1)
            if isinstance(found, Failure):
                return found
            measured.accuracy[task, : task + 1] = found
            records.write_matrices(job.directory / records.FILE, measured)
        return None
