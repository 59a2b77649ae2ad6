"""Reports of all ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from lit_loader.monitoring.report import DataReport

__all__ = ["gather_reports"]


def gather_reports(report: DataReport) -> list[DataReport]:
    """Return the reports of all ranks in their order; a collective call, so every rank has to make it.

    Args:
        report: The report of this rank, which is returned alone without a process group.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return [report]
    reports: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(reports, report)
    return reports
