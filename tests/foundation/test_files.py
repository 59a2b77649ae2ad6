"""A file lock: one holder at a time, gone with its holder. New folders: complete or not there."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading

import pytest

from lit_loader.foundation.files import file_lock, new_folder

FORK = multiprocessing.get_context("fork")


def hold(path, held):
    with file_lock(path):
        held.set()
        signal.pause()


def test_another_process_holds_it_until_it_is_killed(tmp_path):
    path, held = tmp_path / "lock", FORK.Event()
    child = FORK.Process(target=hold, args=(path, held))
    child.start()
    assert held.wait(60)
    with file_lock(path, wait=False) as is_free:
        assert not is_free
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    with file_lock(path, wait=False) as is_free:
        assert is_free
    child.close()


def test_threads_are_never_two_in_it(tmp_path):
    path, inside, most = tmp_path / "lock", [], []

    def enter():
        for _ in range(5):
            with file_lock(path):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (max(most), len(most)) == (1, 20)


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
    assert [each.read_text() for each in path.parent.rglob("*") if each.is_file()] == ["2"]
