"""Pictures: what is drawn, where, and what is left out."""

from __future__ import annotations

import pytest
import torch

from lit_loader.datamodules import draw_boxes, draw_labels, draw_points, label_texts

IMAGES = [torch.zeros(3, 80, 120), torch.full((3, 80, 120), 255, dtype=torch.uint8)]
POINTS = torch.tensor([[[20.0, 30], [100, 30], [60, 60]], [[10.0, 10], [20, 20], [900, 900]]])
SEEN = torch.tensor([[2, 1, 0], [2, 0, 0]], dtype=torch.uint8)
ZOOM = 2  # of images of this size
LIME, ORANGE, RED = (0, 255, 0), (255, 165, 0), (255, 0, 0)
WHITE, BLACK = (255, 255, 255), (0, 0, 0)


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
    pictures = [each.axes[0].images[0].get_array() for each in (figure, plain)]
    assert (pictures[0] != pictures[1]).any()  # the attribute's value


def test_weak_detections_are_left_out_with_their_points():
    found = {
        "boxes": torch.tensor([[10.0, 20, 110, 79], [0, 0, 5, 5]]),
        "labels": torch.tensor([1, 9]),
        "scores": torch.tensor([0.2, 0.9]),
        "keypoints": POINTS,
    }
    figure = draw_boxes(IMAGES, [found], class_names=("disc",), min_score=0.5)
    assert pixel(figure, 109.5, 50) == pixel(figure, *POINTS[0, 0]) == BLACK
    assert pixel(figure, *POINTS[1, 1]) == LIME


def test_wrong_labels_are_told_from_right_ones():
    figure = draw_labels(IMAGES, ["disc", "star"], truths=["disc", "square"])
    right, wrong = figure.axes[:2]
    assert (right.get_title(), wrong.get_title()) == ("disc", "star (square)")
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
