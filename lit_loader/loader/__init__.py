"""The data loader: its arguments, epochs, iterators and resume, the transfer to a device, and what Lightning needs."""

from __future__ import annotations

from lit_loader.loader.data_loader import DataLoader
from lit_loader.loader.forkserver import start_forkserver

__all__ = ["DataLoader", "start_forkserver"]
