"""Every verdict needs its symptom in the figures."""

from __future__ import annotations

import pytest

from lit_loader.app.tuning import INLINE, Candidate, diagnose, median, verdicts
from lit_loader.foundation.host import Resources
from tests.support.surfaces import figures

FOUR = Resources(num_cores=4)
TWO = Resources(num_cores=2)


def processes(num_workers, rate, cpu_ms, main_ms=0.1, **options):
    return figures(Candidate(num_workers, "fork", 2), rate, cpu_ms, main_ms, **options)


def threads(num_workers, rate, cpu_ms, **options):
    return figures(Candidate(num_workers, "thread", 2), rate, cpu_ms, **options)


INLINE_BUSY = figures(INLINE, 100, 10)  # 100 samples/s of 10 ms: one core

CASES = {
    "cpu_bound": (TWO, [INLINE_BUSY, processes(2, 195, 10.0)], "10.00 ms of CPU per sample x 195 samples/s keep 1.9"),
    "cpu_bound by a quota": (
        Resources(num_cores=64, quota_cores=2.0),
        [INLINE_BUSY, processes(2, 195, 10.0)],
        "1.9 of 2 cores",
    ),
    "throttled": (
        Resources(num_cores=64, quota_cores=4.0),
        [INLINE_BUSY, processes(8, 250, 10.0, throttled_s=0.4)],
        "the CPU quota of 4 cores stopped the processes for 0.4 of 1.0 s",
    ),
    "native_threads": (
        Resources(num_cores=8),
        [INLINE_BUSY, processes(2, 120, 30.0)],
        "each worker keeps 1.8 cores busy",
    ),
    "native_threads of threads": (Resources(num_cores=8), [INLINE_BUSY, threads(2, 120, 30.0)], "OMP_NUM_THREADS=1"),
    "memory_bandwidth": (
        FOUR,
        [INLINE_BUSY, processes(1, 100, 10.0), processes(2, 105, 19.0)],
        "2 workers instead of 1 need 1.9 times the CPU",
    ),
    "interpreter_lock": (
        FOUR,
        [INLINE_BUSY, threads(1, 100, 10.0), threads(2, 80, 13.0)],
        "2 threads load 80 samples/s and 1 load 100",
    ),
    "storage": (
        FOUR,
        [figures(INLINE, 50, 4, read_bytes_per_sample=200 * 1024), processes(2, 90, 4)],
        "a sample takes 20.0 ms inline, of which only 4.00 ms is CPU, and 200 KiB of it are read from storage",
    ),
    "waiting": (FOUR, [figures(INLINE, 50, 4), processes(2, 99, 4)], "a network, a lock or a sleep"),
    "transport": (
        FOUR,
        [figures(INLINE, 900, 1.1), processes(2, 1000, 1.9, main_ms=0.95)],
        "(0.95 ms per sample) while each worker is busy for 48% of the time",
    ),
    "nothing_to_gain": (FOUR, [INLINE_BUSY, processes(1, 98, 10.0)], "inline loads 100 samples/s"),
    "busy_host": (FOUR, [figures(INLINE, 100, 10, other_cores=1.5)], "kept 1.5 cores busy"),
    "no_limit": (FOUR, [INLINE_BUSY, processes(2, 200, 10.0)], "2.0 times the rate of inline"),
}


@pytest.mark.parametrize("case", CASES)
def test_symptom_brings_its_verdict(case):
    host, measured, text = CASES[case]
    texts = {verdict.name: verdict.text for verdict in diagnose(measured, measured[-1], host)}
    assert text in texts[case.split()[0]]


WITHOUT = {
    "cpu_bound": (FOUR, [INLINE_BUSY, processes(2, 195, 10.0)]),  # the same work, more cores
    "throttled": (FOUR, [INLINE_BUSY, processes(2, 195, 10.0, throttled_s=0.01)]),
    "native_threads": (FOUR, [INLINE_BUSY, processes(2, 195, 10.0)]),
    "memory_bandwidth": (FOUR, [INLINE_BUSY, processes(1, 100, 10.0), processes(2, 105, 10.1)]),
    "memory_bandwidth with too few cores": (TWO, [processes(2, 200, 10.0), processes(4, 200, 13.0)]),
    "memory_bandwidth on a busy host": (
        TWO,
        [processes(1, 100, 6.0, other_cores=1.2), processes(2, 100, 8.0, other_cores=1.2)],
    ),
    "interpreter_lock on a busy host": (
        TWO,
        [threads(1, 100, 9.0, other_cores=1.0), threads(2, 100, 9.0, other_cores=1.0)],
    ),
    "memory_bandwidth of threads": (FOUR, [threads(1, 100, 10.0), threads(2, 100, 19.0)]),
    "interpreter_lock": (FOUR, [threads(1, 100, 10.0), threads(2, 190, 10.0)]),
    "interpreter_lock of waiting threads": (FOUR, [threads(1, 100, 2.0), threads(2, 100, 2.0)]),
    "storage": (FOUR, [figures(INLINE, 100, 10, read_bytes_per_sample=10**6)]),  # it reads but never waits
    "waiting": (TWO, [figures(INLINE, 50, 4, other_cores=1.9)]),  # other processes use the cores
    "transport": (FOUR, [processes(2, 1000, 1.9, main_ms=0.2)]),
    "nothing_to_gain": (FOUR, [INLINE_BUSY, processes(1, 110, 10.0)]),
    "busy_host": (FOUR, [figures(INLINE, 100, 10, other_cores=0.1)]),
    "no_limit": (TWO, [INLINE_BUSY, processes(2, 195, 10.0)]),
}


@pytest.mark.parametrize("case", WITHOUT)
def test_verdict_needs_its_symptom(case):
    host, measured = WITHOUT[case]
    names = [verdict.name for verdict in diagnose(measured, measured[-1], host)]
    assert case.split()[0] not in names
    assert names


def test_every_verdict_has_a_case_with_and_without_its_symptom():
    names = {case.split()[0] for case in CASES}
    assert names == {case.split()[0] for case in WITHOUT}
    assert len(names) == len(verdicts._RULES) + 1  # and "no_limit"


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
