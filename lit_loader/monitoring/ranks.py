"""Reports of all ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch.distributed as dist

from lit_loader.monitoring.report import DataReport

__all__ = ["gather_reports"]


def gather_reports(report: DataReport) -> list[DataReport]:
    """Return the reports of all ranks in their order; a collective call, so every rank has to make it.

    The seconds of a step without waiting are in all of them the smallest of any rank.

    Args:
        report: The report of this rank, which is returned alone without a process group.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return [report]
    reports: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(reports, report)
    # Ranks wait for each other in a step, so the fastest burst is the one that waited least.
    free_steps_s = [rank_report.free_step_s for rank_report in reports if rank_report.free_step_s]
    return [replace(rank_report, free_step_s=min(free_steps_s, default=None)) for rank_report in reports]
