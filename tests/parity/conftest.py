"""Starts the threads and files that torch's loader never ends, before leaks are counted."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.resource_sharer import DupFd

import pytest


@pytest.fixture(scope="session", autouse=True)
def _shared_heap() -> None:
    """Let multiprocessing open the shared memory that it never closes for its barriers."""
    multiprocessing.Barrier(2)


@pytest.fixture(scope="session", autouse=True)
def _descriptor_server() -> None:
    """Start the thread that hands descriptors to workers; torch needs it for tensors among its indices."""
    read, write = os.pipe()
    os.close(DupFd(read).detach())
    os.close(read)
    os.close(write)
