"""What the tables of a data module's stages must have in common, and which samples are predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from lightning.pytorch.utilities import rank_zero_info

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.merge import with_same_names
from lit_loader.datasets import SampleTable, Stage, every_sample
from lit_loader.datasets.samples import SampleUnit

__all__ = ["check_alike", "samples_to_predict"]


def check_alike(
    known: Mapping[str, Sequence[str]], found: Mapping[str, Sequence[str]], *, stage: Stage
) -> None:
    """Refuse tables whose ids mean different things.

    Args:
        known: The names that a table has, by what they name.
        found: Those of another table.
        stage: Whose table that is, for the message.

    Raises:
        ValueError: They differ.
    """
    for what in {**known, **found}:
        first, other = known.get(what, ()), found.get(what, ())
        if first != other:
            raise ValueError(
                f"{what} differ between the sets of the source: {first}, and for {stage} {other}; a source "
                "must give every table the same names in the same order"
            )


def samples_to_predict(
    tables: Sequence[AnnotationTable], *, trained: AnnotationTable | None, sample_unit: SampleUnit
) -> list[SampleTable]:
    """Return every image, or object, of some tables, known labels or not.

    Args:
        tables: What to predict on.
        trained: A table of another stage, whose names and points they get where they have none; None: there
            is no other stage.
        sample_unit: Whether a sample is an image, or an object cut out of it.

    Raises:
        ValueError: Points are of different schemas.
    """
    first = [] if trained is None else [trained.select([])]
    named = with_same_names([*first, *tables])[len(first) :]
    empty = sum(int((np.diff(table.offsets) == 0).sum()) for table in named)
    if empty and sample_unit == "object":
        rank_zero_info(f"predict: {empty} images have no object, so there is nothing to cut out of them")
    return [every_sample(table, sample_unit=sample_unit) for table in named]
