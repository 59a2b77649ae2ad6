"""The engine: from a plan of tasks to batches in order, inline, on worker processes or on worker threads.

`docs/architecture/life-of-a-batch.md` follows a batch from the loader's constructor to the consumer.
"""

from __future__ import annotations

from lit_loader.engine.bad_samples import BadSample, BadSampleLog, append_bad_samples
from lit_loader.engine.fetch import StreamBatch, is_stateful, unwrap_subset
from lit_loader.engine.inline import InlineBatches
from lit_loader.engine.partners import PartnerDraws
from lit_loader.engine.plan import plan_custom, plan_order, plan_stream
from lit_loader.engine.processes import ProcessBackend
from lit_loader.engine.scheduler import Backend, Scheduler
from lit_loader.engine.spec import (
    Batches,
    BatchKey,
    BatchSlicing,
    BatchTimeoutError,
    EndOfEpoch,
    FetchSpec,
    KeyedSpec,
    LoaderSpec,
    OnBadSample,
    Resume,
    Seen,
    StreamPlace,
    Task,
    TransferFn,
    WorkerMethod,
    WorkerSpec,
    WrappedBatches,
)
from lit_loader.engine.stats import BatchRecord, Counters, LoaderStats
from lit_loader.engine.threads import ThreadBackend

__all__ = [
    "Backend",
    "BadSample",
    "BadSampleLog",
    "BatchKey",
    "BatchRecord",
    "BatchSlicing",
    "BatchTimeoutError",
    "Batches",
    "Counters",
    "EndOfEpoch",
    "FetchSpec",
    "InlineBatches",
    "KeyedSpec",
    "LoaderSpec",
    "LoaderStats",
    "OnBadSample",
    "PartnerDraws",
    "ProcessBackend",
    "Resume",
    "Scheduler",
    "Seen",
    "StreamBatch",
    "StreamPlace",
    "Task",
    "ThreadBackend",
    "TransferFn",
    "WorkerMethod",
    "WorkerSpec",
    "WrappedBatches",
    "append_bad_samples",
    "is_stateful",
    "plan_custom",
    "plan_order",
    "plan_stream",
    "unwrap_subset",
]
