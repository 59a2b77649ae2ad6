"""Counters of processes from /proc, with fake trees and a real child process."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from lit_loader.app.tuning.meter import descendants, memory_bytes, used_by
from lit_loader.foundation.host import read_busy_s

TICKS = os.sysconf("SC_CLK_TCK")


def add(proc, pid, parent, *, name="python", user=0, system=0, read=0, rollup=None):
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    fields = ["S", parent, 0, 0, 0, 0, 0, 11, 0, 0, 0, user * TICKS, system * TICKS, 0, 0, 20, 0, 3]
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, fields))}\n")
    (folder / "io").write_text(f"rchar: 9\nread_bytes: {read}\ncancelled_write_bytes: 0\n")
    if rollup is not None:
        (folder / "smaps_rollup").write_text(f"0-f ---p 0 0:0 0 [rollup]\nRss: 999 kB\nPss: {rollup} kB\n")


def test_used_by_sums_user_and_kernel_time(tmp_path):
    add(tmp_path, 7, 1, name="a (b) c", user=2, system=1, read=100)
    add(tmp_path, 8, 7, user=1, read=1)
    assert used_by([7, 8], proc=tmp_path) == (4.0, 101)
    assert used_by([7, 99], proc=tmp_path) == (3.0, 100)


def test_descendants_include_children_of_children(tmp_path):
    for pid, parent in ((2, 1), (3, 2), (4, 3), (5, 1), (6, 4)):
        add(tmp_path, pid, parent)
    assert descendants(2, proc=tmp_path) == {3, 4, 6}
    assert descendants(5, proc=tmp_path) == set()


def test_memory_is_the_proportional_set_size(tmp_path):
    add(tmp_path, 7, 1, rollup=1000)
    add(tmp_path, 8, 1, rollup=24)
    assert memory_bytes([7, 8], proc=tmp_path) == 1 << 20
    assert memory_bytes([99], proc=tmp_path) is None


def test_busy_time_excludes_idle_and_iowait(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(f"cpu  {3 * TICKS} 0 {TICKS} 500 70 0 0 {TICKS} 900 0\ncpu0 1 1 1 1\n")
    assert read_busy_s(tmp_path) == pytest.approx(5.0)
    assert read_busy_s(tmp_path / "none") is None


def test_busy_child_process_is_measured():
    code = "import sys, time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nsys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while used_by([child.pid])[0] < 0.29 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert child.pid in descendants(os.getpid())
        assert used_by([child.pid])[0] >= 0.29
        assert memory_bytes([child.pid]) > 1 << 20
    finally:
        child.stdin.close()
        child.wait()
    assert child.pid not in descendants(os.getpid())
    assert read_busy_s() > 0
