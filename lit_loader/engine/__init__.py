"""The engine: from a plan of tasks to batches in order, inline or on worker processes.

    plan -> fetch -> collate -> transport -> delivery

It is handed tasks, a collate function and worker settings; it knows no sampler and no Lightning.
"""

from __future__ import annotations

from lit_loader.engine.fetch import Fetcher, IterableFetcher, make_fetcher
from lit_loader.engine.inline import InlineRun
from lit_loader.engine.pool import WorkerPool
from lit_loader.engine.run import PoolRun
from lit_loader.engine.task import BatchKey, EndOfPass, Task
from lit_loader.engine.worker import WorkerSpec

__all__ = [
    "BatchKey",
    "EndOfPass",
    "Fetcher",
    "InlineRun",
    "IterableFetcher",
    "PoolRun",
    "Task",
    "WorkerPool",
    "WorkerSpec",
    "make_fetcher",
]
