"""Verdicts on what limits the rate, as pure functions of measurements.

A verdict is a text that begins with the limit and ends with a remedy. Several may hold at once. No verdict is a guess
from the settings alone: each needs its symptom in the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from lit_loader.app.tuning.search import (
    INLINE,
    INLINE_MARGIN,
    TIE,
    Measurement,
    TuningResult,
    is_measured_enough,
    median,
)
from lit_loader.foundation.host import Resources
from lit_loader.monitoring.diagnosis import NEARLY_ALL, NOTICEABLE, busy_host_problem, is_starved

__all__ = ["diagnose", "explain_choice"]

_Measured = Sequence[Measurement]

# Share below which a worker, or inline's one core, counts as waiting.
_IDLE: Final = 0.7

# Ratio of rates below which more workers count as no gain.
_SAME_RATE: Final = 1.1


def diagnose(measured: _Measured, best: Measurement, host: Resources) -> list[str]:
    """Return one or more verdicts on what limits the rate, the most telling first.

    Args:
        measured: Medians of all measured settings.
        best: Medians of the chosen settings.
        host: Cores of this machine.
    """
    verdicts = [rule(measured, best, host) for rule in _RULES]
    return [verdict for verdict in verdicts if verdict] or [_no_limit(measured, best, host)]


def explain_choice(result: TuningResult) -> str | None:
    """Return why settings with a higher median were not chosen, or None if there are none."""
    chosen = median(result.measured[result.best])
    fastest = max(result.medians(), key=lambda figures: figures.samples_per_s)
    if fastest.samples_per_s <= chosen.samples_per_s:
        return None
    repeats = len(result.measured[fastest.candidate])
    if not is_measured_enough(fastest.candidate, result.measured):
        times = "once" if repeats == 1 else f"{repeats} times"
        reason = f"it was measured {times}, {chosen.candidate!s} {len(result.measured[result.best])} times: may be luck"
    elif fastest.candidate == INLINE:
        reason = f"inline must win by {INLINE_MARGIN:.0%}, because workers continue during a training step"
    else:
        reason = f"rates within {TIE:.0%} count as equal, and then fewer workers win, then less CPU"
    return (
        f"{fastest.candidate!s} made {fastest.samples_per_s:.1f} samples/s, more than the "
        f"{chosen.samples_per_s:.1f} of {chosen.candidate!s}, and was not chosen: {reason}."
    )


def _busy_host(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    reported = [figures.other_cores for figures in measured if figures.other_cores is not None]
    other_cores = sum(reported) / len(reported) if reported else 0.0
    if other_cores < NOTICEABLE:
        return None
    return f"busy host: {busy_host_problem(other_cores)}; on an idle host the figures, and the best choice, may differ."


def _cpu_bound(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    # Only the chosen settings count: others may waste CPU.
    if best.cores_used < NEARLY_ALL * host.cores:
        return None
    return (
        f"CPU bound: {_ms(best)} of CPU per sample x {best.samples_per_s:.0f} samples/s keep {best.cores_used:.1f} of "
        f"{host.cores:g} cores busy. More workers cannot help; cheaper transforms, smaller images or more cores do."
    )


def _throttled(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    # A quota may stop only the settings with many workers, so every measurement counts.
    worst = max(measured, key=lambda figures: figures.throttled_s / figures.wall_s)
    if worst.throttled_s <= 0.05 * worst.wall_s:
        return None
    quota = "a CPU quota" if host.quota_cores is None else f"the CPU quota of {host.quota_cores:g} cores"
    return (
        f"throttled: {quota} stopped the processes for {worst.throttled_s:.1f} of {worst.wall_s:.1f} s with "
        f"{worst.candidate!s}; not all {host.num_cores} cores that the system shows are available. Use fewer "
        "workers and threads, or raise the quota."
    )


def _native_threads(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    worst = max(measured, key=lambda figures: figures.cores_per_worker * bool(figures.candidate.num_workers))
    # One worker is one thread of Python, so more than one busy core means threads in native code.
    if worst.candidate == INLINE or worst.cores_per_worker <= 1.2:
        return None
    return (
        f"oversubscribed: with {worst.candidate!s} each worker keeps {worst.cores_per_worker:.1f} cores busy, so "
        "native code in it starts threads of its own. Limit them to one: OMP_NUM_THREADS=1, "
        "torch.set_num_threads(1), cv2.setNumThreads(0)."
    )


def _memory_bandwidth(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    # Threads may wait for the interpreter lock instead, so only processes count here.
    for few, many in _without_gain(measured, host, threads=False):
        cpu_ratio = many.cpu_s_per_sample / few.cpu_s_per_sample
        if cpu_ratio >= 1 + NOTICEABLE:
            return (
                f"memory bound: {many.candidate.num_workers} workers instead of {few.candidate.num_workers} need "
                f"{cpu_ratio:.1f} times the CPU per sample and are not faster: they share memory bandwidth, "
                "caches, or a core's two hardware threads. Smaller samples (uint8, a smaller scale) help."
            )
    return None


def _interpreter_lock(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    for few, many in _without_gain(measured, host, threads=True):
        # Few threads must leave cores idle, or the CPU is the limit. Many threads must keep one core busy, or they wait
        # for something other than the lock.
        if few.cores_used <= NEARLY_ALL * host.cores and many.cores_used >= NEARLY_ALL:
            return (
                f"interpreter lock: {many.candidate.num_workers} threads load {many.samples_per_s:.0f} samples/s and "
                f"{few.candidate.num_workers} load {few.samples_per_s:.0f}. Too much of a sample's work is Python "
                "code, which only one thread at a time can run; processes do not share that lock."
            )
    return None


def _waiting(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    inline = _inline(measured)
    # On a busy host, samples also wait for a core.
    if inline is None or inline.cores_used >= _IDLE or _is_starved(inline, host):
        return None
    times = f"a sample takes {1e3 / inline.samples_per_s:.1f} ms inline, only {_ms(inline)} of them on the CPU"
    # Below a KiB per sample, the reads are of something else than the samples.
    if inline.read_bytes_per_sample < 1024:
        return (
            f"waiting: {times}, and nothing was read from a local disk: the rest is a network, a lock or a sleep. More "
            "workers than cores wait in parallel and may be faster."
        )
    return (
        f"storage: {times}, and {inline.read_bytes_per_sample / 1024:.0f} KiB of it are read from storage. A faster "
        "disk, or a dataset that fits into the file cache, helps; more workers wait in parallel."
    )


def _transport(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    for figures in sorted(measured, key=lambda figures: -figures.samples_per_s):
        candidate = figures.candidate
        # Threads run in the main process, and more processes than cores leave it too few turns.
        if candidate.is_threaded or not 0 < candidate.num_workers <= host.cores:
            continue
        if figures.main_cores_used >= NEARLY_ALL and figures.cores_per_worker < _IDLE:
            return (
                f"bound by the consumer: with {candidate!s} the main process is busy receiving batches "
                f"({figures.main_cpu_s_per_sample * 1e3:.2f} ms per sample) while each worker is busy for "
                f"{figures.cores_per_worker:.0%} of the time. Threads copy nothing; smaller samples and larger "
                "batches cost less to receive."
            )
    return None


def _nothing_to_gain(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    inline = _inline(measured)
    rates = [figures.samples_per_s for figures in measured if figures.candidate != INLINE]
    if inline is None or not rates or max(rates) >= 1.05 * inline.samples_per_s:
        return None
    return (
        f"no gain in rate: inline loads {inline.samples_per_s:.0f} samples/s and no number of workers more than "
        f"{max(rates):.0f}. Workers still continue while a training step runs on an accelerator; --simulate-step shows "
        "that for a step on the CPU."
    )


def _no_limit(measured: _Measured, best: Measurement, host: Resources) -> str:
    inline = _inline(measured)
    gain = "" if inline is None else f", {best.samples_per_s / inline.samples_per_s:.1f} times the rate of inline"
    return (
        f"no limit was reached: {best.candidate!s} loads {best.samples_per_s:.0f} samples/s{gain} and keeps "
        f"{best.cores_used:.1f} of {host.cores:g} cores busy."
    )


# The most telling verdicts come first.
_RULES: Final[Sequence[Callable[[_Measured, Measurement, Resources], str | None]]] = (
    _busy_host,
    _cpu_bound,
    _throttled,
    _native_threads,
    _memory_bandwidth,
    _interpreter_lock,
    _waiting,
    _transport,
    _nothing_to_gain,
)


def _without_gain(measured: _Measured, host: Resources, *, threads: bool) -> Iterator[tuple[Measurement, Measurement]]:
    """Yield measurements of fewer and of more workers whose rates are the same although cores are free."""

    def kind(figures: Measurement) -> tuple[str, int]:
        return figures.candidate.method, figures.candidate.prefetch_factor

    # Figures of different methods or prefetch factors are not comparable.
    comparable = [figures for figures in measured if figures.candidate.is_threaded is threads]
    comparable.sort(key=lambda figures: (kind(figures), figures.candidate.num_workers))
    for few, many in pairwise(comparable):
        has_cores = many.candidate.num_workers <= host.cores and not _is_starved(many, host)
        if kind(few) == kind(many) and has_cores and many.samples_per_s < _SAME_RATE * few.samples_per_s:
            yield few, many


def _inline(measured: Iterable[Measurement]) -> Measurement | None:
    return next((figures for figures in measured if figures.candidate == INLINE), None)


def _is_starved(measurement: Measurement, host: Resources) -> bool:
    """Return True if other processes left no core for the measured work."""
    return is_starved(measurement.cores_used, measurement.other_cores, host.cores)


def _ms(measurement: Measurement) -> str:
    return f"{measurement.cpu_s_per_sample * 1e3:.2f} ms"
