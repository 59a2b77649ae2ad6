"""Lightning callbacks."""

from __future__ import annotations

from lit_loader.callbacks.bad_samples import BadSampleReport
from lit_loader.callbacks.monitors import ClassMixMonitor, DataWaitMonitor
from lit_loader.callbacks.resume_loaders import ResumeLoaders
from lit_loader.callbacks.reweight import ReweightClasses, recall_weights

__all__ = [
    "BadSampleReport",
    "ClassMixMonitor",
    "DataWaitMonitor",
    "ResumeLoaders",
    "ReweightClasses",
    "recall_weights",
]
