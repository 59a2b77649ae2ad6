from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.annotations import AnnotationTable, class_weights, image_labels, image_weights


def table_of(*images, num_classes=3):
    """A table whose images hold objects of the given classes."""
    labels = [label for image in images for label in image]
    return AnnotationTable(
        root="/",
        image_paths=[f"{i}.jpg" for i in range(len(images))],
        class_names=[f"c{i}" for i in range(num_classes)],
        offsets=np.cumsum([0, *map(len, images)]),
        boxes=np.zeros((len(labels), 4)),
        labels=np.array(labels, dtype=np.int64),
    )


IMAGES = st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=6)


@given(IMAGES)
def test_image_labels_are_the_sorted_distinct_classes(images):
    offsets, classes = image_labels(table_of(*images))
    assert offsets.dtype == classes.dtype == np.int64
    found = [classes[offsets[i] : offsets[i + 1]].tolist() for i in range(len(images))]
    assert found == [sorted(set(image)) for image in images]


def test_balanced_weights_give_every_class_the_same_total():
    counts = np.array([4155, 372, 361])
    weights = class_weights(counts)
    np.testing.assert_allclose(weights * counts, counts.sum() / 3)
    assert weights.dtype == np.float64


def test_the_exponent_goes_from_natural_to_balanced():
    counts = [90, 9, 1]
    np.testing.assert_array_equal(class_weights(counts, exponent=0.0), 1.0)
    np.testing.assert_allclose(class_weights(counts, exponent=0.5), np.sqrt(class_weights(counts)))


def test_a_class_without_objects_weighs_nothing_and_counts_for_nothing():
    np.testing.assert_allclose(class_weights([4, 0, 4]), [1, 0, 1])
    np.testing.assert_array_equal(class_weights([4, 0, 4], exponent=0.0), [1, 0, 1])
    assert class_weights([]).shape == (0,)
    assert class_weights([0]).tolist() == [0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([-1],), "counts"),
        (([np.nan],), "counts"),
        (([[1]],), "counts"),
    ],
)
def test_counts_that_are_none_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        class_weights(*arguments)


@pytest.mark.parametrize("exponent", [-0.1, 1.1, np.nan])
def test_exponents_outside_0_to_1_are_refused(exponent):
    with pytest.raises(ValueError, match="exponent"):
        class_weights([1], exponent=exponent)


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [("mean", [1.0, 2.0, 1.0, 4.0]), ("max", [1.0, 4.0, 1.0, 4.0]), ("sum", [1.0, 6.0, 1.0, 4.0])],
)
def test_an_image_gets_the_mean_max_or_sum_of_its_objects(reduce, expected):
    table = table_of([0], [0, 0, 2], [], [2])
    weights = image_weights(table, [1.0, 9.0, 4.0], reduce=reduce)
    np.testing.assert_allclose(weights, expected)
    assert weights.dtype == np.float64


def test_images_without_objects_get_the_smallest_weight_or_the_one_given():
    table = table_of([2], [], [0, 2])
    assert image_weights(table, [1, 1, 5])[1] == 3.0
    assert image_weights(table, [1, 1, 5], empty_weight=0.0).tolist() == [5, 0, 3]
    assert image_weights(table_of([], []), [1, 1, 1]).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("weights", "options", "words"),
    [
        ([1, 2], {}, "one for each of 3 classes"),
        ([1, 2, -1], {}, "finite and >= 0"),
        ([1, 2, np.inf], {}, "finite and >= 0"),
        ([1, 2, 3], {"reduce": "median"}, "'mean', 'max' or 'sum'"),
        ([1, 2, 3], {"empty_weight": -1.0}, "empty_weight=-1.0"),
        ([1, 2, 3], {"empty_weight": np.nan}, "empty_weight"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights, options, words):
    with pytest.raises(ValueError, match=words):
        image_weights(table_of([0]), weights, **options)
