"""Pictures: objects, their places, and the objects that are left out."""

from __future__ import annotations

import io
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from lit_loader.datamodules import (
    ClassReport,
    draw_boxes,
    draw_class_report,
    draw_labels,
    draw_points,
    label_texts,
    pictures,
)

IMAGES = [torch.zeros(3, 80, 120), torch.full((3, 80, 120), 255, dtype=torch.uint8)]
POINTS = torch.tensor([[[20.0, 30], [100, 30], [60, 60]], [[10.0, 10], [20, 20], [900, 900]]])
SEEN = torch.tensor([[2, 1, 0], [2, 0, 0]], dtype=torch.uint8)
ZOOM = 3  # of images of this size
LIME = (0, 255, 0)
ORANGE = (255, 165, 0)
RED = (255, 0, 0)
WHITE = (255, 255, 255)
BLACK = (0, 0, 0)


def pixel(figure, x, y, image=0):
    return tuple(figure.axes[image].images[0].get_array()[int(y * ZOOM), int(x * ZOOM)].tolist())


def test_points_are_drawn_where_they_are_and_absent_ones_are_not():
    figure = draw_points(IMAGES, POINTS, SEEN, texts=["a", "b"], title="points")
    assert [pixel(figure, *point) for point in POINTS[0]] == [LIME, ORANGE, BLACK]
    assert [axis.get_title() for axis in figure.axes[:2]] == ["a", "b"]
    assert pixel(draw_points(IMAGES, POINTS), *POINTS[0, 2]) == LIME


def test_predicted_points_are_joined_to_the_true_ones():
    figure = draw_points(IMAGES, POINTS, SEEN, predicted=POINTS + 10)
    for k, joint in enumerate([WHITE, WHITE, BLACK]):
        assert pixel(figure, *(POINTS[0, k] + 10)) == RED
        assert pixel(figure, *(POINTS[0, k] + 5)) == joint


def middle(first, second):
    return ((POINTS[0, first] + POINTS[0, second]) / 2).tolist()


@pytest.mark.parametrize("draw", ["points", "predicted points", "boxes"])
def test_limbs_join_present_points_and_none_to_an_absent_one(draw):
    skeleton = [(0, 1), (1, 2)]
    if draw == "boxes":
        target = {"boxes": torch.tensor([[10.0, 10, 110, 75]]), "labels": torch.tensor([1]), "keypoints": POINTS[:1]}
        figure = draw_boxes(IMAGES, [target | {"visibility": SEEN[:1]}], class_names=["a"], skeleton=skeleton)
    elif draw == "points":
        figure = draw_points(IMAGES, POINTS, SEEN, skeleton=skeleton)
    else:
        # All predicted points are present, and true points are not joined.
        figure = draw_points(IMAGES, POINTS, SEEN, predicted=POINTS + torch.tensor([0, 6]), skeleton=skeleton)
        for limb in skeleton:
            x, y = middle(*limb)
            assert pixel(figure, x, y + 6) == WHITE
            assert pixel(figure, x, y) == BLACK
        return
    assert pixel(figure, *middle(0, 1)) == WHITE
    assert pixel(figure, *middle(1, 2)) == BLACK


def test_boxes_bring_their_points_masks_and_attributes():
    masks = torch.zeros(2, 80, 120, dtype=torch.uint8)
    masks[0, 65:75, 5:15] = 1
    target = {
        "boxes": torch.tensor([[10.0, 20, 110, 79], [0, 0, 5, 5]]),
        "labels": torch.tensor([1, 2]),
        "keypoints": POINTS,
        "visibility": SEEN,
        "masks": masks,
        "finish": torch.tensor([1, -1]),
    }
    names = {"finish": ("plain", "dotted")}
    figure = draw_boxes(IMAGES, [target], class_names=("disc", "star"), attributes=names)
    assert pixel(figure, 10, 70) != BLACK != pixel(figure, 8, 70)
    assert pixel(figure, 109.5, 50) == (230, 25, 75)  # a side of the box
    assert pixel(figure, *POINTS[0, 1]) == ORANGE
    plain = draw_boxes(IMAGES, [target], class_names=("disc", "star"))
    pictures = [drawing.axes[0].images[0].get_array() for drawing in (figure, plain)]
    assert (pictures[0] != pictures[1]).any()  # the attribute's value


def test_true_boxes_are_to_the_left_of_predicted_ones():
    truth = {"boxes": torch.tensor([[10.0, 20, 50, 70]]), "labels": torch.tensor([1])}
    detection = {"boxes": torch.tensor([[60.0, 20, 110, 79]]), "labels": torch.tensor([1]), "scores": torch.ones(1)}
    (axis,) = draw_boxes(IMAGES[:1], [detection], truths=[truth], class_names=("disc",)).axes
    image = axis.images[0].get_array()
    width = 120 * ZOOM
    true_half = image[:, :width]
    predicted_half = image[:, -width:]
    assert (
        tuple(true_half[50 * ZOOM, 50 * ZOOM - 1]) == tuple(predicted_half[50 * ZOOM, 110 * ZOOM - 1]) == (230, 25, 75)
    )
    assert tuple(true_half[50 * ZOOM, 110 * ZOOM - 1]) == tuple(predicted_half[50 * ZOOM, 50 * ZOOM - 1]) == BLACK
    assert [text.get_text() for text in axis.texts] == ["ground truth", "predictions"]


def test_errors_are_red_and_few_objects_have_a_text(monkeypatch):
    is_wrong = torch.tensor([False] * 12 + [True] * 2)
    boxes = torch.tensor([[8.0 * i, 20, 8 * i + 6, 60] for i in range(14)])
    objects = {"boxes": boxes, "labels": torch.ones(14, dtype=torch.int64), "is_wrong": is_wrong}
    drawn_texts = []
    monkeypatch.setattr(
        pictures, "draw_texts", lambda canvas, boxes, texts, colours: drawn_texts.append(texts) or canvas
    )
    figure = draw_boxes(IMAGES, [objects], class_names=("disc",))
    assert pixel(figure, 8, 40) == (60, 180, 75)
    assert pixel(figure, 8 * 13, 40) == (230, 25, 75)
    assert [len(texts) for texts in drawn_texts] == [10]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["correct", "missed or false"]


@pytest.mark.parametrize("size", [(900, 1400), (300, 200), (20, 31)])
def test_a_pixel_of_a_tile_is_a_pixel_of_the_file(size):
    figure = draw_labels([torch.rand(3, *size)] * 3, ["a text"] * 3, title="images")
    for axis in figure.axes:
        box = axis.get_window_extent()
        height, width = axis.images[0].get_array().shape[:2]
        assert (round(box.width), round(box.height)) == (width, height)
        assert 300 < max(width, height) <= 448


def test_weak_detections_are_left_out_with_their_points():
    detections = {
        "boxes": torch.tensor([[10.0, 20, 110, 79], [0, 0, 5, 5]]),
        "labels": torch.tensor([1, 9]),
        "scores": torch.tensor([0.2, 0.9]),
        "keypoints": POINTS,
    }
    figure = draw_boxes(IMAGES, [detections], class_names=("disc",), min_score=0.5)
    assert pixel(figure, 109.5, 50) == pixel(figure, *POINTS[0, 0]) == BLACK
    assert pixel(figure, *POINTS[1, 1]) == LIME


def test_wrong_labels_are_told_from_right_ones():
    figure = draw_labels(IMAGES, ["disc", "star"], truths=["disc", "square"])
    right, wrong = figure.axes[:2]
    assert (right.get_title(), wrong.get_title()) == ("disc", "star (true: square)")
    assert right.title.get_color() != wrong.title.get_color()
    assert [axis.get_title() for axis in draw_labels(IMAGES, ["a", "b"]).axes[:2]] == ["a", "b"]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_no_more_than_max_images_are_drawn(count):
    images = IMAGES * 3
    for figure in (
        draw_labels(images, ["x"] * 6, max_images=count),
        draw_points(images, [*POINTS] * 3, max_images=count),
    ):
        assert sum(bool(axis.images) for axis in figure.axes) == count


def test_texts_of_labels():
    names = ("disc", "star")
    assert label_texts(torch.tensor([0, 1, 5]), names) == ["disc", "star", "label 5"]
    assert label_texts(torch.tensor([[1.0, 1], [0, 0]]), names) == ["disc, star", "none"]
    finish = {"finish": (torch.tensor([-1, 0]), ("plain",))}
    assert label_texts(torch.tensor([0, 1]), names, attributes=finish) == ["disc", "star, plain"]


def test_a_normalised_image_is_drawn_with_all_of_its_values():
    image = torch.linspace(-2, 2, 5).expand(3, 80, 5)
    drawn = draw_labels([image], ["x"]).axes[0].images[0].get_array()
    assert drawn[0, :: drawn.shape[1] // 5, 0].tolist() == [0, 64, 128, 191, 255]


def report_of(count, **more):
    names = [f"class {i}" for i in range(count)]
    natural = np.arange(1, count + 1) / (count * (count + 1) / 2)  # the last is the most frequent
    metrics = {"AP@50": {name: math.nan if i == 0 else i / count for i, name in enumerate(names)}}
    values = {"label": "class", "class_names": names, "natural": natural, "metrics": metrics}
    return ClassReport(**values | more)


def bars(axis):
    """Return the lengths of the bars of each series, and their texts."""
    lengths = [[patch.get_width() for patch in series] for series in axis.containers]
    return lengths, [text.get_text() for text in axis.texts]


def test_shares_and_metrics_of_classes_stand_side_by_side_from_the_most_frequent():
    expected = np.array([0.5, 0.3, 0.2])
    arrived = np.array([0.45, 0.35, 0.2])
    figure = draw_class_report([report_of(3, expected=expected, arrived=arrived)], title="classes, test")
    of_set, of_training, metric = figure.axes
    assert [label.get_text() for label in of_set.get_yticklabels()] == ["class 2", "class 1", "class 0"]
    assert bars(of_set) == ([[3 / 6, 2 / 6, 1 / 6]], ["50.0%", "33.3%", "16.7%"])
    assert bars(of_training)[0] == [[0.2, 0.3, 0.5], [0.2, 0.35, 0.45]]
    assert [text.get_text() for text in of_training.get_legend().get_texts()] == ["expected share", "arrived share"]
    assert bars(metric)[1] == ["0.667", "0.333", "n/a"]
    assert metric.get_title(loc="left") == "AP@50"
    assert figure.get_suptitle() == "classes, test"


def test_class_report_marks_unknown_shares_and_has_a_row_for_each_attribute():
    other = ClassReport(label="finish", class_names=("plain", "dotted"), arrived=np.array([0.1, 0.9]))
    figure = draw_class_report([report_of(3), other])
    assert len(figure.axes) == 6
    _, of_training, _, of_set, arrived, metric = figure.axes
    for axis in (of_training, of_set, metric):
        assert [text.get_text() for text in axis.texts] == ["not known"]
    assert bars(arrived)[0] == [[0.9, 0.1]]  # sorted by the known shares
    assert arrived.get_title(loc="left") == "arrived share"


@pytest.mark.soak
def test_eighty_classes_are_drawn_without_texts_over_each_other():
    figure = draw_class_report([report_of(80)])
    figure.savefig(io.BytesIO(), dpi=60)
    for texts in (figure.axes[0].get_yticklabels(), figure.axes[0].texts):
        boxes = sorted((text.get_window_extent() for text in texts), key=lambda box: box.y0)
        assert len(boxes) == 80
        assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))


def test_class_report_keeps_the_most_frequent_and_the_rarest_classes():
    figure = draw_class_report([report_of(300)], max_classes=6)
    axis = figure.axes[0]
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == [f"class {i}" for i in (299, 298, 297, 2, 1, 0)]
    assert "294 of 300, of medium frequency, are left out" in axis.get_ylabel()
    stream = io.BytesIO()
    figure.savefig(stream, dpi=40)
    assert Image.open(stream).size[1] < 200


def test_no_report_is_refused():
    with pytest.raises(ValueError, match="0 reports and max_classes=100"):
        draw_class_report([])
