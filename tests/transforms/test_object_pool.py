"""Objects to paste, drawn by class weights: the class mix is as announced, and only objects with pixels are drawn."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lit_loader import AnnotationTable, CopyPaste
from lit_loader.annotations import Masks, RunLengths
from lit_loader.errors import SettingError
from tests.support.chi_square import assert_fits


def table_of(labels_by_image, *, class_names=("cat", "dog", "owl", "yak"), crowd=None, boxes=None):
    labels = [label for labels in labels_by_image for label in labels]
    return AnnotationTable(
        root=Path("/nowhere"),
        image_paths=[f"{number}.jpg" for number in range(len(labels_by_image))],
        class_names=class_names,
        widths=[100] * len(labels_by_image),
        heights=[80] * len(labels_by_image),
        offsets=np.cumsum([0, *map(len, labels_by_image)]),
        boxes=np.tile(np.float32([10, 10, 30, 30]), (len(labels), 1)) if boxes is None else boxes,
        labels=np.array(labels, dtype=np.int64),
        crowd=crowd,
    )


TABLES = (
    table_of([[0, 0, 0, 1], [], [2], [0] * 20]),
    table_of([[], [1, 1], [0, 2]], class_names=("owl", "cat", "dog")),
)


def drawn_objects(pool, tables, count=20_000):
    images, rows = pool.draw(7, 0, count)
    objects = []
    for image, row in zip(images.tolist(), rows.tolist(), strict=True):
        table = tables[0]
        if image >= tables[0].num_images:
            table = tables[1]
            image -= tables[0].num_images
        objects.append((table.class_names[table.labels[table.objects(image)][row]], id(table), image, row))
    return objects


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ("balanced", {"cat": 1 / 3, "dog": 1 / 3, "owl": 1 / 3, "yak": 0}),
        ({"cat": 1, "owl": 3}, {"cat": 0.25, "dog": 0, "owl": 0.75, "yak": 0}),
    ],
)
def test_classes_are_drawn_in_proportion_to_their_weights(weights, shares):
    mix = CopyPaste(class_weights=weights)
    assert mix.expected_pasted(TABLES) == pytest.approx(shares)
    objects = drawn_objects(mix.pool(TABLES), TABLES)
    names = [name for name, share in shares.items() if share]
    counts = [sum(name == drawn[0] for drawn in objects) for name in names]
    assert sum(counts) == len(objects)
    assert_fits(counts, [shares[name] for name in names])
    # The objects of a class have equal chances, in both tables: 25 cats.
    cats = [drawn for drawn in objects if drawn[0] == "cat"]
    assert_fits([cats.count(cat) for cat in sorted(set(cats))], np.full(25, 1 / 25))


def test_draws_are_a_function_of_key_and_position():
    pool = CopyPaste(class_weights="balanced").pool(TABLES)
    images, rows = pool.draw(3, 0, 50)
    copy = pickle.loads(pickle.dumps(pool))
    assert all(np.array_equal(x, y[10:20]) for x, y in zip(copy.draw(3, 10, 20), (images, rows), strict=True))
    assert not np.array_equal(pool.draw(4, 0, 50)[0], images)
    assert len(pickle.dumps(CopyPaste(class_weights="balanced").pool(TABLES))) == len(pickle.dumps(pool))


def test_crowds_and_boxes_without_area_are_never_drawn():
    boxes = np.float32([[0, 0, 9, 9], [5, 5, 5, 9], [100, 0, 120, 9], [-9, 0, 0, 9], [95, 0, 120, 9]])
    tables = (table_of([[0, 0, 1, 1, 1]], boxes=boxes, crowd=[True, False, False, False, False]),)
    mix = CopyPaste(class_weights="balanced")
    assert mix.expected_pasted(tables) == {"cat": 0, "dog": 1, "owl": 0, "yak": 0}
    assert set(mix.pool(tables).draw(1, 0, 100)[1].tolist()) == {4}


def test_objects_without_a_mask_are_never_drawn():
    square = [[10, 10, 30, 10, 30, 30, 10, 30]]
    runs = RunLengths(np.array([900, 100, 7000], dtype=np.uint32), 80, 100)
    masks = Masks.from_rows([square, None, None, runs, None])
    tables = (replace(table_of([[0, 1, 1], [2, 0]]), masks=masks), table_of([[1]]))
    mix = CopyPaste(class_weights="balanced")
    assert mix.expected_pasted(tables) == pytest.approx({"cat": 1 / 3, "dog": 1 / 3, "owl": 1 / 3, "yak": 0})
    images, rows = mix.pool(tables).draw(1, 0, 200)
    assert set(zip(images.tolist(), rows.tolist(), strict=True)) == {(0, 0), (1, 0), (2, 0)}
    assert CopyPaste().expected_pasted(tables[:1]) == {"cat": 0.5, "dog": 0, "owl": 0.5, "yak": 0}


def test_objects_of_images_of_unknown_size_are_drawn():
    table = replace(table_of([[0, 1]]), widths=[0], heights=[0])
    assert CopyPaste().expected_pasted([table]) == {"cat": 0.5, "dog": 0.5, "owl": 0, "yak": 0}


def test_without_weights_classes_are_expected_as_images_are_drawn():
    mix = CopyPaste()
    assert mix.pool(TABLES) is None
    # Images with objects: 3/4 cat and 1/4 dog, owl, cat; in the second table cat, and half owl and half dog.
    expected = {"cat": (0.75 + 1 + 1) / 5, "dog": (0.25 + 0.5) / 5, "owl": (1 + 0.5) / 5, "yak": 0}
    assert mix.expected_pasted(TABLES) == pytest.approx(expected)
    visits = [0, 5, 1, 3, 0, 0, 0]
    assert mix.expected_pasted(TABLES, visits) == pytest.approx({"cat": 0.75, "dog": 0, "owl": 0.25, "yak": 0})
    assert set(mix.expected_pasted([table_of([[]])]).values()) == {0}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"lion": 1}, "has 'lion', but the classes are .*cat"),
        ({"cat": 1, "yak": 2}, "has 'yak', but this class has no objects; .*set its weight to 0"),
    ],
)
def test_weights_of_classes_without_objects_are_refused(weights, message):
    with pytest.raises(SettingError, match=message):
        CopyPaste(class_weights=weights).pool(TABLES)


def test_a_set_without_objects_is_refused():
    for tables, message in (([table_of([[], []])], "needs an object that is not a crowd"), ([], "annotation tables")):
        with pytest.raises(SettingError, match=message):
            CopyPaste(class_weights="balanced").pool(tables)


def test_an_object_takes_at_most_16_bytes():
    table = table_of([[0, 1] * 5] * 1000)
    pool = CopyPaste(class_weights="balanced").pool([table])
    tracemalloc.start()
    pool.draw(0, 0, 1)
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 8 * table.num_objects < num_bytes <= 16 * table.num_objects
