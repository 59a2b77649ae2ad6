"""What measurements mean: verdicts, each a pure function of measurements, and a picture.

A verdict names what limits the rate and what would lift it. Several may hold at once; none of them is a guess
from the settings alone, each needs its symptom in the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lit_loader.tuning.candidates import INLINE, Candidate, Host, Measurement

__all__ = ["Verdict", "diagnose", "save_plot"]

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


def diagnose(measured: Sequence[Measurement], best: Candidate, host: Host) -> list[Verdict]:
    """Return what limits the rate, the most telling first; there is always one verdict at least.

    Args:
        measured: Medians of each of the measured settings, ``best`` among them.
        best: The settings that were picked.
        host: The cores of this machine.

    Raises:
        ValueError: If ``best`` was not measured.
    """
    of_best = next((measurement for measurement in measured if measurement.candidate == best), None)
    if of_best is None:
        raise ValueError(f"best={best!s} is not among the measured settings")
    found = [verdict for rule in _RULES if (verdict := rule(measured, of_best, host)) is not None]
    return found or [_no_limit(measured, of_best, host)]


def _cpu_bound(measured: Sequence[Measurement], best: Measurement, host: Host) -> Verdict | None:
    if best.cores_used < _NEARLY_ALL * host.cores:
        return None
    return Verdict(
        "cpu_bound",
        f"CPU bound: {_ms(best)} of CPU a sample x {best.samples_per_s:.0f} samples/s keep {best.cores_used:.1f} of "
        f"{host.cores:g} cores busy. More workers cannot help; cheaper transforms, smaller images or more cores do.",
    )


def _memory_bandwidth(measured: Sequence[Measurement], best: Measurement, host: Host) -> Verdict | None:
    for few, many in _pairs(measured):
        if many.candidate.is_threaded or many.candidate.num_workers > host.cores or _is_starved(many, host):
            continue  # threads may wait for the interpreter lock instead, and too many workers for cores
        dearer = many.cpu_s_per_sample / few.cpu_s_per_sample
        if many.samples_per_s < _SAME_RATE * few.samples_per_s and dearer >= 1 + _NOTICEABLE:
            return Verdict(
                "memory_bandwidth",
                f"memory bound: {many.candidate.num_workers} workers instead of {few.candidate.num_workers} need "
                f"{dearer:.1f} times the CPU for the same sample and are not faster, though there are cores. They "
                "share memory bandwidth, caches, or the two hardware threads of a core. Smaller samples (uint8 "
                "instead of float32, decoding at a smaller scale) help; more workers do not.",
            )
    return None


def _interpreter_lock(measured: Sequence[Measurement], best: Measurement, host: Host) -> Verdict | None:
    for few, many in _pairs(measured):
        if not many.candidate.is_threaded or many.samples_per_s >= _SAME_RATE * few.samples_per_s:
            continue
        if many.candidate.num_workers > host.cores or few.cores_used > _NEARLY_ALL * host.cores:
            continue
        if _is_starved(many, host):
            continue
        if many.cores_used < _NEARLY_ALL:
            continue  # nothing runs all the time, so that they wait for something else
        return Verdict(
            "interpreter_lock",
            f"interpreter lock: {many.candidate.num_workers} threads make {many.samples_per_s:.0f} samples/s and "
            f"{few.candidate.num_workers} make {few.samples_per_s:.0f}. Too much of a sample's work is Python code, "
            "which one thread at a time may run; processes do not share that lock.",
        )
    return None


def _more_workers_than_cores(
    measured: Sequence[Measurement], best: Measurement, host: Host
) -> Verdict | None:
    kinds = {(each.candidate.method, each.candidate.prefetch_factor) for each in measured}
    for kind in sorted(kinds):
        own = [e for e in measured if (e.candidate.method, e.candidate.prefetch_factor) == kind]
        within = _fastest(each for each in own if each.candidate.num_workers <= host.cores)
        beyond = _fastest(each for each in own if each.candidate.num_workers > host.cores)
        if within is None or beyond is None or within.cores_used < _IDLE * host.cores:
            continue
        if beyond.samples_per_s < 0.95 * within.samples_per_s:
            quota = "" if host.quota_cores is None else " (a CPU quota)"
            return Verdict(
                "more_workers_than_cores",
                f"oversubscribed: {beyond.candidate!s} on {host.cores:g} cores{quota} makes "
                f"{beyond.samples_per_s:.0f} samples/s, {within.candidate!s} makes {within.samples_per_s:.0f}.",
            )
    return None


def _native_threads(measured: Sequence[Measurement], best: Measurement, host: Host) -> Verdict | None:
    crowded = [each for each in measured if each.candidate.num_workers and each.cores_per_worker > 1.2]
    if not crowded:
        return None
    worst = max(crowded, key=lambda measurement: measurement.cores_per_worker)
    threads = f" (torch has {host.num_threads} here)" if worst.candidate.is_threaded else ""
    return Verdict(
        "native_threads",
        f"oversubscribed: with {worst.candidate!s} each worker keeps {worst.cores_per_worker:.1f} cores busy, so "
        f"that native code inside starts threads of its own{threads}. Give them one: OMP_NUM_THREADS=1, "
        "torch.set_num_threads(1), cv2.setNumThreads(0).",
    )


def _throttled(measured: Sequence[Measurement], best: Measurement, host: Host) -> Verdict | None:
    held = [each for each in measured if each.throttled_s > 0.05 * each.wall_s]
    if not held:
        return None
    worst = max(held, key=lambda measurement: measurement.throttled_s / measurement.wall_s)
    quota = "a CPU quota" if host.quota_cores is None else f"the CPU quota of {host.quota_cores:g} cores"
    return Verdict(
        "throttled",
        f"throttled: {quota} held the processes back for {worst.throttled_s:.1f} of {worst.wall_s:.1f} s with "
        f"{worst.candidate!s}; the {host.num_cores} cores that the system shows are not all yours. Use fewer "
        "workers and threads, or raise the quota.",
    )


def _storage(measured: Sequence[Measurement], best: Measurement, host: Host) -> Verdict | None:
    inline = _inline(measured)
    if inline is None or inline.cores_used >= _IDLE or _is_starved(inline, host):
        return None
    waited = f"a sample takes {1e3 / inline.samples_per_s:.1f} ms inline, of which only {_ms(inline)} is CPU"
    if inline.read_bytes_per_sample >= 1024 or inline.major_faults_per_sample >= 0.1:
        read = f"{inline.read_bytes_per_sample / 1024:.0f} KiB come from storage for each"
        remedy = "A faster disk, or a data set that fits into the file cache, helps; more workers wait side by side."
        return Verdict("storage", f"storage: {waited}, and {read}. {remedy}")
    return Verdict(
        "waiting",
        f"waiting: {waited}, and nothing was read from a local disk: a network, a lock or a sleep. More workers "
        "than cores wait side by side and may pay.",
    )


def _transport(measured: Sequence[Measurement], best: Measurement, host: Host) -> Verdict | None:
    """The main process is busy and the workers are not: it is what takes batches over that is slow."""
    for measurement in sorted(measured, key=lambda each: -each.samples_per_s):
        own = measurement.candidate
        if own.num_workers == 0 or own.is_threaded or own.num_workers > host.cores:
            continue
        if measurement.main_cores_used >= _NEARLY_ALL and measurement.cores_per_worker < _IDLE:
            return Verdict(
                "transport",
                f"bound by the consumer: with {own!s} the main process is busy taking batches over "
                f"({measurement.main_cpu_s_per_sample * 1e3:.2f} ms a sample) while each worker is busy for "
                f"{measurement.cores_per_worker:.0%} of the time. Threads copy nothing; smaller samples and larger "
                "batches cost less to hand over.",
            )
    return None


def _nothing_to_gain(measured: Sequence[Measurement], best: Measurement, host: Host) -> Verdict | None:
    inline = _inline(measured)
    rates = [each.samples_per_s for each in measured if each.candidate != INLINE]
    if inline is None or not rates or max(rates) >= 1.05 * inline.samples_per_s:
        return None
    return Verdict(
        "nothing_to_gain",
        f"nothing to gain in rate: inline makes {inline.samples_per_s:.0f} samples/s and no number of workers more "
        f"than {max(rates):.0f}. A worker still works on while a training step runs on an accelerator; "
        "--simulate-step shows that for a step on the CPU.",
    )


def _busy_host(measured: Sequence[Measurement], best: Measurement, host: Host) -> Verdict | None:
    known = [each.other_cores for each in measured if each.other_cores is not None]
    others = sum(known) / len(known) if known else 0.0
    if others < _NOTICEABLE:
        return None
    return Verdict(
        "busy_host",
        f"busy host: other processes kept {others:.1f} cores busy meanwhile; on an idle one the figures, and the best "
        "choice, may be others.",
    )


def _no_limit(measured: Sequence[Measurement], best: Measurement, host: Host) -> Verdict:
    inline = _inline(measured)
    gain = "" if inline is None else f", {best.samples_per_s / inline.samples_per_s:.1f} times inline's rate"
    return Verdict(
        "no_limit",
        f"no limit was reached: {best.candidate!s} makes {best.samples_per_s:.0f} samples/s{gain} and keeps "
        f"{best.cores_used:.1f} of {host.cores:g} cores busy.",
    )


_RULES: Final[tuple[Callable[[Sequence[Measurement], Measurement, Host], Verdict | None], ...]] = (
    _busy_host,
    _cpu_bound,
    _throttled,
    _native_threads,
    _more_workers_than_cores,
    _memory_bandwidth,
    _interpreter_lock,
    _storage,
    _transport,
    _nothing_to_gain,
)


def _pairs(measured: Sequence[Measurement]) -> list[tuple[Measurement, Measurement]]:
    """Return each two neighbouring numbers of workers of the same method and prefetch factor, fewer first."""
    found: list[tuple[Measurement, Measurement]] = []
    last: dict[tuple[str, int], Measurement] = {}
    for measurement in sorted(measured, key=lambda each: each.candidate.num_workers):
        kind = (measurement.candidate.method, measurement.candidate.prefetch_factor)
        if kind in last:
            found.append((last[kind], measurement))
        last[kind] = measurement
    return found


def _fastest(measured: Iterable[Measurement]) -> Measurement | None:
    return max(measured, key=lambda measurement: measurement.samples_per_s, default=None)


def _inline(measured: Sequence[Measurement]) -> Measurement | None:
    return next((measurement for measurement in measured if measurement.candidate == INLINE), None)


def _is_starved(measurement: Measurement, host: Host) -> bool:
    """Whether other processes had the cores that these did not get: then waiting says nothing of the work."""
    others = measurement.other_cores or 0.0
    return others >= _NOTICEABLE and measurement.cores_used + others > _NEARLY_ALL * host.cores


def _ms(measurement: Measurement) -> str:
    return f"{measurement.cpu_s_per_sample * 1e3:.2f} ms"


_PANELS: tuple[tuple[str, Callable[[Measurement], float | None]], ...] = (
    ("samples/s", lambda each: each.samples_per_s),
    ("CPU ms a sample", lambda each: each.cpu_s_per_sample * 1e3),
    ("memory, MiB", lambda each: None if each.memory_bytes is None else each.memory_bytes / 2**20),
)


def save_plot(measured: Sequence[Measurement], best: Candidate, path: Path | str, *, title: str) -> None:
    """Draw one line for each method and prefetch factor, inline as its first point, and mark the best settings.

    Args:
        measured: Medians, ``best`` among them.
        best: The settings that were picked.
        path: Where the picture is saved, in the format that its extension names.
        title: Printed above it.

    Raises:
        ValueError: If the extension names no format.
        OSError: If it cannot be written.
    """
    figure = Figure(figsize=(12, 4), layout="constrained")
    FigureCanvasAgg(figure)
    inline = [each for each in measured if each.candidate == INLINE]
    kinds = sorted({(e.candidate.method, e.candidate.prefetch_factor) for e in measured} - {("inline", 0)})
    for axis, (label, value) in zip(figure.subplots(1, 3), _PANELS, strict=True):
        for method, prefetch in kinds or [("inline", 0)]:
            own = [
                e for e in measured if (e.candidate.method, e.candidate.prefetch_factor) == (method, prefetch)
            ]
            line = sorted({*inline, *own}, key=lambda each: each.candidate.num_workers)
            axis.plot(
                [each.candidate.num_workers for each in line],
                [float("nan") if (y := value(each)) is None else y for each in line],
                marker="o",
                label=f"{method}, prefetch {prefetch}" if prefetch else method,
            )
        chosen = next(each for each in measured if each.candidate == best)
        if (height := value(chosen)) is not None:
            axis.plot(
                [best.num_workers], [height], marker="*", markersize=16, linestyle="", label=f"best: {best!s}"
            )
        axis.set_xlabel("num_workers")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    figure.axes[0].legend(fontsize="small")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
