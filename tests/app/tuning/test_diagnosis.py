"""Every verdict needs its symptom in the figures."""

from __future__ import annotations

import pytest

from lit_loader.app.tuning import INLINE, Candidate, diagnose, median
from lit_loader.foundation.host import Resources
from tests.support.surfaces import figures

FOUR = Resources(num_cores=4)
TWO = Resources(num_cores=2)


def processes(num_workers, rate, cpu_ms, main_ms=0.1, **options):
    return figures(Candidate(num_workers, "fork", 2), rate, cpu_ms, main_ms, **options)


def threads(num_workers, rate, cpu_ms, **options):
    return figures(Candidate(num_workers, "thread", 2), rate, cpu_ms, **options)


INLINE_BUSY = figures(INLINE, 100, 10)  # 100 samples/s of 10 ms: one core
EIGHT = Resources(num_cores=8)
QUOTA = {cores: Resources(num_cores=64, quota_cores=cores) for cores in (2.0, 4.0)}
READING = figures(INLINE, 50, 4, read_bytes_per_sample=200 * 1024)


@pytest.mark.parametrize(
    ("host", "measured", "verdict", "text"),
    [
        (TWO, [INLINE_BUSY, processes(2, 195, 10.0)], "CPU bound", "10.00 ms of CPU per sample x 195 samples/s keep"),
        (QUOTA[2.0], [INLINE_BUSY, processes(2, 195, 10.0)], "CPU bound", "1.9 of 2 cores"),
        (QUOTA[4.0], [processes(8, 250, 10.0, throttled_s=0.4)], "throttled", "4 cores stopped the processes for 0.4"),
        (EIGHT, [INLINE_BUSY, processes(2, 120, 30.0)], "oversubscribed", "each worker keeps 1.8 cores busy"),
        (EIGHT, [INLINE_BUSY, threads(2, 120, 30.0)], "oversubscribed", "OMP_NUM_THREADS=1"),
        (FOUR, [processes(1, 100, 10.0), processes(2, 105, 19.0)], "memory bound", "of 1 need 1.9 times the CPU"),
        (FOUR, [threads(1, 100, 10.0), threads(2, 80, 13.0)], "interpreter lock", "2 threads load 80 samples/s and 1"),
        (FOUR, [READING, processes(2, 90, 4)], "storage", "20.0 ms inline, only 4.00 ms of them on the CPU, and 200"),
        (FOUR, [figures(INLINE, 50, 4), processes(2, 99, 4)], "waiting", "a network, a lock or a sleep"),
        (FOUR, [processes(2, 1000, 1.9, main_ms=0.95)], "bound by the consumer", "(0.95 ms per sample) while each"),
        (FOUR, [INLINE_BUSY, processes(1, 98, 10.0)], "no gain in rate", "inline loads 100 samples/s"),
        (FOUR, [figures(INLINE, 100, 10, other_cores=1.5)], "busy host", "kept 1.5 cores busy"),
        (FOUR, [INLINE_BUSY, processes(2, 200, 10.0)], "no limit was reached", "2.0 times the rate of inline"),
    ],
)
def test_symptom_brings_its_verdict(host, measured, verdict, text):
    (message,) = [text for text in diagnose(measured, measured[-1], host) if text.startswith(f"{verdict}: ")]
    assert text in message


@pytest.mark.parametrize(
    ("host", "measured", "verdict"),
    [
        (FOUR, [INLINE_BUSY, processes(2, 195, 10.0)], "CPU bound"),  # the same work, more cores
        (FOUR, [INLINE_BUSY, processes(2, 195, 10.0, throttled_s=0.01)], "throttled"),
        (FOUR, [INLINE_BUSY, processes(2, 195, 10.0)], "oversubscribed"),
        (FOUR, [INLINE_BUSY, processes(1, 100, 10.0), processes(2, 105, 10.1)], "memory bound"),
        (TWO, [processes(2, 200, 10.0), processes(4, 200, 13.0)], "memory bound"),  # more workers than cores
        (TWO, [processes(n, 100, 6.0 + n, other_cores=1.2) for n in (1, 2)], "memory bound"),  # others use the cores
        (TWO, [threads(n, 100, 9.0, other_cores=1.0) for n in (1, 2)], "interpreter lock"),  # others use the cores
        (FOUR, [threads(1, 100, 10.0), threads(2, 100, 19.0)], "memory bound"),  # threads may wait for the lock
        (FOUR, [threads(1, 100, 10.0), threads(2, 190, 10.0)], "interpreter lock"),
        (FOUR, [threads(1, 100, 2.0), threads(2, 100, 2.0)], "interpreter lock"),  # they wait for something else
        (FOUR, [figures(INLINE, 100, 10, read_bytes_per_sample=10**6)], "storage"),  # it reads but never waits
        (TWO, [figures(INLINE, 50, 4, other_cores=1.9)], "waiting"),  # other processes use the cores
        (FOUR, [processes(2, 1000, 1.9, main_ms=0.2)], "bound by the consumer"),
        (FOUR, [INLINE_BUSY, processes(1, 110, 10.0)], "no gain in rate"),
        (FOUR, [figures(INLINE, 100, 10, other_cores=0.1)], "busy host"),
        (TWO, [INLINE_BUSY, processes(2, 195, 10.0)], "no limit was reached"),
    ],
)
def test_verdict_needs_its_symptom(host, measured, verdict):
    verdicts = diagnose(measured, measured[-1], host)
    assert verdicts
    assert not any(text.startswith(f"{verdict}: ") for text in verdicts)


def test_median_ignores_figures_that_were_not_reported():
    measurements = [processes(2, rate, 10.0, memory_bytes=memory) for rate, memory in ((90, 1), (500, None), (100, 3))]
    medians = median(measurements)
    assert medians.samples_per_s == 100
    assert medians.memory_bytes == 2
    assert medians.other_cores is None
    assert medians.candidate == measurements[0].candidate


def test_cores_per_worker_exclude_the_main_process_of_worker_processes():
    assert processes(2, 100, 20.0, main_ms=4.0).cores_per_worker == pytest.approx(0.8)
    assert threads(2, 100, 20.0).cores_per_worker == pytest.approx(1.0)
    assert Resources(num_cores=8, quota_cores=2.5).cores == 2.5
    assert Resources(num_cores=2, quota_cores=8.0).cores == 2
