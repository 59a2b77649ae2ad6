"""What a recipe must be told of the data it trains on: names of classes, points and attributes."""

from __future__ import annotations

from typing import Any

from lit_loader.datamodules import (
    ClassificationDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
    TableDataModule,
)

__all__ = ["names_from_data"]


def names_from_data(datamodule: TableDataModule) -> dict[str, Any]:
    """Return the keywords of the task's recipe that follow from the data.

    A landmark recipe gets a head for the class where the data has more than one.

    Args:
        datamodule: One whose data is prepared.

    Returns:
        For `DetectionModule` ``class_names``; for `ClassificationModule` ``multi_label`` too; for
        `LandmarkModule` and `MultiTaskModule` also ``keypoint_names`` and ``normalization_pair``, for the latter
        ``attributes``. Plain lists, so that a checkpoint can keep them.

    Raises:
        ValueError: If the data has no classes, or a landmark set no points.
    """
    classes = list(datamodule.class_names)
    if not classes:
        raise ValueError(
            f"the source of {type(datamodule).__name__} names no class, and a model needs some; give it a split "
            "with labels, or class_names=[...]"
        )
    if isinstance(datamodule, ClassificationDataModule):
        return {"class_names": classes, "multi_label": datamodule.multi_label}
    if not isinstance(datamodule, LandmarkDataModule | MultiTaskDataModule):
        return {"class_names": classes}
    schema = datamodule.keypoint_schema
    points: dict[str, Any] = {"keypoint_names": [], "normalization_pair": None}
    if schema is not None:
        pair = None if schema.normalization_pair is None else list(schema.normalization_pair)
        points = {"keypoint_names": list(schema.names), "normalization_pair": pair}
    if isinstance(datamodule, MultiTaskDataModule):
        values = {name: list(names) for name, names in datamodule.attributes.items()}
        return {"class_names": classes, **points, "attributes": values}
    if schema is None:
        raise ValueError("the data has no points; read it with a schema, or train another task")
    return {**points, "class_names": classes if len(classes) > 1 else None}
