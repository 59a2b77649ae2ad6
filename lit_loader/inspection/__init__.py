"""Inspection of data sets before training: defects, pictures, statistics, and pages that show them."""

from __future__ import annotations

from lit_loader.inspection.check import CheckSettings, check_tables
from lit_loader.inspection.curves import CurveTask
from lit_loader.inspection.drawing import draw_image, draw_mirrored
from lit_loader.inspection.findings import Finding, Findings, Severity
from lit_loader.inspection.gallery import Gallery, encode_picture
from lit_loader.inspection.page import Page
from lit_loader.inspection.show import show_batches, show_findings, show_mirrored, show_table

__all__ = [
    "CheckSettings",
    "CurveTask",
    "Finding",
    "Findings",
    "Gallery",
    "Page",
    "Severity",
    "check_tables",
    "draw_image",
    "draw_mirrored",
    "encode_picture",
    "show_batches",
    "show_findings",
    "show_mirrored",
    "show_table",
]
