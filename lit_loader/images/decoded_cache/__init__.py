"""Cache of decoded images, shared by the processes and runs of a host."""

from __future__ import annotations

from lit_loader.images.decoded_cache.reader import CachedReader, shrink_target
from lit_loader.images.decoded_cache.settings import CacheSettings

__all__ = ["CacheSettings", "CachedReader", "shrink_target"]
