"""Plots of statistics: every kind of set is drawn, and names from files are drawn literally."""

from __future__ import annotations

import io
import warnings
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from lit_loader.annotations import Attribute
from lit_loader.inspection.statistics import statistics_of
from lit_loader.inspection.statistics_plots import ShownClasses, draw_sampling, draw_statistics, figure_bytes
from lit_loader.inspection.statistics_sampling import sampling_statistics
from tests.support.any_table import small_table
from tests.support.extras import needs

pytestmark = needs("plot")

HOSTILE = ("$x_1^{2$", "_hidden", "\x1b[31mred\n", "語<b>", "a" * 300, r"\frac$")


def table_of(class_names, *, num_images=30, **columns):
    rng = np.random.default_rng(0)
    labels = np.concatenate([np.arange(len(class_names)), rng.integers(0, len(class_names), num_images)])
    num_objects = len(labels)
    corners = rng.uniform(0, 40, (num_objects, 2))
    default_columns = {
        "image_paths": [f"{i}.jpg" for i in range(num_images)],
        "class_names": class_names,
        "widths": rng.integers(60, 90, num_images),
        "heights": rng.integers(60, 90, num_images),
        "offsets": np.linspace(0, num_objects, num_images + 1).astype(int),
        "boxes": np.hstack([corners, corners + rng.uniform(3, 40, (num_objects, 2))]),
        "labels": labels,
        "attributes": {"_pose $": Attribute(ids=labels % 2, names=("$", "_up"))},
        "keypoints": rng.uniform(0, 60, (num_objects, 2, 2)),
        "visibility": rng.integers(0, 3, (num_objects, 2)),
        "keypoint_names": ("left $eye$", "_right"),
        "normalization_pair": (0, 1),
    }
    return small_table(**(default_columns | columns))


def titles(figure):
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def texts(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def panel(figure, title):
    (axes,) = (axes for axes in figure.axes if axes.get_title().startswith(title))
    return axes


def test_names_from_files_are_drawn_literally_and_without_warnings():
    table = table_of(HOSTILE)
    tables = {name: table.select(range(count)) for name, count in {"_train": 30, "$val$": 3, "\x1btest": 1}.items()}
    figure = draw_statistics(statistics_of(tables), sampling_statistics(table))
    with warnings.catch_warnings(action="error"):
        data = figure_bytes(figure, "png")
    image = Image.open(io.BytesIO(data))
    assert image.format == "PNG"
    assert image.width == 1440
    axes = panel(figure, "objects of each class")
    assert all("\x1b" not in name and len(name) <= 22 for name in texts(axes))
    legend = axes.get_legend()
    assert [text.get_text().replace("\\$", "$") for text in legend.get_texts()] == [" _train", "$val$", "\\x1btest"]


def test_many_classes_show_the_most_frequent_and_the_rarest():
    names = [f"class {c}" for c in range(300)]
    table = table_of(names, num_images=600)
    table = replace(table, class_names=(*names, "absent"))
    figure = draw_statistics(statistics_of({"train": table}), sampling_statistics(table))
    axes = panel(figure, "objects of each class")
    assert axes.get_title().endswith("(276 more between them, 1 without objects)")
    counts = table.class_counts()
    numbers = [int(text.split()[1]) for text in texts(axes)]
    assert len(numbers) == 24
    assert counts[numbers[:12]].min() >= np.sort(counts)[-12]
    assert counts[numbers[12:]].max() <= np.sort(counts[counts > 0])[11]
    assert max(label.get_fontsize() for label in axes.get_yticklabels()) <= 8


def test_shown_classes_fit_and_are_counted():
    counts = np.array([5, 0, 9, 1, 7, 3])
    assert ShownClasses.of(counts, 9) == ([2, 4, 0, 5, 3], 5, 0, 1)
    assert ShownClasses.of(counts, 3) == ([2, 4, 3], 2, 2, 1)
    assert ShownClasses.of(counts, 3).note == "2 more between them, 1 without objects"
    assert ShownClasses.of(np.zeros(0), 3).note == ""


def test_measures_without_variation_and_certain_points_have_no_panel():
    plain = {"widths": [64] * 30, "heights": [48] * 30, "visibility": np.full((33, 2), 2)}
    figure = draw_statistics(statistics_of({"train": table_of(("a", "b", "c"), **plain)}))
    assert not [title for title in titles(figure) if title.startswith(("image", "visibility"))]
    varied = titles(draw_statistics(statistics_of({"train": table_of(("a", "b", "c"))})))
    assert "image width, px" in varied
    assert "visibility of points, share of objects" in varied


@pytest.mark.parametrize(
    "columns",
    [
        {"image_paths": [], "widths": [], "heights": [], "offsets": [0], "boxes": np.zeros((0, 4)), "labels": []},
        {"offsets": [0, 0], "boxes": np.zeros((0, 4)), "labels": []},
        {"widths": [0], "heights": [0]},
        {"boxes": [[0, 0, 9, 9]]},
        {},
    ],
    ids=["no image", "no object", "unknown size", "whole image", "one object"],
)
def test_smallest_sets_are_drawn(columns):
    table = small_table(**columns)
    sampling = sampling_statistics(table)
    assert b"<svg" in figure_bytes(draw_statistics(statistics_of({"train": table}), sampling), "svg")
    assert draw_sampling(sampling).axes


def test_sets_with_other_points_share_a_panel():
    table = table_of(("a", "b"))
    other = replace(table, keypoint_names=("_right", "nose"))
    axes = panel(draw_statistics(statistics_of({"train": table, "val": other})), "visibility")
    assert texts(axes) == [r"left \$eye\$", " _right", "nose"]


def test_shuffles_of_shards_have_a_panel_with_their_requests():
    table = replace(table_of(("a", "b")), shards=np.arange(30) // 10)
    sampling = sampling_statistics(table)
    axes = panel(draw_sampling(sampling), "score of the shuffle")
    assert "block_shuffle" in texts(axes)
    assert [text.get_text() for text in axes.texts][1] == f"{sampling.samplers['sampler=sequential'].shuffle.score:.3f}"
    samplers = {name: replace(part, requests=0.25) for name, part in sampling.samplers.items()}
    axes = panel(draw_sampling(replace(sampling, samplers=samplers)), "score of the shuffle")
    assert axes.texts[0].get_text().endswith(", 0.25 requests")
    assert not any("score" in title for title in titles(draw_sampling(sampling_statistics(table_of(("a", "b"))))))
