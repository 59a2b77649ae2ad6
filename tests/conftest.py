"""Fixtures for every test: leaks fail a test, and real datasets are found or their tests are skipped."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import hypothesis
import psutil
import pytest
import torch

from lit_loader.loader.resume import KeyedEpochs
from tests.support.extras import absent_extra, is_installed

# Imports make no garbage, and looking for it takes a fifth of their time; `_frozen_heap` ends this before the tests.
gc.disable()

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"

HUGE_PAGE = 2 * 2**20
MADV_COLLAPSE = 25  # of <linux/mman.h>; Python's mmap has no name for it

NEEDED = {  # files and folders in which every test needs the extra
    "hydra": [
        "app/commands/test_next_command.py",
        "app/commands/test_profile.py",
        "app/commands/test_tune.py",
        "app/composition/",
        "app/test_",
        "app/tuning/test_search.py",
        "documents/",
        "examples/",
        "outside/",
        "portability/",
        "recipes/test_detector_configs.py",
    ],
    "plot": [
        "monitoring/test_timeline.py",
        "callbacks/test_picture_logger.py",
        "datamodules/test_pictures.py",
        "recipes/test_pictures.py",
    ],
    "recipes": ["annotations/formats/test_coco_results.py"],
    "timm": ["recipes/test_classifiers.py", "recipes/test_heatmap_model.py"],
}


def pytest_make_collect_report(collector: pytest.Collector) -> pytest.CollectReport | None:
    """Skip the files that need an absent extra before they are imported."""
    if not isinstance(collector, pytest.Module):
        return None
    name = collector.path.relative_to(Path(__file__).parent).as_posix()
    for extra, paths in NEEDED.items():
        if name.startswith(tuple(paths)) and not is_installed(extra):
            reason = (str(collector.path), 0, f"Skipped: the extra {extra} is not installed")
            return pytest.CollectReport(collector.nodeid, "skipped", reason, [])
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Skip a test whose error names an extra that is not installed."""
    report = yield
    extra = absent_extra(call.excinfo.value) if report.failed else None
    if extra is not None:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"Skipped: the extra {extra} is not installed")
    return report


# No deadlines: a busy machine is not a bug. `make test` tries the same few examples each time, `make soak` random ones.
hypothesis.settings.register_profile("test", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=400)
hypothesis.settings.load_profile("test")

# Tests define datasets within functions, which the default of Python 3.14, forkserver, would pickle. Tests of the other
# start methods name theirs.
multiprocessing.set_start_method("fork")

# Use one thread for torch's operators: sums keep their bits, and operators do not compete for two cores. The variable
# is for child interpreters, since torch has read it here.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _helpers_of_multiprocessing() -> None:
    """Start the processes that multiprocessing keeps for good, before anything is counted."""
    multiprocessing.set_forkserver_preload(["lit_loader.loader", "tests.support.toys"])
    resource_tracker.ensure_running()
    forkserver.ensure_running()


@pytest.fixture(scope="session", autouse=True)
def _frozen_heap() -> None:
    """Hide the half million objects that live as long as the session: with them a collection takes 0.3 s.

    They stay hidden, because the end of the interpreter collects garbage several times.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    _collapse_pages()


def _collapse_pages() -> None:
    """Move the heap to huge pages, whose page tables a fork copies in a third of the time.

    A kernel that refuses, such as Linux before 6.1, keeps the small pages.
    """
    madvise = ctypes.CDLL(None).madvise
    for mapping in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, _offset, _device, inode, *name = mapping.split()
        if permissions != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        start = -(-start // HUGE_PAGE) * HUGE_PAGE
        end = end // HUGE_PAGE * HUGE_PAGE
        if start < end:
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE)


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaks a process, a thread, a pipe, a socket or shared memory."""
    before = _resources()
    yield
    deadline = time.monotonic() + 5
    while True:
        leaks = {kind: sorted(now - before[kind]) for kind, now in _resources().items() if now - before[kind]}
        if not leaks:
            return
        if time.monotonic() > deadline:
            commands = [_cmdline(int(pid)) for pid in leaks.get("processes", ())]
            pytest.fail(f"left behind: {leaks} {commands or ''}")
        gc.collect()
        time.sleep(0.05)


def _resources() -> dict[str, set[str]]:
    return {
        "processes": {str(pid) for pid in _children()},  # a command line changes when a child has its own program
        "threads": {f"{thread.ident} {thread.name}" for thread in threading.enumerate()},
        "descriptors": _descriptors(),
        "shared memory": _shared_memory(),
    }


def _children() -> list[int]:
    # psutil reads every process of the machine, which takes 3 ms, twice per test. The kernel may have a list.
    try:
        lists = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    except OSError:  # a thread has just ended
        lists = []
    if not lists:
        return [child.pid for child in psutil.Process().children()]
    return [int(pid) for text in lists for pid in text.split()]


def _shared_memory() -> set[str]:
    """Entries that name this process or a child; other programs on the machine have theirs."""
    entries = [entry.name for entry in Path("/dev/shm").glob("*")]
    if not entries:
        return set()
    process = psutil.Process()
    pids = {str(relative.pid) for relative in (process, *process.children(recursive=True))}
    return {name for name in entries if pids & set(name.split("_"))}


def _cmdline(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def _descriptors() -> set[str]:
    descriptors = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed since the folder was listed
            descriptors.add(f"{entry.name} -> {entry.readlink()}")
    return {text for text in descriptors if re.search(r"-> (pipe:|socket:|/memfd:|/dev/shm)", text)}


@pytest.fixture(scope="session")
def distributions(tmp_path_factory) -> Path:
    """A folder with the sdist, the wheel that is built from it, and in ``tree`` the wheel built from the tree."""
    folder = tmp_path_factory.mktemp("dist")
    root = str(Path(__file__).parents[1])
    for words in (["--outdir", str(folder)], ["--wheel", "--outdir", str(folder / "tree")]):
        build = [sys.executable, "-m", "build", "--no-isolation", *words, root]
        subprocess.run(build, check=True, capture_output=True)
    return folder


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data sets; a test that needs it is skipped where it is not."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"the shared data sets are not at {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(autouse=True)
def samples_made_once(monkeypatch):
    """Disable the check of repeatability, since many datasets here count their calls; its tests enable it again."""
    monkeypatch.setattr(KeyedEpochs, "_checked_fetch", lambda epochs, spec, epoch: spec.fetch)
