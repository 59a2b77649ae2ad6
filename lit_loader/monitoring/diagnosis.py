"""Diagnosis of why training waits, as pure functions of reports.

A verdict names a cause, says by which figures it was recognised, and how to remove it. No verdict is a guess from the
settings alone: each needs its symptom in the times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from lit_loader.errors import SettingText, as_argument
from lit_loader.foundation.host import PROCESS_BYTES, THREAD_BYTES
from lit_loader.monitoring.report import DataReport

__all__ = ["Cause", "NEARLY_ALL", "NOTICEABLE", "Verdict", "busy_host_problem", "diagnose", "is_starved"]

Cause: TypeAlias = Literal[
    "read",
    "decode",
    "sample",
    "transform",
    "collate",
    "transfer",
    "hand-over",
    "consumer",
    "slow rank",
    "few workers",
    "interpreter lock",
    "busy host",
    "CPU bound",
    "epoch start",
    "unknown",
    "slow steps",
]

_SampleStage: TypeAlias = Literal["read", "decode", "sample", "transform", "collate"]

NEARLY_ALL: Final = 0.85
"""Share of the cores, or of one core, above which they count as busy."""

NOTICEABLE: Final = 0.25
"""Cores of other processes, or growth of CPU time per sample, that count as a symptom."""

# Share of the workers' time above which they count as idle although the consumer waits.
_MOSTLY_IDLE: Final = 0.5

# Share of the time of making batches above which handing them over is the cause.
_MUCH_SENDING: Final = 0.4

# Growth of a step's time beside the workers that counts as a symptom.
_SLOW_STEP: Final = 1.25

# A rank is slow if it waits this many times as long as the median rank, and this much more of its loop.
_SLOW_RANK: Final = (2.0, 0.1)

# Workers for a whole step, and a reserve for batches that take longer.
_RESERVE: Final = 1.1

_MAX_ADVISED: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One cause of waiting.

    Attributes:
        cause: The cause.
        problem: The figures by which it was recognised.
        remedy: What to do, apart from ``settings``.
        settings: Settings that remove the cause, each alone, by the name of the argument.
    """

    cause: Cause
    problem: str
    remedy: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def text(self, write: SettingText = as_argument) -> str:
        """Return the verdict in one line, with its settings as arguments of Python, or as ``write`` writes them."""
        advice = " or ".join(write(name, value) for name, value in self.settings.items())
        remedies = [*([self.remedy] if self.remedy else []), *([f"pass {advice}"] if advice else [])]
        return "; ".join([f"{self.cause}: {self.problem}", *remedies])

    def as_dict(self, write: SettingText = as_argument) -> dict[str, Any]:
        """Return the verdict as plain values for JSON."""
        settings = [write(name, value) for name, value in self.settings.items()]
        return {"cause": self.cause, "problem": self.problem, "remedy": self.remedy, "settings": settings}


def diagnose(report: DataReport, *, ranks: Sequence[DataReport] = (), above: float = 0.05) -> list[Verdict]:
    """Return why training waits, the main cause first.

    Args:
        report: The report of this rank.
        ranks: The reports of all ranks, or none. With them, the causes of the slowest rank are returned.
        above: Fraction of the loop above which waiting or transfer counts.

    Returns:
        One or more verdicts; none without a step.
    """
    verdicts: list[Verdict] = []
    if len(ranks) > 1:
        report = max(ranks, key=lambda rank_report: rank_report.wait_fraction)
        verdicts += _slow_rank(report, ranks)
    if not report.num_steps:
        return []
    if report.transfer_fraction > above:
        verdicts.append(_transfer(report))
    elif report.between_fraction > above and report.host.has_accelerator and not report.settings.copies_ahead:
        verdicts.append(_transfer_between_steps(report))
    if report.wait_fraction > above:
        causes = list(_causes_of_waiting(report))
        # The larger part of the lost time comes first.
        lost_s = max(report.stats.transfer_s, report.between_s)
        verdicts = verdicts + causes if lost_s > report.stats.wait_s and len(ranks) < 2 else _merged(verdicts, causes)
    causes_so_far = {verdict.cause for verdict in verdicts}
    verdicts += [verdict for verdict in _slow_steps(report, above) if verdict.cause not in causes_so_far]
    return verdicts or [_consumer(report)]


def _merged(verdicts: list[Verdict], causes: list[Verdict]) -> list[Verdict]:
    """Return the causes of waiting behind a slow rank, and in front of the transfer."""
    slow = [verdict for verdict in verdicts if verdict.cause == "slow rank"]
    return [*slow, *causes, *(verdict for verdict in verdicts if verdict.cause != "slow rank")]


def _slow_rank(slowest: DataReport, ranks: Sequence[DataReport]) -> Iterator[Verdict]:
    """Yield a verdict if one rank waits much longer than most others, which wait for it in each step."""
    fractions = sorted(report.wait_fraction for report in ranks if report is not slowest)
    usual = fractions[len(fractions) // 2]
    ratio, difference = _SLOW_RANK
    if slowest.wait_fraction > max(ratio * usual, usual + difference):
        yield Verdict(
            cause="slow rank",
            problem=f"rank {slowest.rank} waited for data for {slowest.wait_fraction:.0%} of its time, and most other "
            f"ranks for {usual:.0%}: in each step they wait for it",
            remedy=f"compare the disk, the cores and the other processes of its host; its causes follow (rank "
            f"{slowest.rank})",
        )


def _consumer(report: DataReport) -> Verdict:
    return Verdict(
        cause="consumer",
        problem=f"the data arrives in time: training waited {report.wait_fraction:.1%} of the loop",
        remedy="a faster step, such as another precision or a smaller model, is what helps",
    )


def _unknown(report: DataReport) -> Verdict:
    if report.stats.num_batches:
        why = "no worker finished a batch in the measured time"
        remedy = "measure for longer"
    else:
        why = "the loader is not lit_loader's, so the time of its stages is unknown"
        remedy = "replace it by lit_loader.DataLoader with the same arguments"
    return Verdict(cause="unknown", problem=f"{_waited(report)}, and {why}", remedy=remedy)


def _transfer(report: DataReport) -> Verdict:
    settings: dict[str, Any] = {}
    if not report.settings.pin_memory and report.host.has_accelerator:
        settings["pin_memory"] = True
    if not report.settings.copies_ahead and report.host.has_accelerator and report.settings.has_datamodule:
        settings["prefetch_to_device"] = True
    return Verdict(
        cause="transfer",
        problem=f"page-locking and copying batches took {report.transfer_fraction:.0%} of the loop, "
        f"{_ms(report.stats.transfer_s, report.num_steps)} per batch",
        remedy="send fewer bytes: uint8 images that are converted on the device, or smaller ones",
        settings=settings,
    )


def _transfer_between_steps(report: DataReport) -> Verdict:
    return Verdict(
        cause="transfer",
        problem=f"copying batches to the device, callbacks, or waiting for the device took "
        f"{report.between_fraction:.0%} of the loop between steps, {_ms(report.between_s, report.num_steps)} per batch",
        remedy="let the loader copy the next batch while one is used"
        + ("" if report.settings.has_datamodule else ": give lit_loader.DataLoader the device"),
        settings={"prefetch_to_device": True} if report.settings.has_datamodule else {},
    )


def _causes_of_waiting(report: DataReport) -> Iterator[Verdict]:
    """Yield the causes of waiting: what hides the stages, the slowest stage, and too few workers for it."""
    stats = report.stats
    if _has_busy_host(report):
        yield _busy_host(report, _waited(report))
    has_workers = report.settings.num_workers > 0
    # All workers make their first batches at the same time; only later ones show their rate.
    has_later_batches = stats.num_batches > 2 * report.num_epochs * max(report.settings.num_workers, 1)
    if has_workers and has_later_batches and report.first_wait_s > 0.5 * stats.wait_s:
        yield _epoch_start(report)
        return
    busy_s = max(report.busy_s, 1e-9)
    sending = stats.stage_s["send"] / busy_s
    is_idle = stats.idle_s > _MOSTLY_IDLE * (stats.idle_s + busy_s)
    if has_workers and (is_idle or sending > _MUCH_SENDING):
        yield _hand_over(report, sending, is_idle=is_idle)
        return
    if _waits_for_lock(report):
        yield _interpreter_lock(report)
        return
    stage = max(_STAGE_VERDICTS, key=lambda name: stats.stage_s[name])
    if stats.stage_s[stage] > 0:
        yield _slow_stage(report, stage)
        yield from _few_workers(report)
    else:
        yield _unknown(report)


def _has_busy_host(report: DataReport) -> bool:
    # A process that wants a core gets a share of it even on a busy host; one that uses none waits for something else.
    return report.cores_used >= NOTICEABLE and _has_busy_cores(report)


def _has_busy_cores(report: DataReport) -> bool:
    is_alone = report.host.ranks_on_host == 1
    return is_alone and is_starved(report.cores_used, report.other_cores, report.host.cores)


def _busy_host(report: DataReport, symptom: str) -> Verdict:
    return Verdict(
        cause="busy host",
        problem=f"{symptom}, and {busy_host_problem(report.other_cores or 0.0)}, so no figure here is reliable",
        remedy="stop them, or measure again on an idle host",
    )


def _slow_steps(report: DataReport, above: float) -> Iterator[Verdict]:
    """Yield a verdict if steps take longer while workers or other processes use the cores."""
    slowdown = report.step_slowdown
    if slowdown is None or slowdown < _SLOW_STEP or not report.settings.num_workers:
        return
    symptom = f"steps take {slowdown:.1f} times as long beside the workers"
    if _has_busy_cores(report):
        yield _busy_host(report, symptom)
    elif _has_full_cores(report):
        yield Verdict(
            cause="slow steps",
            problem=f"{symptom}, because they compete for cores: {_busy_cores(report)}",
            # Fewer workers would add to the waiting.
            remedy=f"{'' if report.wait_fraction > above else 'fewer workers, '}cheaper samples or more cores help",
            settings={"cache": True} if report.settings.cache is False else {},
        )


def _has_full_cores(report: DataReport) -> bool:
    return report.cores_used > NEARLY_ALL * report.host.cores / report.host.ranks_on_host


def _busy_cores(report: DataReport) -> str:
    return f"{report.cores_used:.1f} of {report.host.cores:g} cores are busy"


def _epoch_start(report: DataReport) -> Verdict:
    first = f"{_waited(report)}, {report.first_wait_s / report.stats.wait_s:.0%} of it for the first batch of"
    if report.num_epochs < 2:
        return Verdict(
            cause="epoch start", problem=f"{first} its only epoch", remedy="a longer run waits for a smaller part of it"
        )
    return Verdict(
        cause="epoch start",
        problem=f"{first} its {report.num_epochs} epochs",
        remedy="longer epochs wait less often",
        settings={} if report.settings.persistent_workers else {"persistent_workers": True},
    )


def _hand_over(report: DataReport, sending: float, *, is_idle: bool) -> Verdict:
    stats = report.stats
    settings = report.settings
    changes: dict[str, Any] = {}
    if not is_idle:
        why = f"handing batches over took {sending:.0%} of the workers' time"
        remedy = "smaller batches cost less to send: uint8 images, fewer or stacked tensors"
    elif stats.ready_batches > NEARLY_ALL * stats.capacity:
        # A longer queue cannot help if batches are ready.
        why = (
            f"batches were ready (queue {stats.ready_batches / stats.capacity:.0%} full), so receiving one took "
            f"{_ms(stats.wait_s, stats.num_batches)}"
        )
        remedy = "smaller batches cost less to receive: uint8 images, fewer or stacked tensors"
    else:
        idle = stats.idle_s / max(stats.idle_s + report.busy_s, 1e-9)
        why = f"workers were idle for {idle:.0%} of their time: batches are late though workers are free"
        remedy = "a longer queue evens out slow batches"
        changes["prefetch_factor"] = 2 * (settings.prefetch_factor or 2)
    if settings.worker_method == "multiprocessing":
        changes["worker_method"] = "thread"
        received = stats.received_bytes / max(stats.num_batches, 1) / 2**20
        why += f", {received:.1f} MiB per batch"
    return Verdict(cause="hand-over", problem=f"{_waited(report)}, and {why}", remedy=remedy, settings=changes)


def _waits_for_lock(report: DataReport) -> bool:
    """Return True if threads spend their time waiting for each other to run Python code."""
    settings = report.settings
    if settings.worker_method != "thread" or settings.num_workers < 2 or report.host.cores < 2:
        return False
    busy = report.busy_s / max(report.total_s, 1e-9)
    cores = report.stats.cpu_s / max(report.total_s, 1e-9)
    # One core is busy with the samples, while at least two threads want one.
    return NEARLY_ALL - 0.15 <= cores <= 1.2 and busy > 1.6 * cores


def _interpreter_lock(report: DataReport) -> Verdict:
    cores = report.stats.cpu_s / max(report.total_s, 1e-9)
    return Verdict(
        cause="interpreter lock",
        problem=f"{_waited(report)}, and {report.settings.num_workers} threads kept only {cores:.1f} cores busy with "
        "samples: too much of a sample's work is Python code, which one thread at a time can run",
        remedy="processes do not share that lock",
        settings={"worker_method": "multiprocessing"},
    )


# Description of each stage, and its remedy without a setting.
_STAGE_VERDICTS: Final[Mapping[_SampleStage, tuple[str, str]]] = {
    "read": ("reading files from a disk or a network", "keep the files on a faster or local disk"),
    "decode": ("decoding images", "store smaller images"),
    "transform": ("transforms", "use cheaper transforms, or transforms of the batch on the device"),
    "sample": ("code of the dataset outside of reading, decoding and transforms", "profile its __getitem__"),
    "collate": ("the collate function", "stack tensors of equal size, and leave conversions to the dataset"),
}


def _slow_stage(report: DataReport, stage: _SampleStage) -> Verdict:
    stats = report.stats
    action, remedy = _STAGE_VERDICTS[stage]
    stage_s = stats.stage_s[stage]
    workers = "the workers' time" if report.settings.num_workers else "that time"
    figures = f"{stage_s / max(report.busy_s, 1e-9):.0%} of {workers}, {_ms(stage_s, stats.num_samples)} per sample"
    if stage == "read" and stats.read_bytes:
        rate = stats.read_bytes / stage_s / 2**20
        figures += f", {rate:.1f} MiB/s in each worker"
    elif stage != "read" and _mostly_waits(report, stage):
        share = stats.cpu_s / report.busy_s
        figures += f"; they wait rather than compute: a core was busy for only {share:.0%} of {workers}"
        remedy = "look for a call that waits for a file, a network, a lock or a timer"
    settings: dict[str, Any] = {}
    if stage == "decode" and report.settings.decode == "exact":
        settings["decode"] = "fast"
    # Only data sets of lit_loader report these stages, and all of them take a cache.
    if stage in ("read", "decode") and report.settings.cache is None:
        remedy += ", or give the dataset a cache"
    elif stage in ("read", "decode") and not report.settings.cache:
        settings["cache"] = True
    return Verdict(
        cause=stage, problem=f"{_waited(report)}, and {action} took {figures}", remedy=remedy, settings=settings
    )


def _mostly_waits(report: DataReport, stage: _SampleStage) -> bool:
    """Return True if a stage takes most of the time, and the time is not spent on a core, although one is free."""
    stats = report.stats
    waits = stats.cpu_s < _MOSTLY_IDLE * report.busy_s < stats.stage_s[stage]
    return waits and not _has_busy_host(report) and not _has_full_cores(report)


def _few_workers(report: DataReport) -> Iterator[Verdict]:
    """Yield the number of workers that would make batches as fast as the steps use them, or the limit on it."""
    host = report.host
    stats = report.stats
    settings = report.settings
    working_s = max(report.total_s - stats.wait_s, 1e-9)
    # Steps per second without waiting, times the seconds of a worker for a batch. With several loaders a step takes a
    # batch of each, and the number of workers is for one loader.
    num_batches = max(stats.num_batches, 1)
    step_s = report.free_step_s or working_s * settings.num_loaders / num_batches
    needed = math.ceil(_RESERVE * report.busy_s / num_batches / step_s)
    cpu_share = min(1.0, stats.cpu_s / max(report.busy_s, 1e-9))
    cores = host.cores / host.ranks_on_host - (0.0 if host.has_accelerator else 1.0)
    # Workers that wait for a disk or a network are faster in larger numbers than there are cores.
    limit = int(max(cores, 0.0) / max(cpu_share, 1 / 8) / settings.num_loaders + 1e-9)
    threads = settings.worker_method == "thread"
    memory_limit = host.max_workers(THREAD_BYTES if threads else PROCESS_BYTES)
    if memory_limit is not None:
        memory_limit //= settings.num_loaders
    advised = min(needed, limit, _MAX_ADVISED, *([] if memory_limit is None else [memory_limit]))
    busy_cores = _busy_cores(report)
    if advised > settings.num_workers:
        present = f"{settings.num_workers} workers make" if settings.num_workers else "this process makes"
        present += f" for each of {settings.num_loaders} loaders" * (settings.num_loaders > 1)
        batch_s = report.busy_s / num_batches
        shortfall = ""
        if advised < needed:
            limit_text = "of advice"
            if advised in (limit, memory_limit):
                limit_text = "of memory" if advised == memory_limit else f"for {host.cores:g} cores"
            shortfall = f"; the steps need {needed} workers, and {advised} is the limit {limit_text}"
        yield Verdict(
            cause="few workers",
            problem=f"{present} batches that take {batch_s * 1e3:.0f} ms each, and a step takes {step_s * 1e3:.0f} ms; "
            f"{busy_cores}{shortfall}",
            settings={"num_workers": advised},
        )
    elif _has_full_cores(report):
        yield Verdict(
            cause="CPU bound",
            problem=f"{busy_cores}, so more workers cannot help",
            remedy="cheaper samples or more cores do",
        )


def is_starved(cores_used: float, other_cores: float | None, cores: float) -> bool:
    """Return True if other processes of the host left no core for the measured work.

    Args:
        cores_used: CPU seconds per second of the measured processes.
        other_cores: The same of all other processes, or None if unknown.
        cores: Number of cores of the host.
    """
    if other_cores is None or other_cores < NOTICEABLE:
        return False
    return cores_used + other_cores > NEARLY_ALL * cores


def busy_host_problem(other_cores: float) -> str:
    """Return the figure of a busy host as a part of a sentence."""
    return f"other processes kept {other_cores:.1f} cores busy during the measurement"


def _waited(report: DataReport) -> str:
    rank = f"rank {report.rank} " if report.rank else "training "
    return f"{rank}waited for data for {report.wait_fraction:.0%} of its time"


def _ms(seconds: float, count: int) -> str:
    return f"{seconds / max(count, 1) * 1e3:.2f} ms"
