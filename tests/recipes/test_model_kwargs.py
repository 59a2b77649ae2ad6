"""What a recipe is told of its data: plain values that build it, one kind for each data module."""

from __future__ import annotations

import json

import pytest

from lit_loader.datamodules import (
    ClassificationDataModule,
    DetectionDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
)
from lit_loader.recipes import (
    ClassificationModule,
    DetectionModule,
    LandmarkModule,
    MultiTaskModule,
    model_kwargs_from_datamodule,
)
from tests.drawn_set import CLASSES, FINISHES, POINTS, DrawnSource, draw_set

BARE = {"keypoints": None, "visibility": None, "keypoint_names": (), "flip_pairs": ()}
SMALL = {"channels": 8, "head_channels": 32}


@pytest.fixture
def source(tmp_path):
    return DrawnSource(train=draw_set(tmp_path, normalization_pair=(0, 1)))


FINISH = {"finish": list(FINISHES)}
EYES = {"keypoint_names": list(POINTS), "normalization_pair": [0, 1]}


@pytest.mark.parametrize(
    ("kind", "settings", "recipe", "names"),
    [
        (DetectionDataModule, {}, DetectionModule, {}),
        (ClassificationDataModule, {"multi_label": True}, ClassificationModule, {"multi_label": True}),
        (ClassificationDataModule, {"sample_unit": "object"}, ClassificationModule, {"multi_label": False}),
        (LandmarkDataModule, {}, LandmarkModule, EYES),
        (MultiTaskDataModule, {}, MultiTaskModule, {**EYES, "attributes": FINISH}),
        (
            MultiTaskDataModule,
            {"keypoints": False, "attributes": ["finish"]},
            MultiTaskModule,
            {"keypoint_names": [], "normalization_pair": None, "attributes": FINISH},
        ),
    ],
)
def test_the_names_are_plain_and_build_the_recipe(source, kind, settings, recipe, names):
    found = model_kwargs_from_datamodule(kind(source, **settings))
    assert found == {"class_names": list(CLASSES), **names}
    assert json.loads(json.dumps(found)) == found
    assert recipe(**found, **SMALL).class_names == CLASSES


def test_a_label_by_an_attribute_names_its_values(source):
    datamodule = ClassificationDataModule(source, label_attribute="finish", sample_unit="object")
    assert model_kwargs_from_datamodule(datamodule) == {"class_names": list(FINISHES), "multi_label": False}


def test_a_single_class_needs_no_class_head_for_landmarks(tmp_path):
    table = draw_set(tmp_path, num_images=2, objects=1, class_names=("face",), labels=[0, 0])
    found = model_kwargs_from_datamodule(LandmarkDataModule(DrawnSource(train=table)))
    assert found == {"class_names": None, "keypoint_names": list(POINTS), "normalization_pair": None}
    assert model_kwargs_from_datamodule(MultiTaskDataModule(DrawnSource(train=table)))["class_names"] == [
        "face"
    ]


def test_data_without_classes_or_points_is_refused_with_a_remedy(tmp_path):
    for kind in (DetectionDataModule, ClassificationDataModule):
        with pytest.raises(ValueError, match=rf"{kind.__name__}; give it a split with labels"):
            model_kwargs_from_datamodule(kind(DrawnSource()))
    bare = draw_set(tmp_path, num_images=2, objects=1, **BARE)
    with pytest.raises(ValueError, match="no points; read it with a keypoint schema"):
        model_kwargs_from_datamodule(LandmarkDataModule(DrawnSource(predict=bare)))
