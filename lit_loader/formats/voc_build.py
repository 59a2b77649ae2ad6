"""Judges what VOC files say by the policy and builds the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.report import Problem, ReadReport, shorten
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError
from lit_loader.formats.voc_columns import VocColumns
from lit_loader.formats.voc_files import VocFiles, VocItem
from lit_loader.formats.voc_judge import VocJudge
from lit_loader.formats.voc_points import PointTable, attribute_columns
from lit_loader.formats.voc_policy import VocPolicy
from lit_loader.formats.voc_said import check_room, unite_schemas

__all__ = ["build_voc_table", "choose_items"]


def choose_items(files: VocFiles, *, policy: VocPolicy, report: ReadReport) -> list[VocItem]:
    """Return the items to read, without duplicates and without annotation as the policy says.

    Args:
        files: The data set's files.
        policy: What to do.
        report: Problems are added to it.

    Raises:
        AnnotationError: Under ``"raise"``; names the split file and the line.
    """
    chosen: list[VocItem] = []
    seen: set[str] = set()
    source = "" if files.split_file is None else str(files.split_file.relative_to(files.root))
    for item in files.items:
        found: tuple[str, str, str] | None = None
        if item.image_id in seen:
            found = ("duplicate_id", policy.duplicate_id, f"image {shorten(item.image_id)!r} is named again")
        elif item.xml is None:
            found = (
                "missing_annotation",
                policy.missing_annotation,
                f"no XML for {shorten(item.image_id)!r}",
            )
        seen.add(item.image_id)
        if found is not None:
            kind, action, message = found
            if action == "raise":
                remedy = f"correct the split file, or choose another action: VocPolicy({kind}=...)"
                raise AnnotationError(f"{message}; {remedy}", path=files.split_file, line=item.line)
            report.add(Problem(kind=kind, action=action, file=source, message=message, line=item.line))
            if action == "drop":
                continue
        chosen.append(item)
    return chosen


def build_voc_table(
    files: VocFiles,
    items: Sequence[VocItem],
    columns: VocColumns,
    *,
    policy: VocPolicy,
    class_names: tuple[str, ...] | None,
    schema: KeypointSchema | None,
    keypoints: bool,
    one_based: bool,
    split: str | None,
    report: ReadReport,
) -> AnnotationTable:
    """Build the table of ``items`` from what their files say.

    Args:
        files: The data set's files.
        items: The images.
        columns: One file for each item, those without annotation counting as empty.
        policy: What to do about problems.
        class_names: The classes in the order of their ids; None takes what the files say.
        schema: The points; None takes what the files say.
        keypoints: Whether the table gets points.
        one_based: Whether to subtract one from all coordinates.
        split: The split's name.
        report: Problems are added to it.

    Raises:
        AnnotationError: For the first problem whose action is ``"raise"``.
    """
    judge = VocJudge(files, items, columns, policy, report)
    paths = judge.images()
    said = unite_schemas(
        columns, schema=schema, class_names=class_names, keypoints=keypoints, mismatch=judge.schema_mismatch
    )
    check_room(columns, said, keypoints=keypoints, root=files.root)
    labels = judge.classes(said.class_names)
    shift = 1.0 if one_based else 0.0
    names = () if said.keypoints is None else said.keypoints.names
    points = PointTable(columns.points, names, num_objects=len(labels), shift=shift)
    judge.points(points, wanted=said.keypoints is not None)
    boxes = judge.boxes(points.boxes(~columns.boxed, columns.corners - shift))
    images, objects = judge.keep_image, judge.keep_object
    offsets = np.zeros(int(images.sum()) + 1, dtype=np.int64)
    per_image = np.bincount(judge.image_of[objects], minlength=len(items))
    np.cumsum(per_image[images], out=offsets[1:])
    kept = np.flatnonzero(images)
    pointed: dict[str, Any] = {}
    if said.keypoints is not None:
        pointed["keypoints"], pointed["visibility"] = points.columns(objects)
        pointed |= {
            "keypoint_names": names,
            "flip_pairs": said.keypoints.flip_pairs,
            "interocular": said.keypoints.interocular,
        }
    return AnnotationTable(
        root=files.root,
        image_paths=[paths[i] for i in kept.tolist()],
        image_ids=[items[i].image_id for i in kept.tolist()],
        class_names=said.class_names,
        widths=columns.sizes[images, 0],
        heights=columns.sizes[images, 1],
        offsets=offsets,
        boxes=boxes[objects].astype(np.float32),
        labels=labels[objects],
        difficult=columns.flags[objects, 0],
        truncated=columns.flags[objects, 1],
        occluded=columns.flags[objects, 2],
        crowd=columns.flags[objects, 3],
        attributes=attribute_columns(columns.attributes, said.attributes, kept=objects),
        split=split,
        report=report,
        **pointed,
    )
