"""Schemas of the ``batching`` group: which samples go together in a batch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AspectRatioBatchingConfig", "PlainBatchingConfig", "SizeBatchingConfig"]


@dataclass
class PlainBatchingConfig:
    """``lit_loader.datamodules.PlainBatching`` has no keys."""


@dataclass
class AspectRatioBatchingConfig:
    """Keys of ``lit_loader.datamodules.AspectRatioBatching``."""

    num_buckets: int = 8


@dataclass
class SizeBatchingConfig:
    """Keys of ``lit_loader.datamodules.SizeBatching``."""

    num_buckets: int = 16
