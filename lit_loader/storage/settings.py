"""Settings of a store: its URL, how to reach it, and how much of it to keep on this host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["SCHEMES", "StorageSettings", "is_url"]

SCHEMES: Final = ("s3", "gs", "az", "http", "https", "file")
"""Schemes of the URLs of stores."""


def is_url(root: Path | str) -> bool:
    """Return True if a root is the URL of a store, and False if it is a folder."""
    scheme, separator, _ = str(root).partition("://")
    return bool(separator) and scheme in SCHEMES


@dataclass(frozen=True, kw_only=True)
class StorageSettings:
    """How to reach a store, and how much of it to keep on this host.

    Args:
        url: URL of the data set's folder, such as ``s3://bucket/set``, without credentials.
        options: Settings of the store by obstore's names, such as ``endpoint``, ``region`` or ``access_key_id``. They
            are neither shown, nor pickled, nor part of a cache's name. The store's own environment variables give the
            other settings.
        cache_dir: Folder whose subfolder ``objects`` holds the caches, or None for the user's cache folder.
        cache_budget: Largest size of the cached images of this store, as a number of bytes or a string such as
            ``"100 GiB"``, or None for half of the free disk space.
        window: Number of samples to keep ahead of each rank.
        num_connections: Number of requests in flight.
    """

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    cache_dir: Path | str | None = None
    cache_budget: int | str | None = None
    window: int = 512
    num_connections: int = 64

    def __post_init__(self) -> None:
        if not is_url(self.url):
            raise ValueError(f"url={self.url!r} is not the URL of a store; its scheme must be one of {list(SCHEMES)}")
