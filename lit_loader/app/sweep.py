"""A table of the values that the jobs of a sweep returned."""

from __future__ import annotations

from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.utils import get_object
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

__all__ = ["SweepTable"]


class SweepTable(Callback):
    """A Hydra callback that prints the overrides and the returned value of each job when a sweep ends.

    If the value is the task's own metric, whose direction is known, the best job is marked. Jobs that a launcher runs
    in other processes are not in the table.
    """

    def __init__(self) -> None:
        self._jobs: list[JobReturn] = []

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Record the value that a job returned."""
        # Asking a failed job for its value would raise the job's error again.
        if job_return.status == JobStatus.COMPLETED and job_return.return_value is not None:
            self._jobs.append(job_return)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Print the table, with the overrides that differ between jobs."""
        if not self._jobs:
            return
        values = [float(job.return_value) for job in self._jobs]
        name, best = _metric(self._jobs[0].cfg or DictConfig({}), values)
        # Show only overrides that differ between jobs; a single job shows all of its overrides.
        override_sets = [set(job.overrides or ()) for job in self._jobs]
        shared = set.intersection(*override_sets) if len(override_sets) > 1 else set()
        table = Table("job", "overrides", name, title="results of the jobs", title_justify="left")
        for number, (job, value) in enumerate(zip(self._jobs, values, strict=True)):
            differing = " ".join(word for word in job.overrides or () if word not in shared)
            table.add_row(str(number), differing, f"{value:.4g}{' (best)' if value == best else ''}")
        Console(width=100, markup=False).print(table)


def _metric(cfg: DictConfig, values: list[float]) -> tuple[str, float | None]:
    """Return the name of the optimised metric, and its best value if its direction is known."""
    # The config does not say whether a higher or a lower value of this metric is better.
    if cfg.get("optimized_metric"):
        return str(cfg.optimized_metric), None
    task = get_object(cfg.model["_target_"])
    name = str(getattr(task, "monitor", "value"))
    mode = getattr(task, "monitor_mode", None)
    return name, {"min": min, "max": max}[mode](values) if mode in ("min", "max") else None
