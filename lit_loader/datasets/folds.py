"""Stages of a source by a split file, or by folds that are made when the source is read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.split_file import MAX_PARTS, SplitFile
from lit_loader.annotations.splitting import Traits, group_names, hold_out, pooled, shared_names
from lit_loader.datasets.sources import Stage, StageTables
from lit_loader.errors import AnnotationError, SettingError

__all__ = ["check_folds", "split_by_file", "split_by_fold"]

_PARTS: Final[tuple[Stage, ...]] = ("train", "val", "test")

_logger = logging.getLogger(__name__)


def check_folds(
    split_file: str | None, folds: int | None, fold: int | None, fractions: Mapping[Stage, float], train: Any
) -> None:
    """Check the settings ``split_file``, ``folds`` and ``fold`` of a source.

    Args:
        split_file: Name of a split file, or None.
        folds: Number of folds, or None.
        fold: Number of the fold for validation, or None.
        fractions: Fraction of the training images to hold out for each stage.
        train: Setting of the training set, None if it is not set.

    Raises:
        SettingError: A setting is out of range, or contradicts another one.
    """
    if split_file is not None and folds is not None:
        raise SettingError("folds", folds, "contradicts split_file, which has its own folds", settings={"folds": None})
    # `isinstance` would accept `true`, since bool is a subclass of int.
    if folds is not None and (type(folds) is not int or not 2 <= folds <= MAX_PARTS):
        raise SettingError("folds", folds, f"must be a whole number from 2 to {MAX_PARTS}", settings={"folds": 5})
    if folds is not None and fold is None:
        remedy = f"validate on one of the folds 0 to {folds - 1}"
        raise SettingError("fold", None, f"is not set, with folds={folds}", remedy, settings={"fold": 0})
    if fold is not None and split_file is None and folds is None:
        raise SettingError("fold", fold, "needs the number of folds", settings={"folds": 5, "split_file": ...})
    if fold is not None and (type(fold) is not int or fold < 0 or (folds is not None and fold >= folds)):
        rule = "must be a fold from 0" if folds is None else f"must be one of the folds 0 to {folds - 1}"
        raise SettingError("fold", fold, rule)
    if split_file is None and folds is None:
        return
    for stage, fraction in fractions.items():
        if fraction:
            rule = "contradicts split_file and folds, which split all images"
            raise SettingError(f"{stage}_fraction", fraction, rule, settings={f"{stage}_fraction": 0})
    if train is None:
        raise SettingError("train", None, "leaves no images for split_file or folds", settings={"train": ...})


def split_by_fold(
    tables: StageTables,
    *,
    folds: int,
    fold: int,
    origin: Path | str,
    group_pattern: str | None = None,
    seed: int = 0,
    cache_dir: Path | str | None = None,
    traits: Traits | None = None,
) -> StageTables:
    """Split the images of training and validation into folds; return the new tables of all stages.

    Args:
        tables: The tables of all stages. A set for testing or prediction whose images are all in these folds is one of
            the split sets as well.
        folds: Number of folds.
        fold: The fold for validation; the others are for training.
        origin: Folder of the data set, for messages.
        group_pattern: As for `group_names`, or None for no groups.
        seed: As for `hold_out`.
        cache_dir: As for `hold_out`.
        traits: As for `hold_out`.

    Raises:
        AnnotationError: There are too few images or groups, or some test images are now training images.
    """
    sets = _distinct([*tables["train"], *tables["val"]])
    pool = pooled(sets)
    groups = None if group_pattern is None else group_names(pool.image_paths, group_pattern)
    units = "images" if groups is None else f"groups of {group_pattern!r}"
    num_units = len(set(pool.image_paths if groups is None else groups))
    message = f"{num_units} {units} are too few for {folds} folds: a fold has no image"
    too_few = AnnotationError(message, path=origin, settings={"folds": ...})
    if num_units < folds:
        raise too_few
    shares = {str(number): 1 / folds for number in range(folds)}
    rows_by_fold, copies, is_new = hold_out(
        pool, shares, groups=groups, seed=seed, cache_dir=cache_dir, traits=traits, refine=True
    )
    if copies:
        # Warn only when the split is made, not on every rank and in every run.
        _logger.log(logging.WARNING if is_new else logging.INFO, "%s: %s", origin, copies)
    # Copies count once, so this is possible with as many images as folds.
    if not all(map(len, rows_by_fold.values())):
        raise too_few
    part_of_image = np.empty(pool.num_images, dtype=np.int64)
    for name, rows in rows_by_fold.items():
        part_of_image[rows] = int(name) != fold
    return _new_tables(tables, sets, pool, part_of_image, ("val", "train"), origin)


def split_by_file(
    tables: StageTables, path: Path | str, fold: int | None, *, origin: Path | str
) -> tuple[str, StageTables]:
    """Split the sets that a split file names; return its key, and the new tables of training, validation and test.

    Args:
        tables: The tables of all stages. The sets with an image in the file are split, and their images must be those
            of the file; other sets are unchanged.
        path: The split file.
        fold: The fold for validation, or None for a file with ``train`` and other splits.
        origin: Folder of the data set, for messages.

    Raises:
        AnnotationError: The file cannot be used, or names other images than the sets have.
    """
    sets = _distinct(table for stage in _PARTS for table in tables[stage])
    num_images = sum(table.num_images for table in sets)
    # More than the data set has, so that a file with removed images is refused with their names.
    file = SplitFile.read(path, max_images=2 * num_images + 1000)
    sets = [table for table in sets if any(image in file.part_by_image for image in table.image_paths)]
    if not any(_contains(sets, table) for table in tables["train"]):
        image = shorten(repr(next(iter(file.part_by_image), None)), 200)
        message = f"does not fit {origin}: it names none of the training images, but {image}"
        raise AnnotationError(message, path=path, remedy="paths are relative to the root; give the file of this set")
    pool = pooled(sets)
    images = set(pool.image_paths)
    missing = [image for image in pool.image_paths if image not in file.part_by_image]
    extra = sorted(file.part_by_image.keys() - images)
    problems = [
        f"{len(names)} {label}, such as {', '.join(shorten(repr(name), 200) for name in names[:3])}"
        for label, names in (("images of the data set are not in it", missing), ("of its images do not exist", extra))
        if names
    ]
    if problems:
        remedy = "split the data set again with `lit-loader split`, or read the sets that were split"
        raise AnnotationError(f"does not fit {origin}: {'; '.join(problems)}", path=path, remedy=remedy)
    part_of_image = np.array([file.part_by_image[image] for image in pool.image_paths], dtype=np.int64)
    empty = [file.parts[i] for i in np.flatnonzero(np.bincount(part_of_image, minlength=len(file.parts)) == 0)]
    if file.is_folds:
        _check_fold(file, fold, path)
        _check_not_empty(empty, path)
        return f"{file.key} {fold}", _new_tables(tables, sets, pool, part_of_image != fold, ("val", "train"), origin)
    if fold is not None:
        rule = f"needs a file of folds, and {path} has the splits {_listed(file.parts)}"
        raise SettingError("fold", fold, rule, settings={"fold": None})
    unknown = [part for part in file.parts if part not in _PARTS]
    if unknown or "train" not in file.parts:
        message = f"its splits are {_listed(file.parts)}; expected train, and val or test or both"
        raise AnnotationError(message, path=path, remedy="name them with --share of `lit-loader split`")
    for stage in ("val", "test"):
        if stage in file.parts and any(not _contains(sets, table) for table in tables[stage]):
            message = f"it has a split {stage!r}, and the set of {stage} is another one"
            raise AnnotationError(message, path=path, settings={stage: None})
    _check_not_empty(empty, path)
    return file.key, _new_tables(tables, sets, pool, part_of_image, file.parts, origin)


def _check_not_empty(empty: Sequence[str], path: Path | str) -> None:
    if empty:
        remedy = "split the data set again with `lit-loader split`"
        raise AnnotationError(f"no image is in {_listed(empty)}", path=path, remedy=remedy)


def _check_fold(file: SplitFile, fold: int | None, path: Path | str) -> None:
    """Raise AnnotationError for a file with a single fold, and SettingError for a fold that is not in the file."""
    if len(file.parts) < 2:
        message = "a single fold leaves no training images; split the data set into at least 2"
        raise AnnotationError(message, path=path)
    if fold is None:
        rule = f"is not set, and {path} has {len(file.parts)} folds"
        raise SettingError("fold", None, rule, settings={"fold": 0})
    if fold >= len(file.parts):
        raise SettingError("fold", fold, f"must be one of the folds 0 to {len(file.parts) - 1} of {path}")


def _new_tables(
    tables: StageTables,
    sets: Sequence[AnnotationTable],
    pool: AnnotationTable,
    part_of_image: Any,
    parts: Sequence[str],
    origin: Path | str,
) -> StageTables:
    """Return the tables of all stages after the split.

    Args:
        tables: The tables of all stages.
        sets: The sets that are split.
        pool: All images of these sets.
        part_of_image: Position in ``parts`` of each image, ``(num_images,)``.
        parts: Stages.
        origin: Folder of the data set, for messages.

    Raises:
        AnnotationError: An image is in training and test.
    """
    images = set(pool.image_paths)

    def is_split(table: AnnotationTable) -> bool:
        # A stage with other options has another table of the same images.
        return _contains(sets, table) or (table.num_images > 0 and images.issuperset(table.image_paths))

    # A set that was split is no longer one of its stage.
    new: StageTables = {stage: [table for table in tables[stage] if not is_split(table)] for stage in get_args(Stage)}
    for position, stage in enumerate(parts):
        rows = np.flatnonzero(part_of_image == position)
        if stage in _PARTS and len(rows):
            new[stage] = [pool.select(rows)]
    # Without a test set the run tests on the validation images, as the configs of single formats do.
    new["test"] = new["test"] or new["val"]
    new["predict"] = new["predict"] or new["test"]
    paths = {stage: [path for table in new[stage] for path in table.image_paths] for stage in ("train", "test")}
    for a, b, shared in shared_names(paths):
        name = shorten(repr(shared[0]), 200)
        message = f"{len(shared)} images are in {a} and in {b} after the split, such as {name}"
        remedy = "give test images that are in no set that is split"
        raise AnnotationError(message, path=origin, remedy=remedy, settings={"test": None})
    return new


def _distinct(tables: Iterable[AnnotationTable]) -> list[AnnotationTable]:
    """Return tables without repetitions; stages with the same list share one table."""
    return list({id(table): table for table in tables}.values())


def _contains(tables: Iterable[AnnotationTable], table: AnnotationTable) -> bool:
    return any(table is other for other in tables)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(shorten(repr(name), 60) for name in names[:10])
