"""Recipes and data modules together: a model's arguments that follow from the data, and pictures of predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from lightning.pytorch import LightningModule

from lit_loader.datamodules import (
    ClassificationDataModule,
    DetectionDataModule,
    KeypointDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
    TableDataModule,
    draw_found,
)
from lit_loader.recipes.classification import ClassificationTask
from lit_loader.recipes.detection import DetectionTask
from lit_loader.recipes.keypoints import KeypointTask
from lit_loader.recipes.landmarks import LandmarkTask
from lit_loader.recipes.multi_task import MultiTask
from lit_loader.recipes.task import Task

if TYPE_CHECKING:  # matplotlib is an extra
    from matplotlib.figure import Figure

__all__ = ["check_model_fits", "draw_predictions", "model_kwargs_from_datamodule", "task_of"]


_TASKS: Final[Mapping[type[TableDataModule], type[Task]]] = {
    ClassificationDataModule: ClassificationTask,
    DetectionDataModule: DetectionTask,
    KeypointDataModule: KeypointTask,
    LandmarkDataModule: LandmarkTask,
    MultiTaskDataModule: MultiTask,
}


def task_of(datamodule: object) -> type[Task]:
    """Return the task that a data module's batches are for.

    Args:
        datamodule: The class of a data module, or whatever else builds one.

    Returns:
        The task of this package's data module that the class is or derives from, else `Task`.
    """
    # Only a class has bases; any other callable may build a data module for any task.
    kinds = datamodule.__mro__ if isinstance(datamodule, type) else ()
    return next((_TASKS[kind] for kind in kinds if kind in _TASKS), Task)


def check_model_fits(datamodule: object, model: object, options: Mapping[str, object] | None = None) -> None:
    """Check that a data module and a model are for one task, before either is built.

    A data module or a model that does not derive from one of this package's classes is accepted with any other.

    Args:
        datamodule: The class of the data module, or another callable that builds it.
        model: The class of the task, or another callable that builds it.
        options: Models that ``model=`` can select, by name, for the message.

    Raises:
        ValueError: If they are for different tasks.
    """
    expected = task_of(datamodule)
    actual = _known_task(model)
    if expected is Task or actual in (expected, None):
        return
    # Either side may be the mistake, so the message names the models for the data and the data module for the model.
    names = [f"model={name}" for name, kind in (options or {}).items() if _known_task(kind) is expected]
    (other,) = (kind.__name__ for kind, task in _TASKS.items() if task is actual)
    raise ValueError(
        f"a {getattr(datamodule, '__name__', datamodule)} gives batches for a {expected.__name__}, and the model is a "
        f"{getattr(model, '__name__', model)}; choose {' or '.join(names) or f'a {expected.__name__}'}, or a {other}"
    )


def _known_task(model: object) -> type[Task] | None:
    kinds = model.__mro__ if isinstance(model, type) else ()
    return next((kind for kind in kinds if kind in _TASKS.values()), None)


def model_kwargs_from_datamodule(datamodule: TableDataModule) -> dict[str, Any]:
    """Return the keywords of the data module's task that follow from the data.

    A landmark task gets a head for the class where the data has more than one, and a head for each attribute that the
    data module reads.

    Args:
        datamodule: A data module whose data is prepared.

    Returns:
        Always ``class_names``. For `DetectionTask` also ``masks`` if the data module reads them; for
        `ClassificationTask` ``multi_label``; for `LandmarkTask`, `KeypointTask` and `MultiTask` ``keypoint_names`` and
        ``normalization_pair``; for `KeypointTask` ``sigmas``; for `MultiTask`, and for `LandmarkTask` if the data
        module has some, ``attributes``; for `LandmarkTask` also ``flip_pairs`` if the schema has some. All are plain
        lists, which a checkpoint can store.

    Raises:
        ValueError: If the data has no classes, or data for landmarks or keypoints no points.
    """
    classes = list(datamodule.class_names)
    if not classes:
        name = type(datamodule).__name__
        raise ValueError(f"found no classes for {name}; give it a split with labels, or class_names=[...]")
    kwargs: dict[str, Any] = {"class_names": classes}
    if isinstance(datamodule, ClassificationDataModule):
        kwargs["multi_label"] = datamodule.multi_label

    if isinstance(datamodule, DetectionDataModule) and datamodule.masks:
        kwargs["masks"] = True
    if not isinstance(datamodule, KeypointDataModule | LandmarkDataModule | MultiTaskDataModule):
        return kwargs
    schema = datamodule.keypoint_schema
    if schema is None and not isinstance(datamodule, MultiTaskDataModule):
        raise ValueError("the data has no points; read it with a keypoint schema, or train another task")
    # Plain lists, which a checkpoint loads under `weights_only=True`.
    pair = None if schema is None else schema.normalization_pair
    kwargs["keypoint_names"] = [] if schema is None else list(schema.names)
    kwargs["normalization_pair"] = None if pair is None else list(pair)
    if schema is not None and isinstance(datamodule, KeypointDataModule):
        kwargs["sigmas"] = list(schema.sigmas)
        return kwargs
    attributes = {name: list(names) for name, names in datamodule.attributes.items()}
    if attributes or isinstance(datamodule, MultiTaskDataModule):
        kwargs["attributes"] = attributes
    if schema is None or isinstance(datamodule, MultiTaskDataModule):
        return kwargs
    if len(classes) == 1:
        kwargs["class_names"] = None  # a head for a single class has nothing to learn
    # A schema without pairs may just not name them.
    if schema.flip_pairs:
        kwargs["flip_pairs"] = [list(pair) for pair in schema.flip_pairs]
    return kwargs


def draw_predictions(
    model: LightningModule, datamodule: TableDataModule, batch: Any, *, min_score: float = 0.5, max_images: int = 16
) -> Figure:
    """Return a picture of a batch with a task's predictions, see `draw_found`.

    Args:
        model: A task; put into evaluation mode.
        datamodule: The data module that gave the batch.
        batch: A batch as the model gets it.
        min_score: Detections below it are left out.
        max_images: Images drawn at most.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    # In training mode, torchvision's detectors expect targets and return losses.
    with torch.inference_mode():
        predictions = model.eval().predict_step(batch, 0)
    return draw_found(datamodule, batch, predictions, min_score=min_score, max_images=max_images)
