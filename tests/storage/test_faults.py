"""Guarantee: faults of a store, and deaths of processes, change no batch, or are the samples' own errors."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import re
import shutil
import signal
import time
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from lit_loader import DataLoader, RandomSampler
from lit_loader.collate import DetectionCollate
from lit_loader.datasets import DetectionDataset
from lit_loader.errors import BadSamplesWarning
from lit_loader.images import ImageReading
from lit_loader.storage.protocol import HEADER_BYTES
from tests.support.drawn_set import draw_set
from tests.support.object_server import Fault, FaultKind
from tests.support.outcomes import outcomes_of
from tests.support.remote_sets import (
    digest,
    end_stores,
    fetch_processes,
    options_with_credentials,
    packed_catalog,
    raw_catalog,
    remote_reading,
)

# Not by importorskip, because obstore must not be imported where tests fork.
pytestmark = pytest.mark.skipif(find_spec("obstore") is None, reason="the extra storage is not installed")

BATCH_SIZE = 4
TRANSIENT = (FaultKind.UNAVAILABLE, FaultKind.ERROR, FaultKind.CUT, FaultKind.SHORT)
LASTING = (FaultKind.VANISHED, FaultKind.CHANGED, FaultKind.LONGER, FaultKind.SHORTER)
NUM_IMAGES = 40
REASONS = {
    FaultKind.VANISHED: "does not exist",
    FaultKind.CHANGED: "has changed",
    FaultKind.LONGER: "bytes",
    FaultKind.SHORTER: "bytes",
}
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000


@pytest.fixture(autouse=True)
def _no_fetch_process():
    yield
    end_stores()


def loader_of(table, reading=None, **arguments):
    dataset = DetectionDataset(table, reading=reading or ImageReading())
    arguments = {"seed": 3, "sampler": RandomSampler(table.num_images), **arguments}
    return DataLoader(dataset, BATCH_SIZE, collate_fn=DetectionCollate(), **arguments)


def digests(loader, num_epochs=1):
    with loader:
        return [digest(batch) for _ in range(num_epochs) for batch in loader]


@pytest.fixture
def table(object_server):
    return draw_set(object_server.folder / "set", num_images=NUM_IMAGES, objects=2)


def test_transient_faults_lose_no_sample(object_server, table, tmp_path):
    expected = digests(loader_of(table))
    object_server.set_faults(*(Fault(kind, share=0.2, limit=8) for kind in TRANSIENT))
    reading = remote_reading(object_server, table, raw_catalog(object_server, table), tmp_path)
    assert digests(loader_of(table, reading)) == expected
    counts = object_server.counts
    num_faults = [counts[f"fault_{kind}"] for kind in TRANSIENT]
    assert min(num_faults) >= 2
    assert counts["get"] + counts["get_range"] == NUM_IMAGES + sum(num_faults)


def test_expired_credentials_are_read_again_and_lose_no_sample(object_server, table, tmp_path):
    expected = digests(loader_of(table))
    catalog = raw_catalog(object_server, table)
    object_server.set(token="old")
    file = tmp_path / "credentials.json"
    settings = {"options": options_with_credentials(object_server, file, "old"), "window": 4, "num_connections": 2}
    actual = []
    with loader_of(table, remote_reading(object_server, table, catalog, tmp_path, **settings)) as loader:
        for number, batch in enumerate(loader):
            actual.append(digest(batch))
            if number == 2:
                object_server.set(token="new")
                options_with_credentials(object_server, file, "new")
    assert actual == expected
    assert object_server.counts["refused_tokens"] > 0


def lasting_faults():
    """Return a fault of each kind for the images whose number ends with its digit."""
    return [Fault(kind, keys=f"{digit}.png$") for digit, kind in enumerate(LASTING)]


@pytest.mark.parametrize("policy", ["raise", pytest.param("skip", marks=pytest.mark.soak), "substitute"])
def test_lasting_faults_are_the_samples_own_errors(policy, object_server, table, tmp_path):
    catalog = raw_catalog(object_server, table)
    faults = lasting_faults()
    object_server.set_faults(*faults)
    kinds = {
        index: fault.kind
        for index, path in enumerate(table.image_paths)
        for fault in faults
        if object_server.is_struck(fault, f"set/{path}")
    }
    # The same samples are bad in a copy on this host.
    folder = tmp_path / "copy"
    shutil.copytree(table.root, folder)
    for index in kinds:
        (folder / table.image_paths[index]).unlink()
    arguments = {"on_bad_sample": policy}
    if policy != "raise":
        arguments["max_bad_samples"] = 1000
    local = loader_of(replace(table, root=folder), **arguments)
    remote = loader_of(table, remote_reading(object_server, table, catalog, tmp_path), **arguments)
    with local, remote:
        expected = [outcome_text(outcome) for outcome in outcomes_of(local)]
        outcomes = outcomes_of(remote)
        assert [outcome_text(outcome) for outcome in outcomes] == expected
        if policy == "raise":
            errors = [str(outcome) for outcome in outcomes if isinstance(outcome, Exception)]
            assert errors
            assert all(object_server.url("set") in error for error in errors)
            return
        assert {record.index for record in remote.bad_samples} == set(kinds)
        assert [record.position for record in remote.bad_samples] == [record.position for record in local.bad_samples]
        for record in remote.bad_samples:
            assert object_server.url(f"set/{record.index}.png") in record.message
            assert re.search(REASONS[kinds[record.index]], record.message), record.message


def outcome_text(outcome):
    """Return the digest of a batch, or the samples and the files that an error names."""
    if isinstance(outcome, BadSamplesWarning):
        return "warning"
    if isinstance(outcome, Exception):
        texts = [str(outcome), *getattr(outcome, "__notes__", ())]
        return set(re.findall(r"sample \d+|\d+\.png", "\n".join(texts)))
    return digest(outcome)


def kill_fetch_process(sign=signal.SIGKILL):
    for process in fetch_processes():
        process.send_signal(sign)


def test_killed_fetch_process_loses_no_sample(object_server, table, tmp_path):
    expected = digests(loader_of(table))
    catalog = packed_catalog(object_server, table, images_per_shard=7)
    reading = remote_reading(object_server, table, catalog, tmp_path, window=8, num_connections=2)
    object_server.set(delay_ms=2)
    actual = []
    with loader_of(table, reading, num_workers=2) as loader:
        for number, batch in enumerate(loader):
            actual.append(digest(batch))
            if number in (1, 4):
                kill_fetch_process()
    assert actual == expected


def in_processes(*functions):
    """Return the results of functions, each called in a fork of this process, all at the same time."""
    connections = []
    processes = []
    context = multiprocessing.get_context("fork")
    for function in functions:
        reader, writer = context.Pipe(duplex=False)
        processes.append(context.Process(target=lambda send, call: send(call()), args=(writer.send, function)))
        connections.append(reader)
        processes[-1].start()
        writer.close()
    try:
        return [reader.recv() for reader in connections]
    finally:
        for process, reader in zip(processes, connections, strict=True):
            process.join(10)
            process.kill()
            process.join()
            process.close()
            reader.close()


def test_ranks_of_a_host_share_one_fetch_process(object_server, table, tmp_path):
    catalog = raw_catalog(object_server, table)

    def run(rank, *, remote):
        reading = remote_reading(object_server, table, catalog, tmp_path) if remote else None
        return digests(loader_of(table, reading, rank=rank, world_size=2))

    expected = [run(rank, remote=False) for rank in range(2)]
    actual = in_processes(*(partial(run, rank, remote=True) for rank in range(2)))
    assert actual == expected
    assert sorted(index for part in actual for indices, _ in part for index in indices) == list(range(NUM_IMAGES))
    assert object_server.counts["get"] == NUM_IMAGES


@pytest.mark.soak
def test_runs_with_other_seeds_share_fetched_images(object_server, table, tmp_path):
    catalog = raw_catalog(object_server, table)

    def run(seed, *, remote):
        reading = remote_reading(object_server, table, catalog, tmp_path) if remote else None
        return digests(loader_of(table, reading, seed=seed))

    expected = [run(seed, remote=False) for seed in range(2)]
    assert in_processes(*(partial(run, seed, remote=True) for seed in range(2))) == expected
    assert object_server.counts["get"] == NUM_IMAGES


# The grace of 10 s.
@pytest.mark.soak
def test_fetch_process_ends_after_its_trainer_was_killed(object_server, table, tmp_path):
    reading = remote_reading(object_server, table, raw_catalog(object_server, table), tmp_path)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            batches = iter(loader_of(table, reading, num_workers=2))
            next(batches)
            os.write(writer, str([process.pid for process in fetch_processes()]).encode())
            time.sleep(600)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(writer)
    (fetch_pid,) = json.loads(os.read(reader, 100))
    os.close(reader)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert ends(fetch_pid)


def ends(pid, wait_s=30):
    """Wait for a process that need not be a child, and return True if it has ended."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        try:
            # A process whose parent was killed may stay a zombie.
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def test_full_disk_loses_no_sample(object_server, table, tmp_path):
    expected = digests(loader_of(table))
    catalog = raw_catalog(object_server, table)
    disk = tmp_path / "disk"
    disk.mkdir()

    def run():
        if not mount_small_disk(disk, num_bytes=16 * 4096 + 2 * HEADER_BYTES):
            return None
        # Half of a disk is the default, so a budget has to promise too much.
        settings = {"cache_budget": 1 << 30, "window": 4, "num_connections": 2}
        outcomes = outcomes_of(loader_of(table, remote_reading(object_server, table, catalog, disk, **settings)))
        return [str(item) if isinstance(item, Exception) else digest(item) for item in outcomes]

    (actual,) = in_processes(run)
    if actual is None:
        pytest.skip("this user cannot mount a file system in a namespace")
    assert len(actual) == len(expected)
    for outcome, batch in zip(actual, expected, strict=True):
        assert outcome == batch or re.search("No space left", outcome)


def mount_small_disk(folder, *, num_bytes):
    """Mount a file system in memory that only this process sees; return False where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid = os.getuid()
    gid = os.getgid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS):
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    except OSError:
        return False
    options = f"size={num_bytes}".encode()
    return libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, options) == 0
