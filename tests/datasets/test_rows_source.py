"""Lists of dicts as a source: columns, box formats, labels, points, sizes, held-out rows, and wrong rows."""

from __future__ import annotations

import copy
import pickle
import weakref

import numpy as np
import pytest
import torch

from lit_loader import ImageReading, RowsSource
from lit_loader.errors import AnnotationError, SettingError
from lit_loader.foundation.files import cache_folder
from tests.support.row_data import DETECTION, NAMES, POINTS, SIZE, detection_rows, encoded, point_rows

GREY = np.full((48, 64), 90, dtype=np.uint8)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def table_of(rows, **settings):
    (table,) = RowsSource(rows, **{**DETECTION, **settings}).tables("train")
    return table


def row_of(box=(2, 3, 20, 24), label=0, **columns):
    return {"image": GREY, "objects": [{"bbox": box, "category": label}], **columns}


def test_every_row_is_an_image_with_its_objects():
    table = table_of(detection_rows())
    assert table.image_paths[4] == "train/000004"
    assert list(table.image_ids) == list(table.image_paths)
    assert np.diff(table.offsets).tolist() == [0, 1, 2, 0, 1, 2]
    assert table.boxes[table.objects(2)].tolist() == [[2, 3, 24, 27], [3, 3, 25, 27]]
    assert [table.class_names[label] for label in table.labels[table.objects(2)]] == ["owl", "cat"]
    assert (set(table.widths), set(table.heights)) == ({SIZE[0]}, {SIZE[1]})


def test_places_are_numbers_of_rows():
    table = table_of(detection_rows())
    assert [str(table.place_of_image(row)) for row in range(3)] == ["train rows[0]", "train rows[1]", "train rows[2]"]
    rows = [place.entry for place in map(table.place_of_object, range(table.num_objects))]
    assert rows == ["rows[1]", "rows[2]", "rows[2]", "rows[4]", "rows[5]", "rows[5]"]


def test_mappings_of_lists_and_lists_of_mappings_give_the_same_table():
    rows = detection_rows()
    columns = copy.deepcopy(rows)
    for row in columns:
        row["objects"] = {key: [item[key] for item in row["objects"]] for key in ("bbox", "category")}
    flat = [
        {"image": row["image"]} | {f"objects.{key}": value for key, value in row["objects"].items()} for row in columns
    ]
    expected = table_of(rows)
    for table in (table_of(columns), table_of(flat)):
        assert np.array_equal(table.boxes, expected.boxes)
        assert np.array_equal(table.labels, expected.labels)


@pytest.mark.parametrize(
    ("box_format", "box"), [("xyxy", (8, 12, 40, 36)), ("xywh", (8, 12, 32, 24)), ("cxcywh", (24, 24, 32, 24))]
)
@pytest.mark.parametrize("normalized", [False, True])
def test_box_formats_give_the_same_pixels(box_format, box, normalized):
    scale = np.tile(SIZE, 2) if normalized else np.ones(4)
    table = table_of([row_of(list(box / scale))], box_format=box_format, normalized=normalized)
    assert table.boxes.tolist() == [[8, 12, 40, 36]]


def test_numpy_and_tensor_annotations_are_read_as_lists():
    rows = [
        row_of(np.array([2, 3, 20, 24], dtype=np.float32), np.int64(1)),
        row_of(torch.tensor([2, 3, 20, 24]), torch.tensor(2)),
    ]
    table = table_of(rows)
    assert table.boxes.tolist() == [[2, 3, 22, 27]] * 2
    assert table.labels.tolist() == [1, 2]


def test_labels_may_be_names():
    rows = [row_of(label="owl"), row_of(label="cat")]
    assert table_of(rows, class_names=None).class_names == ("cat", "owl")
    assert table_of(rows).labels.tolist() == [2, 0]


def test_labels_of_images_fill_the_image_and_may_be_missing_or_several():
    labels = [1, [0, 2], None, -1, []]
    rows = [{"image": GREY, "label": label} for label in labels]
    table = table_of(rows, boxes=None, labels="label")
    assert np.diff(table.offsets).tolist() == [1, 2, 0, 0, 0]
    assert table.labels.tolist() == [1, 0, 2]
    assert table.boxes.tolist() == [[0, 0, 64, 48]] * 3


def test_one_class_needs_no_labels():
    table = table_of([row_of(), row_of()], labels=None, class_names=["face"])
    assert (table.labels.tolist(), table.class_names) == ([0, 0], ("face",))


@pytest.mark.parametrize(
    "points",
    [
        [10, 10, 40, 12, 25, 35],
        [10, 10, 2, 40, 12, 2, 25, 35, 2],
        [[10, 10], [40, 12], [25, 35]],
        [[10, 10, 2], [40, 12, 2], [25, 35, 2]],
    ],
    ids=["flat", "flat with visibility", "nested", "nested with visibility"],
)
def test_points_without_boxes_get_the_box_around_them(points):
    rows = [{"image": GREY, "points": [points, points]}]
    table = table_of(rows, boxes=None, labels=None, keypoints="points", schema=POINTS, class_names=["face"])
    assert table.num_objects == 2
    assert table.keypoints[0].tolist() == [[10, 10], [40, 12], [25, 35]]
    assert table.visibility[0].tolist() == [2, 2, 2]
    assert table.boxes[0].tolist() == [10, 10, 40, 35]
    assert (table.keypoint_names, table.flip_pairs) == (("left", "right", "below"), ((0, 1),))


def test_points_of_boxes_keep_their_visibility():
    table = table_of(point_rows(), keypoints="objects.points", schema=POINTS, box_format="xyxy")
    assert table.visibility.tolist() == [[2, 2, 1]] * 4
    assert table.boxes[0].tolist() == [5, 5, 45, 40]


def test_crowds_and_ids_come_from_their_columns():
    rows = [
        {"image": GREY, "boxes": [[0, 0, 9, 9], [1, 1, 8, 8]], "labels": [0, 1], "crowd": [0, 1], "id": 7},
        {"image": GREY, "boxes": None, "labels": [], "crowd": None, "id": 9},
    ]
    table = table_of(rows, boxes="boxes", labels="labels", crowd="crowd", image_id="id")
    assert table.crowd.tolist() == [False, True]
    assert (table.image_numbers.tolist(), list(table.image_ids)) == ([7, 9], ["7", "9"])


def test_a_mapping_of_splits_sets_the_stages():
    rows = detection_rows()
    source = RowsSource({"train": rows[:3], "validation": rows[3:5], "test": rows[5:]}, **DETECTION)
    sizes = {stage: [len(table) for table in source.tables(stage)] for stage in ("train", "val", "test", "predict")}
    assert sizes == {"train": [3], "val": [2], "test": [1], "predict": [1]}


def test_a_set_to_predict_on_has_all_annotations_or_none():
    rows = detection_rows(id=int)
    source = RowsSource(rows, predict=[{"image": GREY, "id": 5}], image_id="id", **DETECTION)
    (table,) = source.tables("predict")
    assert (len(table), table.num_objects, table.class_names) == (1, 0, tuple(NAMES))
    assert table.image_numbers.tolist() == [5]
    boxes_only = {"image": GREY, "objects": {"bbox": [[1, 2, 3, 4]]}}
    with pytest.raises(SettingError, match=r"labels='objects.category' is not a column of predict"):
        RowsSource(rows, predict=[boxes_only], **DETECTION).tables("predict")


@pytest.mark.parametrize("are_paths", [False, True], ids=["bytes", "paths"])
def test_held_out_rows_are_disjoint_and_keep_copies_together(tmp_path, are_paths):
    rows = detection_rows(20)
    copies = [dict(row) for row in rows for _ in range(3)]
    for number, row in enumerate(copies if are_paths else ()):
        (tmp_path / f"{number}.png").write_bytes(row["image"]["bytes"])
        row["image"] = f"{number}.png"
    source = RowsSource(copies, val_fraction=0.25, test_fraction=0.25, root=tmp_path, **DETECTION)
    numbers = {
        stage: {int(path[-6:]) for path in source.tables(stage)[0].image_paths} for stage in ("train", "val", "test")
    }
    assert sorted(number for rows in numbers.values() for number in rows) == list(range(60))
    assert all({number // 3 * 3 + copy for copy in range(3)} <= rows for rows in numbers.values() for number in rows)
    assert all(9 <= len(numbers[stage]) <= 21 for stage in ("val", "test"))


def test_the_table_of_equal_rows_comes_from_the_cache(tmp_path):
    rows = detection_rows()
    table = table_of(rows)
    second_table = table_of(copy.deepcopy(rows))
    assert second_table.root == table.root
    files = list((cache_folder() / "annotations").glob("*.arrow"))
    assert len(files) == 1
    # From the file, so that worker processes map it.
    assert len(pickle.dumps(second_table)) < 2_000


@pytest.mark.parametrize("change", ["box", "label", "pixel", "array", "order", "setting"])
def test_other_rows_get_another_name_and_table(change):
    rows = [*detection_rows(), {"image": GREY.copy(), "objects": []}]
    settings = {}
    root = table_of(copy.deepcopy(rows)).root
    if change == "box":
        rows[1]["objects"][0]["bbox"][0] += 1
    elif change == "label":
        rows[1]["objects"][0]["category"] = 0
    elif change == "pixel":
        rows[1]["image"]["bytes"] = encoded(99, "JPEG")
    elif change == "array":
        rows[-1]["image"][3, 4] += 1
    elif change == "order":
        rows[0], rows[3] = rows[3], rows[0]
    else:
        settings["policy"] = {"out_of_image": "clip"}
    assert table_of(rows, **settings).root != root


def test_a_pickled_source_reads_equal_tables():
    source = RowsSource(detection_rows(), **DETECTION)
    (table,) = source.tables("train")
    (copied,) = pickle.loads(pickle.dumps(source)).tables("train")
    assert copied.root == table.root
    assert np.array_equal(copied.boxes, table.boxes)


def test_rows_are_read_once_per_source():
    class Counting:
        reads = 0
        rows = detection_rows()

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, number):
            Counting.reads += 1
            return self.rows[number]

    rows = Counting()
    source = RowsSource(rows, **DETECTION)
    for _ in range(3):
        source.prepare()
        source.reopen()
        source.tables("train")
        source.image_reading(ImageReading())
    # The first row is also read for its keys.
    assert Counting.reads == len(rows) + 1


def test_decoded_images_are_in_memory_one_at_a_time():
    images = []
    num_alive = []

    class Decoding:
        def __len__(self):
            return 20

        def __getitem__(self, number):
            image = np.full((8, 8), number, dtype=np.uint8)
            images.append(weakref.ref(image))
            num_alive.append(sum(image() is not None for image in images))
            return {"image": image, "objects": []}

    assert len(table_of(Decoding())) == 20
    # The image that is read, and the one before it.
    assert max(num_alive) <= 2


def test_the_text_of_a_source_has_no_rows():
    assert len(repr(RowsSource(detection_rows(), **DETECTION))) < 1_000


# -- wrong rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (row_of((2, 3, 20)), r", object 0: column 'objects.bbox': expected a box of 4 numbers, got \[2, 3, 20\]"),
        (row_of(("a", 3, 2, 1)), r", object 0: column 'objects.bbox': expected a box of 4 numbers"),
        (row_of(None), r", object 0: column 'objects.bbox': expected a box or points, got None"),
        (row_of(label=3), r", object 0: column 'objects.category': label 3 is not in 0 to 2, the 3 classes"),
        (row_of(label=-1), r", object 0: column 'objects.category': label -1 is not in 0 to 2"),
        (row_of(label=1.5), r", object 0: column 'objects.category': expected a name or a number, got 1.5"),
        (
            {"image": GREY, "objects": {"bbox": [[1, 2, 3, 4]], "category": [0, 1]}},
            r": column 'objects.category': expected 1 values, one for each object, got 2",
        ),
        (
            {"image": GREY, "objects": {"bbox": 5, "category": []}},
            r": column 'objects.bbox': expected a list with a value for each object, got 5",
        ),
    ],
)  # fmt: skip
def test_malformed_rows_name_row_column_and_value(row, message):
    rows = [row_of(), row]
    with pytest.raises(AnnotationError, match=f"^train: row 1{message}"):
        table_of(rows)
    table = table_of(rows, policy={"malformed": "drop"})
    assert table.num_objects == 1
    assert table.report.count("malformed", "drop") == 1
    assert "row 1" in str(table.report)


@pytest.mark.parametrize(
    ("kind", "box"),
    [
        ("out_of_image", (2, 3, 200, 24)),
        ("non_finite", (2, float("nan"), 20, 24)),
        ("degenerate", (2, 3, 0, 24)),
        ("swapped", (20, 20, -10, -10)),
    ],
)
def test_the_policy_of_files_decides_on_boxes(kind, box):
    rows = [row_of(), row_of(), row_of(box)]
    with pytest.raises(AnnotationError, match=r"^train: row 2, object 0: box ") as error:
        table_of(rows, policy={kind: "raise"})
    assert f"policy={{{kind!r}: " in str(error.value)
    table = table_of(rows, policy={kind: "drop"})
    assert table.num_objects == 2
    (problem,) = table.report.problems
    assert (problem.kind, problem.file, problem.object_index) == (kind, "train", 0)
    assert problem.message.startswith("row 2, object 0: box ")


def test_unknown_classes_and_invalid_points_are_problems_of_their_columns():
    with pytest.raises(AnnotationError, match=r"^train: row 0, object 0: class 'elk' is not"):
        table_of([row_of(label="elk")], policy={"unknown_class": "raise"})
    rows = point_rows(2)
    rows[1]["objects"]["points"][0][0] = float("nan")
    settings = {"keypoints": "objects.points", "schema": POINTS, "box_format": "xyxy"}
    with pytest.raises(AnnotationError, match=r"^train: row 1, object 0: 1 point is not finite"):
        table_of(rows, policy={"invalid_keypoint": "raise"}, **settings)
    assert table_of(rows, **settings).visibility[1].tolist() == [0, 2, 1]
    rows[1]["objects"]["points"][0].pop()
    with pytest.raises(AnnotationError, match=r"row 1, object 0: column 'objects.points': expected 6 or 9 numbers"):
        table_of(rows, **settings)


def test_images_without_a_readable_header_follow_the_policy():
    rows = [row_of(), {**row_of(), "image": b"\x89PNG not really"}, row_of()]
    with pytest.raises(AnnotationError, match=r"^train: row 1: the size of the image cannot be read"):
        table_of(rows)
    table = table_of(rows, policy={"unreadable_image": "drop"})
    assert list(table.image_paths) == ["train/000000", "train/000002"]
    assert table_of(rows, policy={"unreadable_image": "keep"}).widths.tolist() == [64, 0, 64]


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (None, r"the image is missing \(None\)"),
        ({"bytes": None, "path": None}, r"the image is missing \(None\)"),
        ("none.png", "none.png is missing"),
    ],
)
def test_rows_without_an_image_follow_the_policy(tmp_path, image, message):
    rows = [row_of(), {**row_of(), "image": image}]
    with pytest.raises(AnnotationError, match=rf"^train: row 1: .*{message}"):
        table_of(rows, root=tmp_path)
    table = table_of(rows, policy={"missing_image": "drop"}, root=tmp_path)
    assert list(table.image_paths) == ["train/000000"]
    table = table_of(rows, policy={"missing_image": "keep"}, root=tmp_path)
    assert (len(table), table.widths.tolist()) == (2, [64, 0])
    with pytest.raises(AnnotationError, match=r"fractions of the image, and the size of 'train/000001' is unknown"):
        table_of(rows, policy={"missing_image": "keep"}, root=tmp_path, normalized=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"box_format": "yxyx"}, r"box_format='yxyx' is not one of \['xyxy', 'xywh', 'cxcywh'\]"),
        ({"boxes": "objects.box"}, r"row 1 has no 'box' for the column 'objects.box'; name another column"),
        ({"boxes": "boxes"}, r"boxes='boxes' is not a column of train, which has \['image', 'objects'\]; name"),
        ({"image": "picture"}, r"image='picture' is not a column of train"),
        ({"labels": None}, r"labels=None leaves the objects without a class.*class_names=\['face'\]"),
        ({"schema": 3}, r"schema=3 names the points of the column keypoints="),
        ({"boxes": None, "crowd": "crowd"}, r"crowd='crowd' is a column of flags of boxes"),
        ({"policy": {"swapped": "ignore"}}, r"swapped='ignore' must be one of"),
        ({"val_fraction": 1.5}, r"val_fraction=1.5 must be in \[0, 1\)"),
        ({"val": [{}], "val_fraction": 0.5}, r"val=.* and val_fraction=0.5 contradict each other"),
        ({"train": [{}]}, r"dataset has 'train', and train= is given as well"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused_with_a_remedy(settings, message):
    with pytest.raises((ValueError, SettingError), match=message):
        table_of(detection_rows(), **settings)


def test_numbers_without_names_ask_for_the_class_names():
    with pytest.raises(AnnotationError, match=r"'objects.category' has numbers, such as 1, and no names.*class_names="):
        table_of(detection_rows(), class_names=None)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (iter([1]), r"train: expected a Hugging Face Dataset, or any set .*got list_iterator; load a streamed"),
        ([[{"image": GREY}]], r"expected rows that are mappings, got list as row 0; join data sets by MixedSource"),
        (type("DataFrame", (list,), {"iloc": 0})(), r"got a DataFrame; give dataset.to_dict\('records'\)"),
        ("ab", r"expected rows that are mappings, got str as row 0"),
        ({"dev": []}, r"dataset has 'dev', which is none of train, val, test, predict, validation; .*dataset\['dev'\]"),
        ({}, r"no stage has a data set"),
    ],
)  # fmt: skip
def test_other_data_sets_are_refused(dataset, message):
    with pytest.raises((TypeError, ValueError), match=message):
        table_of(dataset)
