"""Splits: shares held for every class, groups whole, the order of the images of no account."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.annotations import AnnotationTable, Attribute
from lit_loader.annotations.splitting import (
    attribute_groups,
    check_groups,
    frame_groups,
    group_names,
    hold_out,
    pooled,
    shared_names,
)
from lit_loader.annotations.stratification import stratified_split
from lit_loader.errors import AnnotationError


def table_of(labels_per_image, *, paths=None, num_classes=None):
    """A table with the given class ids in each image."""
    counts = [len(labels) for labels in labels_per_image]
    flat = [label for labels in labels_per_image for label in labels]
    num_classes = max(flat, default=0) + 1 if num_classes is None else num_classes
    return AnnotationTable(
        root="/data",
        image_paths=paths or [f"{i}.jpg" for i in range(len(counts))],
        class_names=[f"class {c}" for c in range(num_classes)],
        offsets=np.cumsum([0, *counts]),
        boxes=np.tile([0, 0, 1, 1], (len(flat), 1)),
        labels=flat,
    )


def images_with(table, rows, label):
    return int((table.image_class_counts()[rows, label] > 0).sum())


LONG_TAIL = [60, 45, 34, 26, 20, 15, 11, 9, 5, 3]
SHARES = {"train": 0.8, "val": 0.1, "test": 0.1}


def test_every_image_is_in_one_part_and_every_class_in_its_share():
    table = table_of([[c] for c, count in enumerate(LONG_TAIL) for _ in range(count)])
    for seed in range(5):
        parts = stratified_split(table, SHARES, seed=seed)
        assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(table.num_images))
        for name, rows in parts.items():
            assert rows.dtype == np.int64
            assert (np.diff(rows) > 0).all()
            for label, count in enumerate(LONG_TAIL):
                assert images_with(table, rows, label) >= 1
                allowed = 1 if SHARES["val"] * count >= 1 else 2  # a part that had to get one
                assert abs(images_with(table, rows, label) - SHARES[name] * count) <= allowed + 1e-6
        assert abs(len(parts["train"]) - 0.8 * table.num_images) <= len(LONG_TAIL)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_two_images_of_a_rare_class_are_on_both_sides(share):
    table = table_of([[0, 1] if i in (3, 4) else [0] for i in range(200)])
    parts = stratified_split(table, {"train": 1 - share, "val": share})
    assert [images_with(table, rows, 1) for rows in parts.values()] == [1, 1]


def test_class_with_one_image_is_in_train():
    table = table_of([[0, 1] if i == 7 else [0] for i in range(100)])
    parts = stratified_split(table, SHARES)
    assert [images_with(table, rows, 1) for rows in parts.values()] == [1, 0, 0]


def test_images_without_objects_are_split_by_shares():
    table = table_of([[] if i % 2 else [0] for i in range(100)])
    parts = stratified_split(table, SHARES)
    assert [int((table.image_class_counts()[rows].sum(1) == 0).sum()) for rows in parts.values()] == [40, 5, 5]
    assert {name: len(rows) for name, rows in stratified_split(table_of([]), SHARES).items()} == dict.fromkeys(
        SHARES, 0
    )


def test_split_depends_on_seed_but_not_on_order():
    labels = [[c] for c, count in enumerate(LONG_TAIL) for _ in range(count)]
    table = table_of(labels)
    order = np.random.default_rng(0).permutation(table.num_images)
    mixed = table.select(order)

    def paths(table, seed):
        parts = stratified_split(table, SHARES, seed=seed)
        return {name: {table.image_paths[int(i)] for i in rows} for name, rows in parts.items()}

    assert paths(table, 0) == paths(mixed, 0)
    assert paths(table, 0) != paths(table, 1)


@given(
    images=st.lists(st.tuples(st.integers(0, 8), st.sets(st.integers(0, 4), max_size=3)), min_size=1, max_size=60),
    share=st.floats(0.02, 0.5),
    seed=st.integers(0, 99),
)
def test_groups_are_never_split_and_no_image_is_lost(images, share, seed):
    groups = [f"person {person}" for person, _ in images]
    table = table_of([sorted(labels) for _, labels in images], num_classes=5)
    parts = stratified_split(table, {"train": 1 - share, "val": share}, groups=groups, seed=seed)
    train, val = ({groups[i] for i in rows} for rows in parts.values())
    assert not train & val
    assert sum(map(len, parts.values())) == len(images)
    if len(set(groups)) >= 2 and all(len(labels) == 1 for _, labels in images):
        rarest = min(
            {label for _, (label,) in images},
            key=lambda c: len({g for g, i in zip(groups, images, strict=True) if i[1] == {c}}),
        )
        rare_groups = {g for g, (_, labels) in zip(groups, images, strict=True) if labels == {rarest}}
        if len(rare_groups) >= 2:
            assert rare_groups & train
            assert rare_groups & val


def test_groups_keep_the_shares_when_they_are_small():
    groups = [f"person {i // 4}" for i in range(400)]
    table = table_of([[i % 2] for i in range(400)])
    parts = stratified_split(table, SHARES, groups=groups)
    assert [len(rows) for rows in parts.values()] == [320, 40, 40]


def clips():
    """A table of 150 clips of a street with 5 to 40 frames and five classes, each clip with its own mix of them."""
    rng = np.random.default_rng(0)
    mix = np.array([0.55, 0.25, 0.12, 0.06, 0.02])
    labels_per_image = []
    paths = []
    for clip in range(150):
        shares = rng.dirichlet(8 * mix)
        for frame in range(rng.integers(5, 41)):
            labels_per_image.append(rng.choice(5, size=rng.integers(0, 8), p=shares).tolist())
            paths.append(f"clip_{clip:03}_{frame:04}.jpg")
    return table_of(labels_per_image, paths=paths, num_classes=5)


@pytest.mark.parametrize("shares", [SHARES, {str(fold): 0.2 for fold in range(5)}], ids=["splits", "folds"])
def test_class_shares_of_groups_deviate_by_less_than_two_points(shares):
    table = clips()
    groups = frame_groups(table.image_paths)
    assert len(set(groups)) == 150
    expected = 100 * table.class_counts() / table.num_objects
    for seed in range(3):
        parts = stratified_split(table, shares, groups=groups, seed=seed, refine=True)
        assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(table.num_images))
        assert not list(shared_names({name: [groups[row] for row in rows] for name, rows in parts.items()}))
        for name, rows in parts.items():
            counts = table.select(rows).class_counts()
            assert np.abs(100 * counts / counts.sum() - expected).max() < 2
            assert abs(len(rows) / table.num_images - shares[name]) < 0.01


def test_split_of_groups_does_not_depend_on_the_order():
    table = clips()
    mixed = table.select(np.random.default_rng(1).permutation(table.num_images))
    parts, mixed_parts = (
        stratified_split(t, SHARES, groups=frame_groups(t.image_paths), refine=True) for t in (table, mixed)
    )
    for name, rows in parts.items():
        assert {table.image_paths[row] for row in rows} == {mixed.image_paths[row] for row in mixed_parts[name]}


def test_frames_of_a_clip_are_a_group():
    paths = ["a/clip_0001.jpg", "a/clip_0002.jpg", "b/clip_1.jpg", "c/7.png", "c/8.png", "x.png", "Ann-Lee 12", "y/"]
    assert frame_groups(paths) == ["a/clip", "a/clip", "b/clip", "c/", "c/", "x.png", "Ann-Lee", "y/"]


def test_splits_by_fractions_stay_those_of_earlier_versions():
    table = clips()
    groups = frame_groups(table.image_paths)
    parts = stratified_split(table, SHARES, groups=groups, seed=1)
    assert [len(rows) for rows in parts.values()] == [2707, 372, 337]
    assert sorted({groups[row] for row in parts["val"]})[:4] == ["clip_009", "clip_011", "clip_020", "clip_021"]


def test_long_chain_of_groups_takes_no_quadratic_time(tmp_path):
    num_lookups = 0

    class Name(str):
        def __hash__(self):
            nonlocal num_lookups
            num_lookups += 1
            return super().__hash__()

    num_links = 1000
    # Images 2i and 2i + 1 are copies of different groups, and the next pair shares one of these groups.
    groups = [Name(f"{num_links - link - end:05}") for link in range(num_links) for end in (0, 1)]
    table = table_of([[0]] * (2 * num_links))
    traits = [lambda path: 1 + int(path.rpartition("/")[2].removesuffix(".jpg")) // 2]
    parts, _, _ = hold_out(table, SHARES, groups=groups, traits=traits, cache_dir=tmp_path)
    assert [len(rows) for rows in parts.values()] == [2 * num_links, 0, 0]
    assert num_lookups < 100 * num_links


def test_images_with_a_common_attribute_value_are_a_group():
    table = table_of([[0], [0, 0], [0], [0], []])
    table = replace(table, attributes={"name": Attribute(ids=np.array([0, 0, 1, 1, -1]), names=("ann", "bo"))})
    groups = attribute_groups(table, "name")
    assert groups[0] == groups[1] == groups[2]
    assert len({*groups[2:]}) == 3
    with pytest.raises(ValueError, match="expected an attribute"):
        attribute_groups(table, "age")


def test_image_in_two_sets_is_pooled_once():
    a = table_of([[0], [1]])
    b = table_of([[1], [0], [1]], paths=["1.jpg", "2.jpg", "3.jpg"])
    table = pooled([a, b])
    assert list(table.image_paths) == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]
    assert table.labels.tolist() == [0, 1, 0, 1]
    assert pooled([a]) is a


def test_labels_of_an_attribute_are_split_by_shares():
    labels = np.array([0, 1, -1, 0] * 50)
    table = replace(table_of([[0]] * 200), attributes={"pose": Attribute(ids=labels, names=("left", "right"))})
    parts = stratified_split(table, {"train": 0.5, "val": 0.5}, label_attribute="pose")
    for rows in parts.values():
        assert np.bincount(labels[rows] + 1).tolist() == [25, 50, 25]


def test_image_listed_twice_stays_in_one_part():
    table = table_of([[0]] * 40, paths=[f"{i % 20}.jpg" for i in range(40)])
    parts = stratified_split(table, {"train": 0.5, "val": 0.5})
    assert list(shared_names({k: [table.image_paths[int(i)] for i in v] for k, v in parts.items()})) == []


@pytest.mark.parametrize("shares", [{}, {"train": 1.1}, {"train": 1.0, "val": 0.0}, {"a": 1.5, "b": -0.5}])
def test_shares_must_be_positive_and_of_sum_one(shares):
    with pytest.raises(ValueError, match="must be positive with sum 1"):
        stratified_split(table_of([[0]]), shares)


def test_groups_need_one_name_per_image():
    with pytest.raises(ValueError, match="groups has 1 names, but the table has 2 images"):
        stratified_split(table_of([[0], [0]]), {"train": 1.0}, groups=["a"])


def test_groups_come_from_the_paths():
    assert group_names(["a/Ann_1.jpg", "b/Bo_Lee_12.jpg"], r"([A-Za-z_]+)_\d+\.") == ["Ann", "Bo_Lee"]
    with pytest.raises(ValueError, match="has no group; put the identifying part in parentheses"):
        group_names([], "[a-z]+")
    with pytest.raises(ValueError, match=r"'\(' is not a regular expression"):
        group_names([], "(")
    with pytest.raises(ValueError, match=r"does not match the image path '7.jpg'"):
        group_names(["7.jpg"], "([a-z]+)_")


def test_shared_names_yields_common_names_of_two_sets():
    shared = list(shared_names({"train": ["b", "a", "c"], "val": ["d", "c", "a"], "test": ["e"]}))
    assert shared == [("train", "val", ["a", "c"])]


def test_group_in_two_sets_is_refused_with_root():
    paths = {"train": ["ann_1.jpg", "bo_1.jpg"], "val": ["cy_1.jpg"], "test": ["x/bo_2.jpg"]}
    with pytest.raises(AnnotationError, match=r"^/data: 1 groups of .* are in both train and test, such as 'bo'"):
        check_groups(paths, "([a-z]+)_", root="/data")
    check_groups(paths, "([a-z]+_.)", root="/data")
