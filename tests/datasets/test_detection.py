"""The detection dataset: contents of a sample, indexing, and memory."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from lit_loader.annotations.formats import read_annotations
from lit_loader.annotations.table import AnnotationTable
from lit_loader.datasets import DetectionDataset
from lit_loader.errors import ImageError
from lit_loader.images import ImageReading
from lit_loader.transforms import SanitizeObjects, detection_transforms
from tests.support.voc_set import write_voc_xml

COUNTS = [2, 0, 3]
BOXES = [[1, 2, 11, 12], [0, 0, 20, 10], [5, 5, 5, 9], [15, 5, 40, 30], [2, 2, 4, 6]]


def make_table(root, *, sizes=((20, 16), (20, 16), (20, 16)), stored=None, orientation=None):
    """Three images and five objects; ``sizes`` (width, height) as annotated, ``stored`` as in the files."""
    (root / "images").mkdir(exist_ok=True)
    for i, size in enumerate(stored or sizes):
        exif = Image.Exif()
        if orientation:
            exif[0x0112] = orientation
        Image.new("RGB", size, (i, 100, 200)).save(root / "images" / f"{i}.png", exif=exif)
    return AnnotationTable(
        root=root,
        image_paths=[f"images/{i}.png" for i in range(3)],
        image_ids=["a", "b", "c"],
        class_names=("cat", "dog"),
        widths=np.array([width for width, _ in sizes], dtype=np.int32),
        heights=np.array([height for _, height in sizes], dtype=np.int32),
        offsets=np.array([0, 2, 2, 5], dtype=np.int64),
        boxes=np.array(BOXES, dtype=np.float32),
        labels=np.array([0, 1, 1, 0, 1], dtype=np.int64),
        difficult=np.array([True, False, False, True, False]),
        truncated=np.array([False, True, False, False, True]),
        occluded=np.array([True, True, False, False, False]),
        crowd=np.array([False, True, False, False, False]),
    )


def test_a_sample_is_what_torchvisions_references_expect(tmp_path):
    dataset = DetectionDataset(make_table(tmp_path))
    image, target = dataset[0]
    assert isinstance(image, tv_tensors.Image)
    assert (image.dtype, image.shape) == (torch.uint8, (3, 16, 20))
    assert image[:, 0, 0].tolist() == [0, 100, 200]
    boxes = target.pop("boxes")
    assert isinstance(boxes, tv_tensors.BoundingBoxes)
    assert (boxes.format.value, boxes.canvas_size, boxes.dtype) == ("XYXY", (16, 20), torch.float32)
    assert boxes.tolist() == BOXES[:2]
    expected = {"labels": torch.tensor([1, 2]), "area": torch.tensor([100.0, 200]), "iscrowd": torch.tensor([0, 1])}
    for name, tensor in expected.items():
        assert type(target[name]) is torch.Tensor
        torch.testing.assert_close(target.pop(name), tensor)
    assert (target, type(target["image_id"])) == ({"image_id": 0, "is_duplicate": False}, int)


def test_an_image_without_objects_has_boxes_of_no_rows(tmp_path):
    _, target = DetectionDataset(make_table(tmp_path), extra_fields=["difficult"])[1]
    assert target["boxes"].shape == (0, 4)
    assert target["labels"].shape == target["area"].shape == target["difficult"].shape == (0,)


def test_first_label_shifts_the_class_ids(tmp_path):
    table = make_table(tmp_path)
    assert DetectionDataset(table, first_label=0)[0][1]["labels"].tolist() == [0, 1]
    assert DetectionDataset(table, first_label=5)[0][1]["labels"].tolist() == [5, 6]


def test_extra_fields_come_from_the_table(tmp_path):
    names = ["difficult", "occluded", "truncated"]
    _, target = DetectionDataset(make_table(tmp_path), extra_fields=names)[2]
    assert [target[name].tolist() for name in names] == [
        [False, True, False],
        [False, False, False],
        [False, False, True],
    ]
    assert target["difficult"].dtype == torch.bool


def test_indices_may_be_negative_or_numpys_and_end_where_the_table_ends(tmp_path):
    dataset = DetectionDataset(make_table(tmp_path))
    assert len(dataset) == 3
    assert dataset[-1][1]["image_id"] == 2
    assert dataset[np.int64(1)][1]["image_id"] == 1
    assert [target["image_id"] for _, target in dataset] == [0, 1, 2]
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"index {index} .* 3 images"):
            dataset[index]
    with pytest.raises(TypeError):
        dataset[1.0]
    assert not hasattr(dataset, "__getitems__")


def test_boxes_are_clipped_to_the_image_and_their_rows_kept(tmp_path):
    dataset = DetectionDataset(make_table(tmp_path))
    _, target = dataset[2]
    assert target["boxes"].tolist() == [[5, 5, 5, 9], [15, 5, 20, 16], [2, 2, 4, 6]]
    assert target["area"].tolist() == [0, 55, 8]


def test_the_decoded_size_wins_or_is_refused(tmp_path):
    table = make_table(tmp_path, sizes=((20, 16), (0, 0), (20, 16)), stored=((10, 8), (10, 8), (20, 16)))
    _, target = DetectionDataset(table)[0]
    assert target["boxes"].canvas_size == (8, 10)
    assert target["boxes"].tolist() == [[1, 2, 10, 8], [0, 0, 10, 8]]
    strict = DetectionDataset(table, reading=ImageReading(size_mismatch="raise"))
    with pytest.raises(ImageError, match=r"0\.png: the image is 10x8, its annotation says 20x16"):
        strict[0]
    assert strict[1][1]["boxes"].canvas_size == (8, 10)  # 0 means unknown
    assert strict[2][1]["boxes"].canvas_size == (16, 20)


def test_exif_orientation_decides_which_pixels_the_boxes_refer_to(tmp_path):
    upright = make_table(tmp_path, sizes=((16, 20),) * 3, stored=((20, 16),) * 3, orientation=6)
    assert DetectionDataset(upright, reading=ImageReading(size_mismatch="raise"))[0][1]["boxes"].canvas_size == (20, 16)
    stored = make_table(tmp_path, orientation=6)
    as_stored = DetectionDataset(stored, reading=ImageReading(exif_orientation=False, size_mismatch="raise"))
    assert as_stored[0][1]["boxes"].canvas_size == (16, 20)


class UserReading(ImageReading):
    def __init__(self):
        super().__init__()


@pytest.mark.parametrize("reading", [ImageReading(), ImageReading(size_mismatch="raise"), UserReading()])
def test_boxes_on_the_stored_pixels_of_an_image_that_exif_turns_are_refused(tmp_path, reading):
    table = make_table(tmp_path, orientation=6)
    message = r"0\.png: EXIF turns the image from 20x16 to 16x20.* as stored.*exif_orientation=False"
    with pytest.raises(ImageError, match=message):
        DetectionDataset(table, reading=reading)[0]


def test_exchanged_sides_are_no_affair_of_exif_where_it_turns_nothing(tmp_path):
    table = make_table(tmp_path, sizes=((16, 20),) * 3, stored=((20, 16),) * 3, orientation=3)
    assert DetectionDataset(table)[0][1]["boxes"].canvas_size == (16, 20)


def test_a_wrong_size_in_the_annotation_loses_no_box(tmp_path):
    for name in ("JPEGImages", "Annotations"):
        (tmp_path / name).mkdir()
    Image.new("RGB", (400, 400)).save(tmp_path / "JPEGImages" / "a.jpg")
    boxes = [(10, 10, 50, 50), (200, 210, 390, 380)]
    write_voc_xml(
        tmp_path / "Annotations" / "a.xml", filename="a.jpg", width=100, height=100, names=["x", "x"], boxes=boxes
    )
    table = read_annotations("voc", tmp_path, use_cache=False, progress=False)
    assert table.report.counts == {("out_of_image", "keep"): 1}
    assert DetectionDataset(table)[0][1]["boxes"].tolist() == [list(box) for box in boxes]


@pytest.mark.parametrize("field", ["labels", "area", "iscrowd", "difficult"])
def test_a_transform_that_leaves_rows_behind_is_refused(tmp_path, field):
    def drop(image, target):
        other_fields = {"labels", "area", "iscrowd", "difficult"} - {field}
        return image, {**target, "boxes": target["boxes"][:1], **{name: target[name][:1] for name in other_fields}}

    dataset = DetectionDataset(make_table(tmp_path), transforms=drop, extra_fields=["difficult"])
    with pytest.raises(ValueError, match=f"'{field}' has 2 rows for 1 boxes; .*SanitizeObjects"):
        dataset[0]


def test_transforms_get_image_and_target_and_decide_the_result(tmp_path):
    table = make_table(tmp_path)
    assert DetectionDataset(table, transforms=lambda image, target: (image.sum(), len(target)))[0][1] == 6
    fields = {"extra_fields": ["difficult", "occluded", "truncated"]}
    _, target = DetectionDataset(table, transforms=SanitizeObjects(), **fields)[2]
    assert target["labels"].tolist() == [1, 2]
    assert target["difficult"].tolist() == [True, False]
    image, target = DetectionDataset(table, transforms=detection_transforms(False, size=8), **fields)[2]
    assert image.dtype == torch.float32
    assert len(target["boxes"]) == len(target["truncated"]) == len(target["area"])


def test_an_error_in_a_transform_names_the_file(tmp_path):
    def fail(image, target):
        raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck") as caught:
        DetectionDataset(make_table(tmp_path), transforms=fail)[2]
    assert "2.png" in caught.value.__notes__[0]


def test_an_image_that_cannot_be_decoded_is_named(tmp_path):
    dataset = DetectionDataset(make_table(tmp_path))
    (tmp_path / "images" / "1.png").write_bytes(b"")
    with pytest.raises(ImageError, match=r"1\.png"):
        dataset[1]


def test_samples_own_their_memory(tmp_path):
    table = make_table(tmp_path)
    dataset = DetectionDataset(table, extra_fields=["difficult"])
    _, target = dataset[0]
    for name in ("boxes", "labels", "area", "iscrowd", "difficult"):
        target[name].zero_()
    assert table.boxes[0].tolist() == BOXES[0]
    assert dataset[0][1]["labels"].tolist() == [1, 2]
    assert dataset[0][1]["difficult"].tolist() == [True, False]


def test_the_data_set_pickles_as_small_as_its_table(tmp_path):
    table = make_table(tmp_path)
    dataset = DetectionDataset(table, first_label=0, extra_fields=["difficult"])
    pickled = pickle.dumps(dataset)
    assert len(pickled) < len(pickle.dumps(table)) + 500
    unpickled = pickle.loads(pickled)
    assert torch.equal(unpickled[0][0], dataset[0][0])
    assert unpickled[0][1]["labels"].tolist() == [0, 1]
    assert "difficult" in unpickled[0][1]


def test_reading_samples_leaves_nothing_behind(tmp_path):
    dataset = DetectionDataset(make_table(tmp_path))
    attributes_before = set(vars(dataset))
    list(dataset)
    assert set(vars(dataset)) == attributes_before
    # One attribute per argument and no container that grows with the images.
    own_state = {name: value for name, value in vars(dataset).items() if name != "table"}
    assert len(pickle.dumps(own_state)) < 360


@pytest.mark.parametrize("arguments", [{"extra_fields": ["colour"]}, {"first_label": -1}])
def test_wrong_arguments_are_refused(tmp_path, arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        DetectionDataset(make_table(tmp_path), **arguments)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("size_mismatch", "ignore", ValueError),
        ("max_pixels", 0, ValueError),
        ("max_pixels", 1e6, ValueError),
        ("decode", "quick", ValueError),
        ("decode", None, ValueError),
        ("exif_orientation", "no", TypeError),
    ],
)
def test_wrong_settings_of_reading_are_refused(name, value, error):
    with pytest.raises(error, match=f"{name}={value!r}"):
        ImageReading(**{name: value})


@pytest.mark.parametrize("reading", ["fast", {"decode": "fast"}, None])
def test_reading_that_is_no_image_reading_is_refused(tmp_path, reading):
    with pytest.raises(TypeError, match="is not an ImageReading"):
        DetectionDataset(make_table(tmp_path), reading=reading)
