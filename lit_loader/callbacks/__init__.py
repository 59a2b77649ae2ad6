"""Lightning callbacks."""

from __future__ import annotations

from lit_loader.callbacks.bad_samples import BadSampleReport
from lit_loader.callbacks.class_mix import ClassMixMonitor
from lit_loader.callbacks.data_wait import DataWaitMonitor
from lit_loader.callbacks.recall import recall_weights
from lit_loader.callbacks.resume_loaders import ResumeLoaders
from lit_loader.callbacks.reweight import ReweightClasses

__all__ = [
    "BadSampleReport",
    "ClassMixMonitor",
    "DataWaitMonitor",
    "ResumeLoaders",
    "ReweightClasses",
    "recall_weights",
]
