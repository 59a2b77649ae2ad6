"""Report of a run: how its time is divided, what its workers did, and how much a faster loader could gain."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, NamedTuple

from lit_loader.engine import WorkerMethod
from lit_loader.engine.stats import STAGES, LoaderStats
from lit_loader.foundation.counts import counted
from lit_loader.foundation.host import Resources

__all__ = ["DataReport", "Headroom", "LoaderSettings", "NO_STATS", "add_stats"]

NO_STATS: Final = LoaderStats(stage_s=dict.fromkeys(STAGES, 0.0))
"""Statistics of no batch."""


def add_stats(first: LoaderStats, second: LoaderStats) -> LoaderStats:
    """Return the sums of two periods of one loader, or of the same period of two loaders."""
    values: dict[str, Any] = {
        entry.name: getattr(first, entry.name) + getattr(second, entry.name)
        for entry in fields(LoaderStats)
        if entry.name not in ("stage_s", "num_workers")
    }
    stage_s = {stage: first.stage_s[stage] + second.stage_s[stage] for stage in STAGES}
    return LoaderStats(**values, stage_s=stage_s, num_workers=max(first.num_workers, second.num_workers))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """Settings of a training loader and its images that a diagnosis may advise to change.

    Attributes:
        num_workers: Number of workers.
        worker_method: Kind of the workers.
        prefetch_factor: Batches that each worker makes ahead; None without workers.
        persistent_workers: True if the workers stay from epoch to epoch.
        pin_memory: True if batches are page-locked.
        num_loaders: Number of loaders, each with these workers.
        copies_ahead: True if the loader copies batches to the device itself, ahead of their use.
        decode: The ``decode`` of a data module's `ImageReading`; None if unknown.
        cache: Whether a data module keeps decoded images; None if unknown.
        has_datamodule: True if a `LoaderDataModule` makes the loader.
    """

    num_workers: int = 0
    worker_method: WorkerMethod = "multiprocessing"
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory: bool = False
    num_loaders: int = 1
    copies_ahead: bool = False
    decode: str | None = None
    cache: bool | None = None
    has_datamodule: bool = False


class Headroom(NamedTuple):
    """Largest gain in speed that a loader can bring.

    Attributes:
        gain: The gain, such as 0.04 for a run that is 4 % faster.
        is_measured: True if steps were measured without waiting; False for the upper bound from the time of waiting.
    """

    gain: float
    is_measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    """Times of the training loop of one rank, without validation and without the time between epochs.

    Waiting is the time in which the loader had no batch for its consumer. A device that works behind the consumer, and
    lets it wait, counts as a part of the step.

    Attributes:
        total_s: Duration of the loop in seconds: waiting, transfer, between and step.
        between_s: Seconds between steps that are neither waiting nor transfer by the loader: a transfer by Lightning or
            Fabric, and callbacks.
        first_wait_s: Seconds of waiting for the first batch of each epoch, a part of the waiting.
        num_epochs: Number of epochs that the loop began.
        num_steps: Number of steps.
        num_images: Number of images in them; 0 if unknown.
        stats: Statistics of the loaders in the same time.
        main_cpu_s: CPU seconds of this process, with its threads.
        other_cores: Cores that other processes of the host used; None if the kernel does not report it.
        free_step_s: Seconds per step while batches were ready and the workers idle; None if not measured.
        settings: Settings of the loader.
        host: Cores and memory of the host.
        rank: Rank of this process.
    """

    total_s: float
    between_s: float = 0.0
    first_wait_s: float = 0.0
    num_epochs: int = 1
    num_steps: int
    num_images: int = 0
    stats: LoaderStats
    main_cpu_s: float = 0.0
    other_cores: float | None = None
    free_step_s: float | None = None
    settings: LoaderSettings = field(default_factory=LoaderSettings)
    host: Resources
    rank: int = 0

    @property
    def wait_fraction(self) -> float:
        """Fraction of the loop that was spent waiting for batches."""
        return self.stats.wait_s / max(self.total_s, 1e-9)

    @property
    def transfer_fraction(self) -> float:
        """Fraction of the loop that was spent on page-locking and copies by the loader."""
        return self.stats.transfer_s / max(self.total_s, 1e-9)

    @property
    def between_fraction(self) -> float:
        """Fraction of the loop between steps, without waiting and without the transfer by the loader."""
        return self.between_s / max(self.total_s, 1e-9)

    @property
    def step_s(self) -> float:
        """Seconds of the loop in steps."""
        return max(0.0, self.total_s - self.stats.wait_s - self.stats.transfer_s - self.between_s)

    @property
    def busy_s(self) -> float:
        """Seconds in which batches were made, summed over workers."""
        return sum(self.stats.stage_s.values())

    @property
    def cores_used(self) -> float:
        """CPU seconds per second of this process and its workers."""
        # Threads are a part of this process, and so is a loader without workers.
        uses_processes = self.settings.num_workers > 0 and self.settings.worker_method == "multiprocessing"
        return (self.main_cpu_s + self.stats.cpu_s * uses_processes) / max(self.total_s, 1e-9)

    @property
    def headroom(self) -> Headroom:
        """The largest gain that a loader can bring, measured or bounded."""
        if self.free_step_s and self.num_steps:
            return Headroom(max(0.0, self.total_s / self.num_steps / self.free_step_s - 1), True)
        # An asynchronous device may work while the consumer waits, so the gain may be smaller.
        working_s = self.total_s - self.stats.wait_s
        return Headroom(self.stats.wait_s / working_s if working_s > 0 else 0.0, False)

    @property
    def step_slowdown(self) -> float | None:
        """Time of a step beside the workers, without waiting, divided by `free_step_s`; None if not measured."""
        if not self.free_step_s or not self.num_steps:
            return None
        return max(0.0, self.total_s - self.stats.wait_s) / self.num_steps / self.free_step_s

    def headroom_text(self) -> str:
        """Return the headroom as a sentence."""
        gain, is_measured = self.headroom
        if not self.num_steps:
            return "no step was measured"
        if not is_measured:
            why = f"an upper bound: waiting took {self.wait_fraction:.1%} of the loop"
        else:
            step_ms = (self.free_step_s or 0.0) * 1e3
            run_ms = self.total_s / self.num_steps * 1e3
            wait_ms = self.stats.wait_s / self.num_steps * 1e3
            why = (
                f"measured: a step takes {step_ms:.1f} ms with idle workers, and {run_ms:.1f} ms in this run, "
                f"{wait_ms:.1f} ms of it waiting"
            )
        # Above 100 %, readers take "159 % faster" for 1.59 times as fast.
        speed = f"{gain:.1%} faster" if gain <= 1 else f"{1 + gain:.1f} times as fast"
        return f"no loader can make this run more than {speed} ({why})"

    def loop_rows(self) -> list[tuple[str, str, str]]:
        """Return name, seconds and share of each part of the loop."""
        parts = {
            "waiting for data": self.stats.wait_s,
            "transfer": self.stats.transfer_s,
            "between steps": self.between_s,
            "step": self.step_s,
        }
        return [(name, f"{part_s:.2f}", f"{part_s / max(self.total_s, 1e-9):.1%}") for name, part_s in parts.items()]

    def stage_rows(self) -> list[tuple[str, str, str, str]]:
        """Return name, seconds, share and milliseconds per sample of each stage, and of idle workers."""
        all_s = max(self.busy_s + self.stats.idle_s, 1e-9)
        num_samples = self.stats.num_samples
        rows = []
        for name, stage_s in [*self.stats.stage_s.items(), ("idle", self.stats.idle_s)]:
            per_sample = f"{stage_s / num_samples * 1e3:.3f}" if num_samples and name != "idle" else ""
            rows.append((str(name), f"{stage_s:.2f}", f"{stage_s / all_s:.1%}", per_sample))
        return rows

    def figures_text(self) -> str:
        """Return the other figures of the loader in one line."""
        stats = self.stats
        workers = counted(stats.num_workers, "worker") if stats.num_workers else "no workers"
        parts = [workers, f"{self.cores_used:.1f} of {self.host.cores:g} cores"]
        if stats.capacity:
            parts.append(f"queue {stats.ready_batches / stats.capacity:.0%} full")
        seconds = max(self.total_s, 1e-9)
        for verb, num_bytes in (("read", stats.read_bytes), ("received", stats.received_bytes)):
            if num_bytes:
                parts.append(f"{num_bytes / seconds / 2**20:.1f} MiB/s {verb}")
        parts += [counted(stats.num_bad_samples, "bad sample")] if stats.num_bad_samples else []
        parts += [counted(stats.num_restarts, "restarted worker")] if stats.num_restarts else []
        return ", ".join(parts)

    def lines(self) -> list[str]:
        """Return the report as lines of plain text."""
        loop = ", ".join(f"{name} {share}" for name, _, share in self.loop_rows())
        stages = ", ".join(f"{name} {share}" for name, _, share, _ in self.stage_rows())
        return [
            f"{counted(self.num_steps, 'step')} in {self.total_s:.1f} s: {loop}",
            f"{'workers' if self.stats.num_workers else 'making batches'}: {stages}",
            self.figures_text(),
            self.headroom_text(),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON, with its fractions and its headroom."""
        gain, is_measured = self.headroom
        derived = {
            "wait_fraction": self.wait_fraction,
            "transfer_fraction": self.transfer_fraction,
            "step_s": self.step_s,
            "headroom": {"gain": gain, "is_measured": is_measured},
        }
        # A mapping of another kind than dict could not be written as JSON.
        stats = {**asdict(replace(self.stats, stage_s={})), "stage_s": dict(self.stats.stage_s)}
        return {**asdict(replace(self, stats=NO_STATS)), "stats": stats, **derived}
