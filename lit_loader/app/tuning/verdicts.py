"""What measurements mean: verdicts, each a pure function of measurements.

A verdict names what limits the rate and what would lift it. Several may hold at once; none of them is a guess
from the settings alone, each needs its symptom in the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

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

__all__ = ["Verdict", "diagnose", "explain_choice"]

_Measured = Sequence[Measurement]

_NEARLY_ALL: Final = 0.85
"""Share of the cores, or of one core, above which it counts as busy."""

_IDLE: Final = 0.7
"""Share below which a worker, or inline's one core, counts as waiting."""

_NOTICEABLE: Final = 0.25
"""Cores of others, or the growth of CPU time a sample, from which on they count."""

_SAME_RATE: Final = 1.1
"""Rates whose ratio is below this count as no gain of more workers."""


class Verdict(NamedTuple):
    """One limit, or its absence: a name for programs and a sentence for people."""

    name: str
    text: str


def diagnose(measured: _Measured, best: Measurement, host: Resources) -> list[Verdict]:
    """Return what limits the rate, the most telling first; there is always one verdict at least.

    Args:
        measured: Medians of each of the measured settings.
        best: Those of the settings that were picked.
        host: The cores of this machine.
    """
    texts = {rule.__name__.strip("_"): rule(measured, best, host) for rule in _RULES}
    verdicts = [Verdict(name, text) for name, text in texts.items() if text]
    return verdicts or [Verdict("no_limit", _no_limit(measured, best, host))]


def explain_choice(result: TuningResult) -> str | None:
    """Return why the chosen settings are not those with the highest median, or None if they are.

    Args:
        result: The result of a search.
    """
    chosen = median(result.measured[result.best])
    fastest = max(result.medians(), key=lambda figures: figures.samples_per_s)
    if fastest.samples_per_s <= chosen.samples_per_s:
        return None
    repeats = len(result.measured[fastest.candidate])
    if not is_measured_enough(fastest.candidate, result.measured):
        times = "once" if repeats == 1 else f"{repeats} times"
        reason = f"it was measured {times}, {chosen.candidate!s} {len(result.measured[result.best])} times: may be luck"
    elif fastest.candidate == INLINE:
        reason = f"inline wins from {INLINE_MARGIN:.0%} on, because workers continue during a training step"
    else:
        reason = f"rates within {TIE:.0%} count as equal, then fewer workers win, then less CPU"
    return (
        f"{fastest.candidate!s} made {fastest.samples_per_s:.1f} samples/s, more than the "
        f"{chosen.samples_per_s:.1f} of {chosen.candidate!s}, and was not chosen: {reason}."
    )


def _busy_host(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    reported = [each.other_cores for each in measured if each.other_cores is not None]
    others = sum(reported) / len(reported) if reported else 0.0
    if others < _NOTICEABLE:
        return None
    return (
        f"busy host: other processes kept {others:.1f} cores busy meanwhile; on an idle one the figures, and the "
        "best choice, may be others."
    )


def _cpu_bound(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    if best.cores_used < _NEARLY_ALL * host.cores:
        return None
    return (
        f"CPU bound: {_ms(best)} of CPU a sample x {best.samples_per_s:.0f} samples/s keep {best.cores_used:.1f} of "
        f"{host.cores:g} cores busy. More workers cannot help; cheaper transforms, smaller images or more cores do."
    )


def _throttled(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    worst = max(measured, key=lambda each: each.throttled_s / each.wall_s)
    if worst.throttled_s <= 0.05 * worst.wall_s:
        return None
    quota = "a CPU quota" if host.quota_cores is None else f"the CPU quota of {host.quota_cores:g} cores"
    return (
        f"throttled: {quota} held the processes back for {worst.throttled_s:.1f} of {worst.wall_s:.1f} s with "
        f"{worst.candidate!s}; the {host.num_cores} cores that the system shows are not all yours. Use fewer "
        "workers and threads, or raise the quota."
    )


def _native_threads(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    worst = max(measured, key=lambda each: each.cores_per_worker * bool(each.candidate.num_workers))
    if worst.candidate == INLINE or worst.cores_per_worker <= 1.2:
        return None
    return (
        f"oversubscribed: with {worst.candidate!s} each worker keeps {worst.cores_per_worker:.1f} cores busy, so "
        "that native code inside starts threads of its own. Give them one: OMP_NUM_THREADS=1, "
        "torch.set_num_threads(1), cv2.setNumThreads(0)."
    )


def _memory_bandwidth(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    for few, many in _without_gain(
        measured, host, threads=False
    ):  # threads may wait for the interpreter lock
        dearer = many.cpu_s_per_sample / few.cpu_s_per_sample
        if dearer >= 1 + _NOTICEABLE:
            return (
                f"memory bound: {many.candidate.num_workers} workers instead of {few.candidate.num_workers} need "
                f"{dearer:.1f} times the CPU for the same sample and are not faster: they share memory bandwidth, "
                "caches, or a core's two hardware threads. Smaller samples (uint8, a smaller scale) help."
            )
    return None


def _interpreter_lock(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    for few, many in _without_gain(measured, host, threads=True):
        # With idle cores beside few threads, and many that keep less than one busy wait for something else.
        if few.cores_used <= _NEARLY_ALL * host.cores and many.cores_used >= _NEARLY_ALL:
            return (
                f"interpreter lock: {many.candidate.num_workers} threads make {many.samples_per_s:.0f} samples/s and "
                f"{few.candidate.num_workers} make {few.samples_per_s:.0f}. Too much of a sample's work is Python "
                "code, which one thread at a time may run; processes do not share that lock."
            )
    return None


def _storage(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    inline = _waiting_inline(measured, host)
    if inline is None or inline.read_bytes_per_sample < 1024:
        return None
    return (
        f"storage: {_waited(inline)}, and {inline.read_bytes_per_sample / 1024:.0f} KiB come from storage for each. "
        "A faster disk, or a data set that fits into the file cache, helps; more workers wait side by side."
    )


def _waiting(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    inline = _waiting_inline(measured, host)
    if inline is None or inline.read_bytes_per_sample >= 1024:
        return None
    return (
        f"waiting: {_waited(inline)}, and nothing was read from a local disk: a network, a lock or a sleep. More "
        "workers than cores wait side by side and may pay."
    )


def _transport(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    for each in sorted(measured, key=lambda each: -each.samples_per_s):
        own = each.candidate
        if own.is_threaded or not 0 < own.num_workers <= host.cores:
            continue
        if each.main_cores_used >= _NEARLY_ALL and each.cores_per_worker < _IDLE:
            return (
                f"bound by the consumer: with {own!s} the main process is busy taking batches over "
                f"({each.main_cpu_s_per_sample * 1e3:.2f} ms a sample) while each worker is busy for "
                f"{each.cores_per_worker:.0%} of the time. Threads copy nothing; smaller samples and larger "
                "batches cost less to hand over."
            )
    return None


def _nothing_to_gain(measured: _Measured, best: Measurement, host: Resources) -> str | None:
    inline, rates = _inline(measured), [each.samples_per_s for each in measured if each.candidate != INLINE]
    if inline is None or not rates or max(rates) >= 1.05 * inline.samples_per_s:
        return None
    return (
        f"nothing to gain in rate: inline makes {inline.samples_per_s:.0f} samples/s and no number of workers more "
        f"than {max(rates):.0f}. A worker still works on while a training step runs on an accelerator; "
        "--simulate-step shows that for a step on the CPU."
    )


def _no_limit(measured: _Measured, best: Measurement, host: Resources) -> str:
    inline = _inline(measured)
    gain = "" if inline is None else f", {best.samples_per_s / inline.samples_per_s:.1f} times inline's rate"
    return (
        f"no limit was reached: {best.candidate!s} makes {best.samples_per_s:.0f} samples/s{gain} and keeps "
        f"{best.cores_used:.1f} of {host.cores:g} cores busy."
    )


_RULES: Final[Sequence[Callable[[_Measured, Measurement, Resources], str | None]]] = (
    *(_busy_host, _cpu_bound, _throttled, _native_threads, _memory_bandwidth, _interpreter_lock),
    *(_storage, _waiting, _transport, _nothing_to_gain),
)


def _without_gain(
    measured: _Measured, host: Resources, *, threads: bool
) -> Iterator[tuple[Measurement, Measurement]]:
    """Yield two neighbouring numbers of workers, fewer first, where more gain nothing though there are cores."""

    def kind(each: Measurement) -> tuple[str, int]:
        return each.candidate.method, each.candidate.prefetch_factor

    kept = [each for each in measured if each.candidate.is_threaded is threads]
    for few, many in pairwise(sorted(kept, key=lambda each: (kind(each), each.candidate.num_workers))):
        has_cores = many.candidate.num_workers <= host.cores and not _is_starved(many, host)
        if kind(few) == kind(many) and has_cores and many.samples_per_s < _SAME_RATE * few.samples_per_s:
            yield few, many


def _inline(measured: Iterable[Measurement]) -> Measurement | None:
    return next((each for each in measured if each.candidate == INLINE), None)


def _waiting_inline(measured: Iterable[Measurement], host: Resources) -> Measurement | None:
    """Return the figures of inline if it waits for something else than a core."""
    inline = _inline(measured)
    is_waiting = inline is not None and inline.cores_used < _IDLE and not _is_starved(inline, host)
    return inline if is_waiting else None


def _waited(inline: Measurement) -> str:
    return f"a sample takes {1e3 / inline.samples_per_s:.1f} ms inline, of which only {_ms(inline)} is CPU"


def _is_starved(measurement: Measurement, host: Resources) -> bool:
    """Whether other processes had the cores that these did not get: then waiting says nothing of the work."""
    others = measurement.other_cores or 0.0
    return others >= _NOTICEABLE and measurement.cores_used + others > _NEARLY_ALL * host.cores


def _ms(measurement: Measurement) -> str:
    return f"{measurement.cpu_s_per_sample * 1e3:.2f} ms"
