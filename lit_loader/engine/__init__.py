"""The engine: from a plan of tasks to batches in order, inline, on worker processes or on worker threads.

    plan -> run -> pool -> fetch -> collate -> transport -> delivery

It is handed tasks, a collate function and worker settings; it knows no sampler and no Lightning.
"""

from __future__ import annotations

from lit_loader.engine.bad_samples import BadSample, BadSampleLog, ReportingRun, append_bad_samples
from lit_loader.engine.directed_run import DirectedRun
from lit_loader.engine.failures import NUM_SPARES, OnBadSample
from lit_loader.engine.fetch import Fetcher, IterableFetcher, unwrap_subset
from lit_loader.engine.inline import InlineRun
from lit_loader.engine.pool import Pool
from lit_loader.engine.process_pool import ProcessPool
from lit_loader.engine.shared_run import SharedRun
from lit_loader.engine.spec import WorkerSpec
from lit_loader.engine.stream_state import Placed, is_stateful
from lit_loader.engine.task import BatchKey, BatchTimeoutError, EndOfPass, StreamPlace, Task
from lit_loader.engine.thread_pool import ThreadPool

__all__ = [
    "BadSample",
    "BadSampleLog",
    "BatchKey",
    "BatchTimeoutError",
    "DirectedRun",
    "EndOfPass",
    "Fetcher",
    "InlineRun",
    "IterableFetcher",
    "NUM_SPARES",
    "OnBadSample",
    "Placed",
    "Pool",
    "ProcessPool",
    "ReportingRun",
    "SharedRun",
    "StreamPlace",
    "Task",
    "ThreadPool",
    "WorkerSpec",
    "append_bad_samples",
    "is_stateful",
    "unwrap_subset",
]
