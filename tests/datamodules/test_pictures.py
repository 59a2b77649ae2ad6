"""Pictures: what is drawn, where, and what is left out."""

from __future__ import annotations

import pytest
import torch

from lit_loader.datamodules import draw_boxes, draw_labels, draw_points, label_texts

IMAGES = [torch.zeros(3, 20, 30), torch.full((3, 20, 30), 255, dtype=torch.uint8)]
POINTS = torch.tensor([[[2.0, 3], [10, 3], [6, 12]], [[1.0, 1], [2, 2], [99, 99]]])
SEEN = torch.tensor([[2, 1, 0], [2, 0, 0]], dtype=torch.uint8)


def drawn(axis, marker="o"):
    return [line for line in axis.lines if line.get_marker() == marker]


def test_points_are_drawn_where_they_are_absent_ones_are_not():
    figure = draw_points(IMAGES, POINTS, SEEN, texts=["a", "b"], title="points")
    first, second = figure.axes[:2]
    assert [(*line.get_xdata(), *line.get_ydata()) for line in drawn(first)] == [(2, 3), (10, 3)]
    assert [(*line.get_xdata(), *line.get_ydata()) for line in drawn(second)] == [(1, 1)]
    visible, hidden = drawn(first)
    assert hidden.get_markerfacecolor() == "none" != visible.get_markerfacecolor()
    assert visible.get_markeredgecolor() != hidden.get_markeredgecolor()
    assert [axis.get_title() for axis in figure.axes[:2]] == ["a", "b"]
    assert len(drawn(draw_points(IMAGES, POINTS).axes[0])) == 3


def test_predicted_points_stand_beside_the_true_ones_and_are_joined_to_them():
    figure = draw_points(IMAGES, POINTS, SEEN, predicted=POINTS + 1)
    first = figure.axes[0]
    assert len(drawn(first)) == 2
    assert len(drawn(first, "x")) == 3
    joins = [line for line in first.lines if len(line.get_xdata()) == 2]
    assert [tuple(line.get_xdata()) for line in joins] == [(2, 3), (10, 11)]
    assert joins[0].get_color() == drawn(first)[0].get_markeredgecolor()


def test_pixels_and_points_share_coordinates_and_a_point_outside_shrinks_nothing():
    axis = draw_points(IMAGES, POINTS).axes[1]
    assert axis.images[0].get_extent() == [0, 30, 20, 0]
    assert (axis.get_xlim(), axis.get_ylim()) == ((0, 30), (20, 0))


def test_boxes_bring_their_points_and_attributes():
    target = {
        "boxes": torch.tensor([[1.0, 1, 12, 14], [0, 0, 5, 5]]),
        "labels": torch.tensor([1, 2]),
        "keypoints": POINTS,
        "visibility": SEEN,
        "finish": torch.tensor([1, -1]),
    }
    names = {"finish": ("plain", "dotted")}
    axis = draw_boxes(IMAGES, [target], class_names=("disc", "star"), attributes=names).axes[0]
    assert [text.get_text() for text in axis.texts] == ["disc, dotted", "star"]
    assert (len(axis.patches), len(drawn(axis))) == (2, 3)
    plain = draw_boxes(IMAGES, [target], class_names=("disc", "star")).axes[0]
    assert [text.get_text() for text in plain.texts] == ["disc", "star"]


def test_weak_detections_are_left_out_with_their_points():
    found = {
        "boxes": torch.tensor([[1.0, 1, 12, 14], [0, 0, 5, 5]]),
        "labels": torch.tensor([1, 9]),
        "scores": torch.tensor([0.2, 0.9]),
        "keypoints": POINTS,
    }
    axis = draw_boxes(IMAGES, [found], class_names=("disc",), min_score=0.5).axes[0]
    assert [text.get_text() for text in axis.texts] == ["label 8 0.90"]
    assert (len(axis.patches), len(drawn(axis))) == (1, 3)


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
