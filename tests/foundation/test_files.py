"""A file lock: one holder at a time, gone with its holder. New folders: complete or not there."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from lit_loader.foundation.files import file_lock, new_folder

FORK = multiprocessing.get_context("fork")


def hold(path, is_held):
    with file_lock(path):
        is_held.set()
        signal.pause()


def test_another_process_holds_it_until_it_is_killed(tmp_path):
    path = tmp_path / "lock"
    is_held = FORK.Event()
    child = FORK.Process(target=hold, args=(path, is_held))
    child.start()
    assert is_held.wait(60)
    with file_lock(path, wait=False) as is_free:
        assert not is_free
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    with file_lock(path, wait=False) as is_free:
        assert is_free
    child.close()


def test_threads_are_never_two_in_it(tmp_path):
    inside = []
    num_inside = []

    def enter():
        for _ in range(5):
            with file_lock(tmp_path / "lock"):
                inside.append(1)
                num_inside.append(len(inside))
                inside.pop()

    with ThreadPoolExecutor(4) as pool:
        wait(pool.submit(enter) for _ in range(4))
    assert num_inside == [1] * 20


def test_a_new_folder_is_there_when_it_is_complete_and_replaces_none(tmp_path):
    path = tmp_path / "a" / "b"
    with pytest.raises(RuntimeError), new_folder(path) as folder:
        (folder / "file").write_text("1")
        raise RuntimeError
    assert list(path.parent.iterdir()) == []
    with new_folder(path) as folder:
        (folder / "file").write_text("2")
        assert not path.exists()
    with pytest.raises(OSError, match="not empty"), new_folder(path) as folder:
        (folder / "file").write_text("3")
    assert [file.read_text() for file in path.parent.rglob("*") if file.is_file()] == ["2"]
