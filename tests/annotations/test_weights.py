from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.annotations import AnnotationTable, Attribute, class_weights, image_labels, image_weights, label_counts


def table_of(*images, num_classes=3, values=None):
    """A table whose images hold objects of the given classes and, by ``values``, of an attribute "size"."""
    labels = [label for image in images for label in image]
    ids = np.array(labels if values is None else values, dtype=np.int64)
    return AnnotationTable(
        root="/",
        image_paths=[f"{i}.jpg" for i in range(len(images))],
        class_names=[f"c{i}" for i in range(num_classes)],
        offsets=np.cumsum([0, *map(len, images)]),
        boxes=np.zeros((len(labels), 4)),
        labels=np.array(labels, dtype=np.int64),
        attributes={"size": Attribute(ids=ids, names=("x", "y", "z"))},
    )


def test_balanced_weights_give_every_class_the_same_total():
    counts = np.array([4155, 372, 361])
    weights = class_weights(counts)
    np.testing.assert_allclose(weights * counts, counts.sum() / 3)
    assert weights.dtype == np.float64


def test_the_exponent_goes_from_natural_to_balanced():
    counts = [90, 9, 1]
    np.testing.assert_array_equal(class_weights(counts, exponent=0.0), 1.0)
    np.testing.assert_allclose(class_weights(counts, exponent=0.5), np.sqrt(class_weights(counts)))


def test_class_without_objects_has_weight_zero():
    np.testing.assert_allclose(class_weights([4, 0, 4]), [1, 0, 1])
    np.testing.assert_array_equal(class_weights([4, 0, 4], exponent=0.0), [1, 0, 1])
    assert class_weights([]).shape == (0,)
    assert class_weights([0]).tolist() == [0]


@pytest.mark.parametrize(
    ("counts", "exponent", "words"),
    [([-1], 1, "counts"), ([np.nan], 1, "counts"), ([[1]], 1, "counts")]
    + [([1], exponent, "exponent") for exponent in (-0.1, 1.1, np.nan)],
)
def test_invalid_counts_and_exponents_are_refused(counts, exponent, words):
    with pytest.raises(ValueError, match=words):
        class_weights(counts, exponent=exponent)


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [("mean", [1.0, 2.0, 1.0, 4.0]), ("max", [1.0, 4.0, 1.0, 4.0]), ("sum", [1.0, 6.0, 1.0, 4.0])],
)
def test_an_image_gets_the_mean_max_or_sum_of_its_objects(reduce, expected):
    table = table_of([0], [0, 0, 2], [], [2])
    weights = image_weights(table, [1.0, 9.0, 4.0], reduce=reduce)
    np.testing.assert_allclose(weights, expected)
    assert weights.dtype == np.float64


def test_images_without_objects_get_smallest_or_explicit_weight():
    table = table_of([2], [], [0, 2])
    assert image_weights(table, [1, 1, 5])[1] == 3.0
    assert image_weights(table, [1, 1, 5], empty_weight=0.0).tolist() == [5, 0, 3]
    assert image_weights(table_of([], []), [1, 1, 1]).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("weights", "options", "words"),
    [
        ([1, 2], {}, "one weight for each of 3 classes"),
        ([1, 2, -1], {}, "finite and >= 0"),
        ([1, 2, np.inf], {}, "finite and >= 0"),
        ([1, 2], {"by": "size"}, "one weight for each of 3 values of 'size'"),
        ([1, 2, 3], {"reduce": "median"}, "'mean', 'max' or 'sum'"),
        ([1, 2, 3], {"empty_weight": -1.0}, "empty_weight=-1.0"),
        ([1, 2, 3], {"empty_weight": np.nan}, "empty_weight"),
    ],
)
def test_invalid_weights_are_refused(weights, options, words):
    with pytest.raises(ValueError, match=words):
        image_weights(table_of([0]), weights, **options)


VALUES = st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 2)), max_size=5), max_size=6)


@given(VALUES)
def test_labels_by_an_attribute_leave_out_objects_without_a_value(images):
    table = table_of(*([c for c, _ in image] for image in images), values=[v for i in images for _, v in i])
    ids, names = table.labels_of("size")
    assert ids.tolist() == [value for image in images for _, value in image]
    assert names == ("x", "y", "z")
    labelled = [[value for _, value in image if value >= 0] for image in images]
    counts = [[image.count(value) for value in range(3)] for image in labelled]
    assert table.image_label_counts("size").tolist() == counts
    assert label_counts(table, "size").tolist() == np.sum([[0, 0, 0], *counts], axis=0).tolist()
    sets = image_labels(table, by="size")
    image_values = [sets.classes[sets.offsets[i] : sets.offsets[i + 1]].tolist() for i in range(len(images))]
    assert image_values == [sorted(set(image)) for image in labelled]
    weights = image_weights(table, [1.0, 2.0, 4.0], by="size", reduce="sum", empty_weight=9.0)
    assert weights.tolist() == [sum(2.0**value for value in image) if image else 9.0 for image in labelled]
    mean = image_weights(table, [1.0, 2.0, 4.0], by="size", empty_weight=9.0)
    lengths = np.array([max(1, len(image)) for image in labelled])
    np.testing.assert_allclose(mean, weights / lengths)


def test_labels_are_the_classes_unless_an_attribute_is_named():
    table = table_of([0, 1], [2], values=[2, 2, -1])
    ids, names = table.labels_of()
    assert ids is table.labels
    assert names == table.class_names
    sets = image_labels(table)
    assert sets.offsets.dtype == sets.classes.dtype == np.int64
    assert (sets.offsets.tolist(), sets.classes.tolist()) == ([0, 2, 3], [0, 1, 2])
    assert label_counts(table).tolist() == table.class_counts().tolist() == [1, 1, 1]
    assert label_counts(table, "size").dtype == table.image_label_counts("size").dtype == np.int64
    np.testing.assert_array_equal(table.image_label_counts(), table.image_class_counts())


@pytest.mark.parametrize(
    "ask",
    [
        lambda table: table.labels_of("pose"),
        lambda table: table.image_label_counts("pose"),
        lambda table: label_counts(table, "pose"),
        lambda table: image_labels(table, "pose"),
        lambda table: image_weights(table, [1, 1, 1], by="pose"),
    ],
)
def test_unknown_attribute_is_refused_with_known_ones(ask):
    with pytest.raises(ValueError, match=r"\['size'\]; got by='pose'"):
        ask(table_of([0]))
