"""Fingerprints of tables: which change of a table changes which digest, and what none of them depends on."""

from __future__ import annotations

import numpy as np
import pytest

from lit_loader.annotations import AnnotationTable, Attribute, Masks, ReadReport
from lit_loader.annotations.fingerprint import KIND_BY_COLUMN, NOT_COMPARED, table_fingerprint
from lit_loader.annotations.table import COLUMNS
from tests.support.annotation_tables import SQUARE, full_table


def changed(table, other):
    """Return the names of the digests that differ."""
    old = table_fingerprint(table).digests
    new = table_fingerprint(other).digests
    return {name for name in {*old, *new} if old.get(name) != new.get(name)}


CHANGES = {
    "label": ({"labels": [0, 0, 1]}, {"labels", "content"}),
    "box": ({"boxes": [[1, 2, 3, 4], [5.5, 6, 7, 8], [0, 0, 9, 9.5]]}, {"boxes", "content"}),
    "flag": ({"crowd": [True, False, False]}, {"flags", "content"}),
    "other flag": ({"crowd": [True, True, False], "difficult": [False, False, False]}, {"flags", "content"}),
    "area": ({"areas": [12.5, 1, 0]}, {"areas", "content"}),
    "size": ({"widths": [100, 0, 51]}, {"sizes", "content"}),
    "region": ({"regions": [[0, 0, 100, 80], [0, 0, 0, 0], [10, 20, 60, 81]]}, {"regions", "content"}),
    "no regions": ({"regions": None}, {"regions", "content"}),
    "points": ({"keypoints": np.arange(1, 13).reshape(3, 2, 2)}, {"keypoints", "content"}),
    "visibility": ({"visibility": [[0, 1], [2, 2], [1, 1]]}, {"keypoints", "content"}),
    "masks": ({"masks": Masks.from_rows([[SQUARE], None, None])}, {"masks"}),
    "attribute": (
        {"attributes": {"pose": Attribute(ids=np.array([1, -1, 1]), names=("front", "side"))}},
        {"attributes", "content"},
    ),
    "name of an attribute": (
        {"attributes": {"view": Attribute(ids=np.array([0, -1, 1]), names=("front", "side"))}},
        {"attributes", "content"},
    ),
    "moved image": ({"image_paths": ["images/a.jpg", "other/b.png", "images/ä c.jpg"]}, None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_found_by_its_kind(name):
    change, expected = CHANGES[name]
    digests = changed(full_table(), full_table(**change))
    assert digests == expected if expected else "images" in digests


def test_every_column_is_compared_or_listed_as_not_compared():
    compared = {*KIND_BY_COLUMN, "image_paths"}
    assert compared | NOT_COMPARED == COLUMNS.keys()
    assert not compared & NOT_COMPARED


@pytest.mark.parametrize(
    "change",
    [
        {"root": "/elsewhere"},
        {"report": ReadReport()},
        {"image_stamps": [8, 9, 10]},
        {"object_ids": None, "source_ids": None, "category_ids": None},
        {"image_ids": ["x", "y", "z"]},
        {"split": None},
        {"areas": [12.5, -np.nan, -0.0]},
        # The same objects under other class numbers.
        {"class_names": ("owl", "dog", "cat"), "labels": [1, 2, 1]},
        {"attributes": {"pose": Attribute(ids=np.array([1, -1, 0]), names=("side", "front"))}},
    ],
    ids=lambda change: ", ".join(change),
)
def test_numbers_places_and_the_report_do_not_count(change):
    assert not changed(full_table(), full_table(**change))


def small_table(order=(0, 1), labels=(0, 1)):
    boxes = np.array([[0, 0, 5, 5], [3, 3, 9, 9]])
    return AnnotationTable(
        root="/d",
        image_paths=["a.jpg"],
        class_names=("cat", "dog"),
        offsets=[0, 2],
        boxes=boxes[list(order)],
        labels=np.array(labels)[list(order)],
    )


def test_the_order_of_the_objects_of_an_image_does_not_count():
    assert not changed(small_table(), small_table(order=(1, 0)))


def test_swapped_labels_of_two_objects_are_a_change():
    assert changed(small_table(), small_table(labels=(1, 0))) == {"content"}


def test_objects_that_move_to_another_image_are_a_change():
    first = full_table(masks=None)
    assert {"boxes", "labels", "content"} <= changed(first, full_table(masks=None, offsets=[0, 1, 2, 3]))


def test_the_order_of_images_changes_only_the_order():
    table = full_table(masks=None)
    assert changed(table, table.select([2, 0, 1])) == {"order"}


def test_rows_of_one_file_are_one_image():
    fingerprint = table_fingerprint(full_table().per_object())
    assert (fingerprint.num_images, fingerprint.num_objects) == (2, 3)


def test_a_table_from_the_cache_has_the_same_fingerprint(tmp_path):
    table = full_table()
    table.save(tmp_path / "table.arrow", key="k")
    assert not changed(table, AnnotationTable.load(tmp_path / "table.arrow", key="k"))


@pytest.mark.parametrize("rows", [[], [1]])
def test_tables_without_objects_have_a_fingerprint(rows):
    assert table_fingerprint(full_table().select(rows)).num_images == len(rows)


def test_the_digests_are_the_same_on_every_machine():
    # Written down once; another value means that older checkpoints would report a change.
    assert table_fingerprint(full_table()).digests == {
        "areas": "ddfb5cef125c59ce",
        "attributes": "7d18ece554b9635f",
        "boxes": "a6244b8da532d802",
        "content": "8f5e5786b6a1e2b3",
        "flags": "35c551384b70fecf",
        "images": "9b3457b140cf8fdd",
        "keypoints": "b6854fd688ccc469",
        "labels": "7acf186506745c88",
        "masks": "91b72ebd45fb0241",
        "order": "f0ff5ea0d4cf861a",
        "regions": "ec56b2a52859d5c8",
        "sizes": "50c1512b30fadf03",
    }
