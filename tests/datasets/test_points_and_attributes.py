"""Points and attributes in the targets of the detection data set."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from lit_loader.annotations import AnnotationTable
from lit_loader.datasets import DetectionDataset
from tests.support.drawn_set import SIZE, draw_set


@pytest.fixture
def table(tmp_path):
    return draw_set(tmp_path)


def renamed(table, name):
    """Return the table with its attribute called ``name``."""
    parts = {key: getattr(table, key) for key in ("root", "image_paths", "class_names", "offsets", "boxes")}
    return AnnotationTable(**parts, labels=table.labels, attributes={name: table.attributes["finish"]})


def test_points_come_as_keypoints_with_their_visibility(table):
    _, target = DetectionDataset(table, keypoints=True)[3]
    rows = table.objects(3)
    assert isinstance(target["keypoints"], tv_tensors.KeyPoints)
    assert target["keypoints"].canvas_size == (SIZE[1], SIZE[0])
    assert (target["keypoints"].dtype, target["visibility"].dtype) == (torch.float32, torch.uint8)
    assert np.array_equal(target["keypoints"].numpy(), table.keypoints[rows])
    assert target["visibility"].tolist() == table.visibility[rows].tolist()
    assert type(target["visibility"]) is torch.Tensor


def test_attributes_come_by_their_name(table):
    for attributes in (["finish"], "all"):
        dataset = DetectionDataset(table, attributes=attributes)
        assert dataset.attributes == ("finish",)
        ids = torch.cat([target["finish"] for _, target in dataset])
        assert ids.dtype == torch.int64
        assert ids.tolist() == table.attributes["finish"].ids.tolist()
        assert -1 in ids.tolist()


def test_an_image_without_objects_has_points_of_no_rows(table):
    _, target = DetectionDataset(table, keypoints=True, attributes="all")[0]
    assert target["keypoints"].shape == (0, 3, 2)
    assert (target["visibility"].shape, target["finish"].shape) == ((0, 3), (0,))


def test_a_point_outside_the_image_keeps_its_coordinates_and_counts_as_absent(tmp_path):
    points = [[(-0.5, 10), (64, 48), (10, 48.5)]]
    table = draw_set(tmp_path, num_images=1, objects=1, keypoints=points, visibility=[[2, 2, 1]])
    _, target = DetectionDataset(table, keypoints=True)[0]
    assert target["keypoints"].tolist() == [[list(point) for point in points[0]]]
    assert target["visibility"].tolist() == [[0, 2, 0]]


def test_fields_that_the_table_lacks_are_refused(table):
    bare = renamed(table, "finish")
    with pytest.raises(ValueError, match=r"keypoints=True but no object of AnnotationTable.* has points; read"):
        DetectionDataset(bare, keypoints=True)
    with pytest.raises(ValueError, match=r"attributes contains \['colour'\]; the table has \['finish'\]"):
        DetectionDataset(table, attributes=["finish", "colour"])
    with pytest.raises(ValueError, match="'finish' is neither a list of names nor"):
        DetectionDataset(table, attributes="finish")
    with pytest.raises(ValueError, match="contains a name twice"):
        DetectionDataset(table, attributes=["finish", "finish"])


@pytest.mark.parametrize("name", ["boxes", "labels", "crop", "visibility", "difficult", "scores", "image_id"])
@pytest.mark.parametrize("requested", ["all", "by name"])
def test_an_attribute_that_would_replace_a_field_is_refused_with_the_remedy(table, name, requested):
    attributes = "all" if requested == "all" else [name]
    with pytest.raises(ValueError, match=rf"attributes \['{name}'\].*attributes=\[\], or rename them"):
        DetectionDataset(renamed(table, name), attributes=attributes)
    assert name not in DetectionDataset(renamed(table, "free"), attributes="all").attributes


@pytest.mark.parametrize("field", ["keypoints", "visibility", "finish"])
def test_a_transform_that_leaves_rows_behind_is_refused(table, field):
    def drop(image, target):
        rows = [name for name, value in target.items() if name != field and isinstance(value, torch.Tensor)]
        return image, {**target, **{name: target[name][:1] for name in rows}}

    dataset = DetectionDataset(table, keypoints=True, attributes="all", transforms=drop)
    with pytest.raises(ValueError, match=f"'{field}' has 3 rows for 1 boxes"):
        dataset[3]


def test_samples_own_their_memory_and_the_data_set_pickles(table):
    dataset = DetectionDataset(table, keypoints=True, attributes="all")
    _, target = dataset[3]
    for name in ("keypoints", "visibility", "finish"):
        target[name].zero_()
    unpickled_target = pickle.loads(pickle.dumps(dataset))[3][1]
    for name in ("keypoints", "visibility", "finish"):
        assert torch.equal(unpickled_target[name], dataset[3][1][name])
    assert unpickled_target["keypoints"].any()
