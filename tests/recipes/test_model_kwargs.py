"""What a task gets from its data: plain values that build it; and which task goes with which data module."""

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


@pytest.fixture
def source(tmp_path):
    return DrawnSource(train=draw_set(tmp_path, normalization_pair=(0, 1)))


FINISH = {"finish": list(FINISHES)}
EYES = {"keypoint_names": list(POINTS), "normalization_pair": [0, 1]}


@pytest.mark.parametrize(
    ("kind", "settings", "task", "names"),
    [
        (DetectionDataModule, {}, DetectionTask, {}),
        (ClassificationDataModule, {"multi_label": True}, ClassificationTask, {"multi_label": True}),
        (ClassificationDataModule, {"sample_unit": "object"}, ClassificationTask, {"multi_label": False}),
        (LandmarkDataModule, {}, LandmarkTask, EYES),
        (MultiTaskDataModule, {}, MultiTask, {**EYES, "attributes": FINISH}),
        (
            MultiTaskDataModule,
            {"keypoints": False, "attributes": ["finish"]},
            MultiTask,
            {"keypoint_names": [], "normalization_pair": None, "attributes": FINISH},
        ),
    ],
)
def test_the_names_are_plain_and_build_the_task(source, kind, settings, task, names):
    found = model_kwargs_from_datamodule(kind(source, **settings))
    assert found == {"class_names": list(CLASSES), **names}
    assert json.loads(json.dumps(found)) == found
    assert task(MODELS.get(task, "fcos_small"), **found).class_names == CLASSES


def test_a_label_by_an_attribute_names_its_values(source):
    datamodule = ClassificationDataModule(source, label_attribute="finish", sample_unit="object")
    assert model_kwargs_from_datamodule(datamodule) == {"class_names": list(FINISHES), "multi_label": False}


def test_a_single_class_needs_no_class_head_for_landmarks(tmp_path):
    table = draw_set(tmp_path, num_images=2, objects=1, class_names=("face",), labels=[0, 0])
    found = model_kwargs_from_datamodule(LandmarkDataModule(DrawnSource(train=table)))
    assert found == {"class_names": None, "keypoint_names": list(POINTS), "normalization_pair": None}
    assert model_kwargs_from_datamodule(MultiTaskDataModule(DrawnSource(train=table)))["class_names"] == ["face"]


def test_data_without_classes_or_points_is_refused_with_a_remedy(tmp_path):
    for kind in (DetectionDataModule, ClassificationDataModule):
        with pytest.raises(ValueError, match=rf"{kind.__name__}; give it a split with labels"):
            model_kwargs_from_datamodule(kind(DrawnSource()))
    bare = draw_set(tmp_path, num_images=2, objects=1, **BARE)
    with pytest.raises(ValueError, match="no points; read it with a keypoint schema"):
        model_kwargs_from_datamodule(LandmarkDataModule(DrawnSource(predict=bare)))


def test_masks_of_the_data_module_are_those_of_the_task(tmp_path):
    datamodule = DetectionDataModule(DrawnSource(predict=draw_set(tmp_path)), masks=True)
    found = model_kwargs_from_datamodule(datamodule)
    assert found == {"class_names": list(CLASSES), "masks": True}


class OwnDataModule(LandmarkDataModule):
    """One that derives from a data module of the package."""


class OwnTask(MultiTask):
    """One that derives from a task of the package."""


class OtherTask(Task):
    """One of its own."""


@pytest.mark.parametrize(
    ("datamodule", "task"),
    [
        (ClassificationDataModule, ClassificationTask),
        (DetectionDataModule, DetectionTask),
        (LandmarkDataModule, LandmarkTask),
        (OwnDataModule, LandmarkTask),
        (MultiTaskDataModule, MultiTask),
        (DatasetsDataModule, Task),
        (print, Task),
    ],
)
def test_the_task_of_a_data_module(datamodule, task):
    assert task_of(datamodule) is task


@pytest.mark.parametrize(
    ("datamodule", "model"),
    [
        (DetectionDataModule, DetectionTask),
        (MultiTaskDataModule, OwnTask),
        (OwnDataModule, LandmarkTask),
        (DatasetsDataModule, LandmarkTask),
        (LandmarkDataModule, OtherTask),
        (LandmarkDataModule, print),
        (print, MultiTask),
    ],
)
def test_what_is_for_one_task_fits_and_own_classes_fit_everything(datamodule, model):
    check_model_fits(datamodule, model)


OPTIONS = {"fcos_small": DetectionTask, "heatmaps_small": LandmarkTask, "heatmaps_resnet18": LandmarkTask}


@pytest.mark.parametrize(
    ("datamodule", "model", "told"),
    [
        (LandmarkDataModule, DetectionTask, "choose model=heatmaps_small or model=heatmaps_resnet18, or a Detection"),
        (DetectionDataModule, LandmarkTask, "choose model=fcos_small, or a LandmarkDataModule"),
        (DetectionDataModule, MultiTask, "batches for a DetectionTask, and the model is a MultiTask; choose"),
        (MultiTaskDataModule, DetectionTask, "choose a MultiTask, or a DetectionDataModule"),
    ],
)
def test_what_is_for_two_tasks_is_refused_with_the_options_that_fit(datamodule, model, told):
    with pytest.raises(ValueError, match=told):
        check_model_fits(datamodule, model, OPTIONS)
