from __future__ import annotations

import multiprocessing
import os
import time

import pytest

from lit_loader.annotations.formats import parallel
from lit_loader.annotations.formats.parallel import INLINE_FILES, iter_chunks, status_spinner


def squares(chunk):
    return [x * x for x in chunk]


def process_ids(chunk):
    time.sleep(0.01)
    return os.getpid()


def fail_on_500_and_900(chunk):
    if 500 in chunk:
        time.sleep(0.2)
    for x in chunk:
        if x in (500, 900):
            raise ValueError(f"item {x}")
    return chunk


def run(function, items, num_workers=0, progress=False):
    return list(iter_chunks(function, items, num_workers=num_workers, progress=progress, description="x"))


@pytest.mark.parametrize("num_workers", [0, 1, 3, None])
@pytest.mark.parametrize("num_items", [0, 1, 200, 1_001])
def test_results_come_in_order_in_chunks_that_do_not_depend_on_num_workers(num_workers, num_items):
    results = run(squares, range(num_items), num_workers)
    assert [x for part in results for x in part] == [x * x for x in range(num_items)]
    assert [len(part) for part in results] == [len(part) for part in run(squares, range(num_items))]


def test_num_workers_selects_processes(monkeypatch):
    this_process = os.getpid()
    assert set(run(process_ids, range(1_000), 0)) == {this_process}
    assert this_process not in run(process_ids, range(1_000), 2)
    assert len(set(run(process_ids, range(2_000), 2))) == 2
    assert set(run(process_ids, range(INLINE_FILES - 1), None)) == {this_process}
    monkeypatch.setattr(parallel.os, "sched_getaffinity", lambda _: {0, 1})
    assert this_process not in run(process_ids, range(INLINE_FILES), None)
    monkeypatch.setattr(parallel.os, "sched_getaffinity", lambda _: {0})
    assert set(run(process_ids, range(INLINE_FILES), None)) == {this_process}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_first_error_in_order_is_raised(num_workers):
    with pytest.raises(ValueError, match="item 500"):
        run(fail_on_500_and_900, range(2_000), num_workers)


def _inside_a_daemon(queue):
    queue.put(set(run(process_ids, range(INLINE_FILES), None)) == {os.getpid()})


def test_a_daemonic_process_which_may_have_no_children_works_alone():
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    worker = context.Process(target=_inside_a_daemon, args=(queue,), daemon=True)
    worker.start()
    assert queue.get()
    worker.join()
    worker.close()
    queue.close()


def test_a_negative_num_workers_is_refused():
    with pytest.raises(ValueError, match="num_workers=-1 must be None or >= 0"):
        run(squares, range(3), -1)


def test_progress_is_drawn_on_a_terminal_and_nowhere_else(monkeypatch, capfd):
    run(squares, range(300), progress=True)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert run(squares, range(300), progress=True) == run(squares, range(300))
    assert "300/300" in capfd.readouterr().err
    run(squares, range(300), progress=False)
    assert capfd.readouterr() == ("", "")


def test_spinner_is_shown_on_terminal_until_progress_bar(monkeypatch, capfd):
    with status_spinner("Reading a.txt", progress=True):
        run(squares, range(300), progress=True)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with status_spinner("Reading a.txt", progress=True):
        assert run(squares, range(300), num_workers=2, progress=True) == run(squares, range(300))
    output = capfd.readouterr().err
    assert output.index("Reading a.txt") < output.index("300/300") < output.rindex("Reading a.txt")
    with status_spinner("Reading a.txt", progress=False):
        pass
    assert capfd.readouterr() == ("", "")


def test_results_are_yielded_before_last_chunk_is_done():
    chunks_done = []
    chunks = iter_chunks(chunks_done.append, range(1_000), num_workers=0, progress=False, description="x")
    assert chunks_done == []
    next(chunks)
    assert chunks_done == [range(200)]
    assert len(list(chunks)) == 4


def test_chunks_of_large_sets_are_larger():
    assert [len(part) for part in run(squares, range(64_000))] == [1_000] * 64
    assert {len(part) for part in run(squares, range(16_000))} == {500}
