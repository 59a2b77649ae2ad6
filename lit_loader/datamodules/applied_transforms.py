"""Transforms of each stage as lines of a summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lit_loader.datasets import Stage
from lit_loader.transforms import describe

__all__ = ["transform_lines"]


def transform_lines(transforms_by_stage: Mapping[Stage, Callable[..., Any]]) -> list[str]:
    """Return a heading for each stage and a line for each of its transforms; equal stages share them.

    Args:
        transforms_by_stage: The transforms of ``(image, target)`` of each stage.
    """
    stages_by_steps: dict[tuple[str, ...], list[str]] = {}
    for stage, transforms in transforms_by_stage.items():
        stages_by_steps.setdefault(tuple(describe(transforms)), []).append(stage)
    lines = []
    for steps, stages in stages_by_steps.items():
        lines.append(f"{', '.join(stages)} transforms:")
        lines += [f"  {step}" for step in steps or ("none",)]
    return lines
