"""Digests of tables: which change of a table changes which digest, and what none of them depends on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lit_loader.annotations import AnnotationTable, Attribute, Masks, ReadReport
from lit_loader.annotations.fingerprint import KINDS, annotation_digest, table_digests
from tests.support.annotation_tables import SQUARE, full_table


def changed(table, other):
    """Return the kinds that differ."""
    old = table_digests(table)
    new = table_digests(other)
    return {kind for kind in KINDS if old.get(kind) != new.get(kind)}


CHANGES = {
    "label": ({"labels": [0, 0, 1]}, "labels"),
    "box": ({"boxes": [[1, 2, 3, 4], [5.5, 6, 7, 8], [0, 0, 9, 9.5]]}, "boxes"),
    "object of another image": ({"offsets": [0, 1, 2, 3]}, "boxes"),
    "flag": ({"crowd": [True, False, False]}, "flags"),
    "another flag": ({"crowd": [True, True, False], "difficult": [False, False, False]}, "flags"),
    "area": ({"areas": [12.5, 1, 0]}, "areas"),
    "size": ({"widths": [100, 0, 51]}, "sizes"),
    "region": ({"regions": [[0, 0, 100, 80], [0, 0, 0, 0], [10, 20, 60, 81]]}, "regions"),
    "no regions": ({"regions": None}, "regions"),
    "points": ({"keypoints": np.arange(1, 13).reshape(3, 2, 2)}, "keypoints"),
    "visibility": ({"visibility": [[0, 1], [2, 2], [1, 1]]}, "keypoints"),
    "masks": ({"masks": Masks.from_rows([[SQUARE], None, None])}, "masks"),
    "attribute": ({"attributes": {"pose": Attribute(ids=np.array([1, -1, 1]), names=("front", "side"))}}, "attributes"),
    "name of an attribute": (
        {"attributes": {"view": Attribute(ids=np.array([0, -1, 1]), names=("front", "side"))}},
        "attributes",
    ),
    "moved image": ({"image_paths": ["images/a.jpg", "other/b.png", "images/ä c.jpg"]}, "image paths"),
    "order of images": ({"image_paths": ["b.png", "images/a.jpg", "images/ä c.jpg"]}, "image paths"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_changes_the_digest_of_its_kind_only(name):
    change, kind = CHANGES[name]
    assert changed(full_table(), full_table(**change)) == {kind}


@pytest.mark.parametrize(
    "change",
    [
        {"root": "/elsewhere"},
        {"report": ReadReport()},
        {"image_stamps": [8, 9, 10]},
        {"object_ids": None, "source_ids": None, "category_ids": None},
        {"image_ids": ["x", "y", "z"]},
        {"split": None},
        # The same objects under other class numbers.
        {"class_names": ("owl", "dog", "cat"), "labels": [1, 2, 1]},
        {"attributes": {"pose": Attribute(ids=np.array([1, -1, 0]), names=("side", "front"))}},
    ],
    ids=lambda change: ", ".join(change),
)
def test_numbers_places_and_the_report_do_not_count(change):
    assert not changed(full_table(), replace(full_table(), **change))


def test_a_table_from_the_cache_has_the_same_digests(tmp_path):
    table = full_table()
    table.save(tmp_path / "table.arrow", key="k")
    assert not changed(table, AnnotationTable.load(tmp_path / "table.arrow", key="k"))


@pytest.mark.parametrize("rows", [[], [1]])
def test_tables_without_objects_have_digests(rows):
    assert table_digests(full_table().select(rows)).keys() == {*KINDS}


def test_images_without_objects_have_the_same_annotation_digest():
    table = full_table().select([1, 1])
    assert table.num_objects == 0
    assert annotation_digest(table, 0) == annotation_digest(table, 1)
