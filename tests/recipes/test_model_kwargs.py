"""The arguments of a task that follow from its data, and the pairs of data modules and tasks that fit."""

from __future__ import annotations

import json

import pytest

from lit_loader.datamodules import (
    ClassificationDataModule,
    DatasetsDataModule,
    DetectionDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
)
from lit_loader.recipes import (
    ClassificationTask,
    DetectionTask,
    LandmarkTask,
    MultiTask,
    check_model_fits,
    model_kwargs_from_datamodule,
    task_of,
)
from lit_loader.recipes.task import Task
from tests.support.drawn_set import CLASSES, FINISHES, POINTS, DrawnSource, draw_set

BARE = {"keypoints": None, "visibility": None, "keypoint_names": (), "flip_pairs": ()}
MODELS = {ClassificationTask: "classifier_small", LandmarkTask: "heatmaps_small"}


FINISH = {"finish": list(FINISHES)}
EYES = {"keypoint_names": list(POINTS), "normalization_pair": [0, 1]}
PAIRS = {"flip_pairs": [[0, 1]]}


@pytest.fixture
def source(tmp_path):
    return DrawnSource(train=draw_set(tmp_path, normalization_pair=(0, 1)))


@pytest.mark.parametrize(
    ("kind", "settings", "task", "names"),
    [
        (DetectionDataModule, {}, DetectionTask, {}),
        (ClassificationDataModule, {"multi_label": True}, ClassificationTask, {"multi_label": True}),
        (ClassificationDataModule, {"sample_unit": "object"}, ClassificationTask, {"multi_label": False}),
        (LandmarkDataModule, {}, LandmarkTask, {**EYES, **PAIRS}),
        (LandmarkDataModule, {"attributes": ["finish"]}, LandmarkTask, {**EYES, **PAIRS, "attributes": FINISH}),
        (MultiTaskDataModule, {}, MultiTask, {**EYES, "attributes": FINISH}),
        (
            MultiTaskDataModule,
            {"keypoints": False, "attributes": ["finish"]},
            MultiTask,
            {"keypoint_names": [], "normalization_pair": None, "attributes": FINISH},
        ),
    ],
)
def test_arguments_are_plain_and_build_the_task(source, kind, settings, task, names):
    kwargs = model_kwargs_from_datamodule(kind(source, **settings))
    assert kwargs == {"class_names": list(CLASSES), **names}
    assert json.loads(json.dumps(kwargs)) == kwargs
    assert task(MODELS.get(task, "fcos_small"), **kwargs).class_names == CLASSES


def test_masks_of_the_data_module_are_an_argument_of_the_task(tmp_path):
    datamodule = DetectionDataModule(DrawnSource(predict=draw_set(tmp_path)), masks=True)
    assert model_kwargs_from_datamodule(datamodule) == {"class_names": list(CLASSES), "masks": True}


def test_values_of_the_label_attribute_are_the_class_names(source):
    datamodule = ClassificationDataModule(source, label_attribute="finish", sample_unit="object")
    assert model_kwargs_from_datamodule(datamodule) == {"class_names": list(FINISHES), "multi_label": False}


def test_landmarks_of_a_single_class_have_no_class_head(tmp_path):
    table = draw_set(tmp_path, num_images=2, objects=1, class_names=("face",), labels=[0, 0])
    kwargs = model_kwargs_from_datamodule(LandmarkDataModule(DrawnSource(train=table)))
    assert kwargs == {"class_names": None, "keypoint_names": list(POINTS), "normalization_pair": None, **PAIRS}
    assert model_kwargs_from_datamodule(MultiTaskDataModule(DrawnSource(train=table)))["class_names"] == ["face"]


def test_schema_without_mirror_pairs_gives_none(tmp_path):
    table = draw_set(tmp_path, num_images=2, objects=1, flip_pairs=())
    assert "flip_pairs" not in model_kwargs_from_datamodule(LandmarkDataModule(DrawnSource(train=table)))


def test_data_without_classes_or_points_is_refused(tmp_path):
    for kind in (DetectionDataModule, ClassificationDataModule):
        with pytest.raises(ValueError, match=rf"{kind.__name__}; give it a split with labels"):
            model_kwargs_from_datamodule(kind(DrawnSource()))
    bare = draw_set(tmp_path, num_images=2, objects=1, **BARE)
    with pytest.raises(ValueError, match="no points; read it with a keypoint schema"):
        model_kwargs_from_datamodule(LandmarkDataModule(DrawnSource(predict=bare)))


class DerivedDataModule(LandmarkDataModule):
    """A user's data module that derives from one of the package."""


class DerivedTask(MultiTask):
    """A user's task that derives from one of the package."""


class OtherTask(Task):
    """A user's task for other data."""


@pytest.mark.parametrize(
    ("datamodule", "task"),
    [
        (ClassificationDataModule, ClassificationTask),
        (DetectionDataModule, DetectionTask),
        (LandmarkDataModule, LandmarkTask),
        (DerivedDataModule, LandmarkTask),
        (MultiTaskDataModule, MultiTask),
        (DatasetsDataModule, Task),
        (print, Task),
    ],
)
def test_task_of_a_data_module(datamodule, task):
    assert task_of(datamodule) is task


@pytest.mark.parametrize(
    ("datamodule", "model"),
    [
        (DetectionDataModule, DetectionTask),
        (MultiTaskDataModule, DerivedTask),
        (DerivedDataModule, LandmarkTask),
        (DatasetsDataModule, LandmarkTask),
        (LandmarkDataModule, OtherTask),
        (LandmarkDataModule, print),
        (print, MultiTask),
    ],
)
def test_data_module_and_model_for_one_task_fit_and_unknown_classes_fit_all(datamodule, model):
    check_model_fits(datamodule, model)


OPTIONS = {"fcos_small": DetectionTask, "heatmaps_small": LandmarkTask, "heatmaps_resnet18": LandmarkTask}


@pytest.mark.parametrize(
    ("datamodule", "model", "message"),
    [
        (LandmarkDataModule, DetectionTask, "choose model=heatmaps_small or model=heatmaps_resnet18, or a Detection"),
        (DetectionDataModule, LandmarkTask, "choose model=fcos_small, or a LandmarkDataModule"),
        (DetectionDataModule, MultiTask, "batches for a DetectionTask, and the model is a MultiTask; choose"),
        (MultiTaskDataModule, DetectionTask, "choose a MultiTask, or a DetectionDataModule"),
    ],
)
def test_data_module_and_model_for_different_tasks_are_refused_with_options(datamodule, model, message):
    with pytest.raises(ValueError, match=message):
        check_model_fits(datamodule, model, OPTIONS)
