"""A file lock: one holder at a time, gone with its holder, no file left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path

from lit_loader.files import file_lock

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
    assert list(tmp_path.iterdir()) == []
    child.close()


def test_threads_that_delete_and_make_the_file_again_are_never_two_in_it(tmp_path):
    path, inside, most = tmp_path / "lock", [], []

    def enter():
        for _ in range(50):
            with file_lock(path):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (max(most), len(most)) == (1, 200)
    assert list(Path(tmp_path).iterdir()) == []
