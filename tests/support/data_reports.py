"""Reports of runs for diagnoses, with one stage that dominates."""

from __future__ import annotations

from lit_loader.engine.stats import STAGES, LoaderStats
from lit_loader.foundation.host import Resources
from lit_loader.monitoring import DataReport, LoaderSettings


def made_report(
    *,
    wait=0.5,
    total=100.0,
    transfer=0.0,
    between=0.0,
    stages=None,
    idle=5.0,
    cpu=None,
    workers=2,
    method="multiprocessing",
    cores=16,
    accelerated=True,
    steps=1000,
    settings=None,
    **fields,
):
    """Return the report of a run of ``total`` seconds; waiting, transfer and between are fractions of it."""
    stage_s = dict.fromkeys(STAGES, 0.0) | (stages or {})
    busy_s = sum(stage_s.values())
    stats = LoaderStats(
        wait_s=wait * total,
        transfer_s=transfer * total,
        num_batches=steps,
        num_samples=8 * steps,
        capacity=4 * steps if workers else 0,
        ready_batches=steps if workers else 0,
        num_workers=workers,
        stage_s=stage_s,
        cpu_s=busy_s if cpu is None else cpu,
        idle_s=idle if workers else 0.0,
    )
    loader_settings = LoaderSettings(
        num_workers=workers,
        worker_method=method,
        prefetch_factor=2 if workers else None,
        persistent_workers=True,
        **{"has_datamodule": True, "cache": False, **(settings or {})},
    )
    host = Resources(num_cores=cores, has_accelerator=accelerated)
    return DataReport(
        total_s=total,
        between_s=between * total,
        num_steps=steps,
        stats=stats,
        settings=loader_settings,
        **{"host": host, "main_cpu_s": 0.1 * total, **fields},
    )
