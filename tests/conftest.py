"""Fixtures for every test: nothing may be left behind, and where the shared real data lies."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import psutil
import pytest
import torch

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def _helpers_of_multiprocessing() -> None:
    """Start the processes that multiprocessing keeps for good, before anything is counted."""
    multiprocessing.set_forkserver_preload(["lit_loader.loader", "tests.toys"])
    resource_tracker.ensure_running()
    forkserver.ensure_running()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Sums keep their bits, and two cores are not fought over by every operator."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaks a process, a thread, a pipe, a socket or shared memory."""
    before = _belongings()
    yield
    deadline = time.monotonic() + 5
    while True:
        left = {kind: sorted(now - before[kind]) for kind, now in _belongings().items() if now - before[kind]}
        if not left:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {left}")
        gc.collect()
        time.sleep(0.05)


def _belongings() -> dict[str, set[str]]:
    return {
        "processes": {f"{child.pid} {' '.join(_cmdline(child))}" for child in psutil.Process().children()},
        "threads": {f"{thread.ident} {thread.name}" for thread in threading.enumerate()},
        "descriptors": _descriptors(),
        "shared memory": _shared_memory(),
    }


def _shared_memory() -> set[str]:
    """Entries that name a process of this test; others on the machine come and go."""
    pids = {str(process.pid) for process in (psutil.Process(), *psutil.Process().children(recursive=True))}
    folder = Path("/dev/shm")
    return (
        {entry.name for entry in folder.iterdir() if pids & set(entry.name.split("_"))}
        if folder.exists()
        else set()
    )


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _descriptors() -> set[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith(("pipe:", "socket:", "/memfd:", "/dev/shm")):
            found.add(f"{entry.name} -> {target}")
    return found


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data sets; a test that needs it is skipped where it is not."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"the shared data sets are not at {SHARED_DATA}")
    return SHARED_DATA
