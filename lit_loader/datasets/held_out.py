"""Hold images out of the training table for validation and testing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.splitting import Traits, group_names, hold_out
from lit_loader.datasets.sources import Stage, StageTables
from lit_loader.errors import AnnotationError

__all__ = ["check_fractions", "held_out"]

_logger = logging.getLogger(__name__)


def check_fractions(fractions: Mapping[Stage, float], sets: Mapping[Stage, Any]) -> None:
    """Check the settings ``val_fraction`` and ``test_fraction`` of a source.

    Args:
        fractions: Fraction of the training images for each stage, 0 for none.
        sets: Setting of each stage, None if it is not set.

    Raises:
        ValueError: A fraction is out of range, or contradicts the setting of its stage.
    """
    for stage, fraction in fractions.items():
        setting = f"{stage}_fraction={fraction}"
        if not 0 <= fraction < 1:
            raise ValueError(f"{setting} must be in [0, 1)")
        if fraction and sets[stage] is not None:
            remedy = f"give {stage}=None to hold images out of train, or {stage}_fraction=0"
            # A data set may print all of its rows.
            raise ValueError(f"{stage}={shorten(repr(sets[stage]), 80)} and {setting} contradict each other; {remedy}")
        if fraction and sets["train"] is None:
            raise ValueError(f"{setting} holds images out of train, which is None; give train as well")
    if sum(fractions.values()) >= 1:
        names = " + ".join(f"{stage}_fraction" for stage in fractions)
        raise ValueError(f"{names} = {sum(fractions.values())} must be below 1")


def held_out(
    table: AnnotationTable,
    fractions: Mapping[Stage, float],
    *,
    origin: Path | str,
    group_pattern: str | None = None,
    seed: int = 0,
    cache_dir: Path | str | None = None,
    traits: Traits | None = None,
) -> StageTables:
    """Split the training table by fractions; return the new tables by stage, including training.

    Args:
        table: The training table.
        fractions: As for `check_fractions`, at least one above 0.
        origin: Folder or name of the data set, for messages.
        group_pattern: As for `group_names`, or None for no groups.
        seed: As for `hold_out`.
        cache_dir: As for `hold_out`.
        traits: As for `hold_out`.

    Raises:
        AnnotationError: A fraction leaves a stage without images.
    """
    fractions = {stage: fraction for stage, fraction in fractions.items() if fraction}
    # The remaining share is training's, so that all shares add up to 1.
    shares = {"train": 1 - sum(fractions.values())} | {str(stage): share for stage, share in fractions.items()}
    groups = None if group_pattern is None else group_names(table.image_paths, group_pattern)
    rows_by_stage, copies, is_new = hold_out(
        table, shares, groups=groups, seed=seed, cache_dir=cache_dir, traits=traits
    )
    if copies:
        # Warn only when the split is made, not on every rank and in every run.
        _logger.log(logging.WARNING if is_new else logging.INFO, "%s: %s", origin, copies)
    for stage, fraction in fractions.items():
        if table.num_images and not len(rows_by_stage[stage]):
            units = "images" if group_pattern is None else f"groups of {group_pattern!r}, which are never divided"
            problem = f"{stage}_fraction={fraction} of {table.num_images} images leaves no image for {stage}"
            remedy = f"raise the fraction, or give a list for {stage}"
            raise AnnotationError(f"{problem}: there are too few {units}", path=origin, remedy=remedy)
    return {stage: [table.select(rows_by_stage[stage])] for stage in get_args(Stage) if stage in rows_by_stage}
