"""Guarantee: where slots, their size, their memory or /dev/shm are limited, batches arrive all the same."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from lit_loader.memory import slot_writer
from tests.support.scripts import run_code
from tests.support.slot_sets import Large, is_right, loader_of, slots_of, used_bytes

EACH_SEED = pytest.mark.parametrize("seed", [None, 1], ids=["unseeded", "seeded"])


@EACH_SEED
@pytest.mark.parametrize("num_pages", [1, 8, 40, 150])
def test_batch_larger_than_a_slot_is_sent_by_pipe(seed, num_pages, monkeypatch):
    """A batch's two stacks take 25 pages and 50: none of them fits, one of them, both."""
    monkeypatch.setattr(slot_writer, "WINDOW_BYTES", num_pages * mmap.PAGESIZE)
    with loader_of(Large(60), seed=seed) as loader:
        batches = [batch for _ in range(2) for batch in loader]
        assert len(batches) == 30
        assert all(is_right(batch) for batch in batches)
        assert (used_bytes(slots_of(loader)) > 0) is (num_pages >= 25)


LIMITED = """
import os, resource
from tests.support.slot_sets import has_slots, is_right, Large, loader_of

used = 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1])
for limit in (
    (resource.RLIMIT_AS, used + (2 << 30)), (resource.RLIMIT_AS, used + (11 << 30)), (resource.RLIMIT_FSIZE, 1 << 30)
):
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(limit[0], (limit[1],) * 2)
        for seed in (None, 1):
            with loader_of(Large(80), seed=seed) as loader:
                kept = [batch for _ in range(2) for batch in loader]
                print(len(kept), all(map(is_right, kept)), has_slots(loader), flush=True)
                del kept
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_with_address_space_for_no_slot_or_for_two_or_a_limit_on_files_batches_arrive():
    assert run_code(LIMITED).stdout.split() == [
        *["40", "True", "False"] * 2,
        *["40", "True", "True"] * 2,
        *["40", "True", "False"] * 2,
    ]


SMALL_DEV_SHM = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0  # mounts of our own
assert libc.mount(None, b"/", None, 0x44000, None) == 0  # invisible to other processes
assert libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=64m") == 0
stat = os.statvfs("/dev/shm")
assert stat.f_blocks * stat.f_frsize == 64 << 20
from tests.support.slot_sets import Large, is_right, loader_of
with loader_of(Large(8, (25_000, 167)), prefetch_factor=1) as loader:
    batches = list(loader)
    print(len(batches), all(map(is_right, batches)), sum(t.nbytes for t in batches[0]) // 10**6, os.listdir("/dev/shm"))
"""


@pytest.mark.soak
def test_batches_of_200_megabytes_pass_a_dev_shm_of_64():
    if not may_mount():
        pytest.skip("this user may not mount a small /dev/shm in a process of its own")
    assert run_code(SMALL_DEV_SHM).stdout.split() == ["2", "True", "200", "[]"]


def may_mount():
    pid = os.fork()
    if pid == 0:
        libc = ctypes.CDLL(None)
        allowed = Path("/dev/shm").is_dir() and libc.unshare(0x20000) == 0
        allowed = allowed and libc.mount(None, b"/", None, 0x44000, None) == 0
        os._exit(0 if allowed and libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=1m") == 0 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
