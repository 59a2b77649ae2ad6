"""The clock of stages: times never overlap, threads and nested clocks are independent."""

from __future__ import annotations

import threading
import time

import pytest

from lit_loader.foundation.stage_times import DECODING, READING, STAGES, TRANSFORMING, StageClock, note_read

PAUSE_S = 0.004


def times_of(work):
    clock = StageClock()
    start = time.perf_counter()
    with clock:
        clock.start_task()
        work()
    times = clock.take()
    return dict(zip(STAGES, times.stage_s, strict=True)), time.perf_counter() - start, times


def pause():
    time.sleep(PAUSE_S)


def nested():
    with TRANSFORMING:
        pause()
        with DECODING:
            pause()
            with READING:
                pause()
            pause()
    pause()


def test_inner_stages_do_not_count_as_outer_ones():
    stage_s, elapsed_s, _ = times_of(nested)
    assert stage_s["decode"] >= 2 * PAUSE_S
    assert all(stage_s[stage] >= PAUSE_S for stage in ("read", "transform", "sample"))
    # Counted twice, the inner stages would make the sum longer than the work.
    assert sum(stage_s.values()) <= elapsed_s


def test_error_leaves_its_stages():
    clock = StageClock()
    with clock:
        clock.start_task()
        with pytest.raises(ZeroDivisionError), DECODING, READING:
            1 / 0  # raises
        pause()
    stage_s = dict(zip(STAGES, clock.take().stage_s, strict=True))
    assert stage_s["sample"] >= PAUSE_S > stage_s["read"] + stage_s["decode"]


def test_nested_clock_takes_nothing_from_outer_one():
    inner = StageClock()

    def work():
        with inner:
            inner.start_task()
            with READING:
                note_read(7)
                pause()

    stage_s, _, times = times_of(work)
    assert (stage_s["read"], times.read_bytes) == (0, 0)
    assert stage_s["sample"] >= PAUSE_S
    assert inner.take().read_bytes == 7


def test_other_threads_do_not_count():
    def work():
        thread = threading.Thread(target=nested)
        thread.start()
        thread.join()

    stage_s, _, _ = times_of(work)
    assert stage_s["sample"] >= 5 * PAUSE_S
    assert (stage_s["read"], stage_s["decode"], stage_s["transform"]) == (0, 0, 0)


def test_marks_without_a_clock_do_nothing():
    nested()
    note_read(3)


def test_times_begin_at_zero_after_they_were_taken():
    clock = StageClock()
    with clock:
        clock.start_task()
        nested()
        clock.start_collating(number=5, num_samples=3)
        first = clock.take()
        clock.rest()
        pause()
        clock.start_task()
        second = clock.take()
    assert (first.number, first.num_samples, second.num_samples) == (5, 3, 0)
    assert first.idle_s < PAUSE_S <= second.idle_s
    assert sum(second.stage_s) < PAUSE_S * 5


def test_cpu_seconds_are_those_of_the_thread():
    def spin():
        deadline = time.thread_time() + 0.02
        while time.thread_time() < deadline:
            pass

    assert times_of(spin)[2].cpu_s >= 0.02
    assert times_of(lambda: time.sleep(0.05))[2].cpu_s < 0.04
