"""Lightning callbacks."""

from __future__ import annotations

from lit_loader.callbacks.bad_samples import BadSampleReport
from lit_loader.callbacks.class_mix import ClassMixMonitor
from lit_loader.callbacks.data_wait import DataWaitMonitor

__all__ = ["BadSampleReport", "ClassMixMonitor", "DataWaitMonitor"]
