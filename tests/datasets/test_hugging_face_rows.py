"""Data sets of Hugging Face: features, splits, formats, shuffled rows, and images that stay encoded."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image as PillowImage

from lit_loader import ImageReading, RowsSource
from lit_loader.datasets import rows_source
from lit_loader.errors import AnnotationError, SettingError
from tests.support.row_data import NAMES, POINTS, detection_rows, encoded, pixels_of, point_rows

datasets = pytest.importorskip("datasets")

DETECTION = {"boxes": "objects.bbox", "box_format": "xywh", "labels": "objects.category", "progress": False}
OBJECT = {"bbox": datasets.Sequence(datasets.Value("float32"), length=4), "category": datasets.ClassLabel(names=NAMES)}
LISTS_OF_DICTS = datasets.Features({"image": datasets.Image(), "objects": [OBJECT]})
DICTS_OF_LISTS = datasets.Features({"image": datasets.Image(), "objects": datasets.Sequence(OBJECT)})


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def no_progress_bars(monkeypatch):
    # A bar would start a thread that watches all bars and never ends.
    monkeypatch.setattr(datasets.utils.tqdm, "monitor_interval", 0)
    datasets.disable_progress_bars()


@pytest.fixture(autouse=True)
def no_decoding(monkeypatch):
    """Fail a test in which Hugging Face decodes an image."""

    def decode_example(self, value, token_per_repo_id=None):
        raise AssertionError("an image was decoded")

    monkeypatch.setattr(datasets.Image, "decode_example", decode_example)


def on_disk(tmp_path, rows, features, name="set"):
    """Return a data set in memory-mapped files."""
    datasets.Dataset.from_list(rows, features=features).save_to_disk(tmp_path / name)
    return datasets.load_from_disk(str(tmp_path / name))


def table_of(dataset, **settings):
    (table,) = RowsSource(dataset, **{**DETECTION, **settings}).tables("train")
    return table


def read_all(dataset, **settings):
    source = RowsSource(dataset, **{**DETECTION, **settings})
    (table,) = source.tables("train")
    reading = source.image_reading(ImageReading())
    return [reading.read(table.image_path(row)) for row in range(len(table))]


@pytest.mark.parametrize("features", [LISTS_OF_DICTS, DICTS_OF_LISTS], ids=["list of dicts", "dict of lists"])
@pytest.mark.parametrize("is_mapped", [True, False], ids=["mapped", "in memory"])
def test_nested_features_give_the_table_of_the_same_rows(tmp_path, features, is_mapped):
    rows = detection_rows()
    if features is DICTS_OF_LISTS:
        rows = [row | {"objects": {key: [item[key] for item in row["objects"]] for key in OBJECT}} for row in rows]
    dataset = on_disk(tmp_path, rows, features) if is_mapped else datasets.Dataset.from_list(rows, features=features)
    table = table_of(dataset)
    expected = table_of(detection_rows(), class_names=NAMES)
    assert table.class_names == tuple(NAMES)
    for name in ("boxes", "labels", "offsets", "widths", "heights"):
        assert np.array_equal(getattr(table, name), getattr(expected, name))
    pixels = read_all(dataset)
    assert all(map(torch.equal, pixels, read_all(detection_rows(), class_names=NAMES)))


def test_classes_without_objects_keep_their_ids(tmp_path):
    rows = [row | {"objects": [{"bbox": [1, 2, 9, 9], "category": 2}]} for row in detection_rows(2)]
    table = table_of(on_disk(tmp_path, rows, LISTS_OF_DICTS))
    assert (table.class_names, table.labels.tolist()) == (tuple(NAMES), [2, 2])
    table = table_of(on_disk(tmp_path, rows, LISTS_OF_DICTS, "again"), class_names=["owl", "cat"])
    assert (table.class_names, table.labels.tolist()) == (("owl", "cat"), [0, 0])


def test_labels_of_images_come_from_a_class_label(tmp_path):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    rows = [{"image": {"bytes": encoded(i), "path": None}, "label": label} for i, label in enumerate([2, 0, -1])]
    table = table_of(on_disk(tmp_path, rows, features), boxes=None, labels="label")
    assert (table.class_names, table.labels.tolist()) == (tuple(NAMES), [2, 0])
    assert np.diff(table.offsets).tolist() == [1, 1, 0]


def test_points_are_read(tmp_path):
    dataset = datasets.Dataset.from_list(point_rows())
    settings = {"keypoints": "objects.points", "schema": POINTS, "box_format": "xyxy", "class_names": NAMES}
    table = table_of(dataset, **settings)
    assert table.keypoints[2].tolist() == [[12, 10], [40, 12], [25, 35]]
    assert table.visibility[2].tolist() == [2, 2, 1]


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset: dataset.shuffle(seed=3),
        lambda dataset: dataset.select([4, 1, 1]),
        lambda dataset: dataset.select(range(2, 5)),
        lambda dataset: dataset.train_test_split(0.5, seed=1)["test"],
        lambda dataset: dataset.with_format("torch"),
        lambda dataset: datasets.concatenate_datasets([dataset, dataset]),
        lambda dataset: dataset.flatten(),
    ],
    ids=["shuffled", "selected", "sliced", "split", "formatted", "concatenated", "flattened"],
)
def test_changed_data_sets_have_their_own_rows(tmp_path, change):
    dataset = on_disk(tmp_path, detection_rows(), LISTS_OF_DICTS)
    changed = change(dataset)
    table = table_of(changed)
    plain = (
        changed.with_format(None).cast_column("image", datasets.Image(decode=False))
        if "image" in changed.features
        else changed
    )
    rows = [plain[number] for number in range(len(plain))]
    assert table.num_images == len(rows)
    expected = [item["bbox"][0] for row in rows for item in row.get("objects", ())]
    if expected:
        assert table.boxes[:, 0].tolist() == expected
        pixels = read_all(changed)
        assert all(map(torch.equal, pixels, read_all(rows, class_names=NAMES)))


def test_slices_with_equal_annotations_are_told_apart_by_their_images(tmp_path):
    rows = [{"image": {"bytes": encoded(i, size=(40 + i, 30)), "path": None}} for i in range(6)]
    dataset = on_disk(tmp_path, rows, datasets.Features({"image": datasets.Image()}))
    numbers = [range(3), range(3, 6), []]
    widths = [table_of(dataset.select(part), boxes=None, labels=None).widths.tolist() for part in numbers]
    assert widths == [[40, 41, 42], [43, 44, 45], []]


def test_equal_data_sets_share_a_cached_table_without_a_look_at_their_images(tmp_path, monkeypatch):
    dataset = on_disk(tmp_path, detection_rows(), LISTS_OF_DICTS)
    table = table_of(dataset)
    with monkeypatch.context() as context:
        context.setattr(rows_source, "content_of", None)
        context.setattr(rows_source, "header_of", None)
        for equal in (datasets.load_from_disk(str(tmp_path / "set")), pickle.loads(pickle.dumps(dataset))):
            assert table_of(equal).root == table.root
    assert len(list((tmp_path / "cache/lit_loader/annotations").glob("*.arrow"))) == 1
    (file,) = (tmp_path / "set").glob("*.arrow")
    os.utime(file, ns=(0, 0))
    assert table_of(datasets.load_from_disk(str(tmp_path / "set"))).root != table.root


@pytest.mark.parametrize("is_mapped", [True, False], ids=["mapped", "in memory"])
def test_copies_are_recognized_by_length_and_content(tmp_path, is_mapped):
    rows = [{"image": {"bytes": encoded(i % 3), "path": None}, "label": 0} for i in range(6)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    dataset = on_disk(tmp_path, rows, features) if is_mapped else datasets.Dataset.from_list(rows, features=features)
    source = RowsSource(dataset, labels="label", val_fraction=0.3, progress=False)
    numbers = [{int(path[-6:]) % 3 for path in source.tables(stage)[0].image_paths} for stage in ("train", "val")]
    assert (sorted(map(len, numbers)), numbers[0] & numbers[1]) == ([1, 2], set())


def test_a_source_of_mapped_files_is_pickled_without_its_images(tmp_path):
    rows = [{"image": {"bytes": encoded(i, size=(300, 200)), "path": None}} for i in range(6)]
    source = RowsSource(on_disk(tmp_path, rows, datasets.Features({"image": datasets.Image()})), progress=False)
    reading = source.image_reading(ImageReading())
    data = pickle.dumps(reading)
    assert len(data) < 10_000
    path = source.tables("train")[0].image_path(3)
    assert torch.equal(pickle.loads(data).read(path), reading.read(path))


@pytest.mark.parametrize("is_mapped", [True, False], ids=["mapped", "in memory"])
def test_threads_may_read_one_data_set(tmp_path, is_mapped):
    rows = detection_rows(16)
    mapped = on_disk(tmp_path, rows, LISTS_OF_DICTS).shuffle(seed=1)
    dataset = mapped if is_mapped else datasets.Dataset.from_list(rows, features=LISTS_OF_DICTS)
    source = RowsSource(dataset, **DETECTION)
    (table,) = source.tables("train")
    reading = source.image_reading(ImageReading())
    expected = [reading.read(table.image_path(row)) for row in range(16)]
    with ThreadPoolExecutor(8) as pool:
        pixels = list(pool.map(lambda i: reading.read(table.image_path(i % 16)), range(800)))
    assert all(torch.equal(image, expected[i % 16]) for i, image in enumerate(pixels))


def test_a_dataset_dict_sets_the_stages(tmp_path):
    splits = {
        name: on_disk(tmp_path, detection_rows(3 + i), LISTS_OF_DICTS, name)
        for i, name in enumerate(["train", "validation"])
    }
    source = RowsSource(datasets.DatasetDict(splits), **DETECTION)
    assert [len(source.tables(stage)) for stage in ("train", "val", "test", "predict")] == [1, 1, 0, 0]
    assert source.tables("val")[0].image_paths[3] == "val/000003"


@pytest.mark.parametrize(
    ("feature", "value"),
    [
        (datasets.Value("binary"), encoded(0)),
        (datasets.Array3D((48, 64, 3), "uint8"), pixels_of(0)),
        (datasets.Sequence(datasets.Sequence(datasets.Sequence(datasets.Value("uint8")))), pixels_of(0).tolist()),
    ],
    ids=["binary", "array", "nested lists"],
)
def test_columns_of_bytes_and_arrays_are_images(tmp_path, feature, value):
    dataset = on_disk(tmp_path, [{"image": value}] * 3, datasets.Features({"image": feature}))
    pixels = read_all(dataset, boxes=None, labels=None)
    assert len(pixels) == 3
    assert all(np.array_equal(image.permute(1, 2, 0), pixels_of(0)) for image in pixels)


def test_images_in_folders_need_the_root(tmp_path):
    for number in range(2):
        folder = tmp_path / "images" / NAMES[number]
        folder.mkdir(parents=True)
        PillowImage.fromarray(pixels_of(number)).save(folder / "a.png")
    paths = [str(tmp_path / "images" / NAMES[i] / "a.png") for i in range(2)]
    features = datasets.Features({"image": datasets.Image()})
    dataset = datasets.Dataset.from_dict({"image": paths}, features=features)
    settings = {"boxes": None, "labels": None}
    with pytest.raises(AnnotationError, match=r"row 0: .* is the path of a file; give .*root="):
        table_of(dataset, **settings)
    pixels = read_all(dataset, root=tmp_path / "images", **settings)
    assert all(np.array_equal(pixels[i].permute(1, 2, 0), pixels_of(i)) for i in range(2))


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        (lambda dataset: dataset.with_transform(lambda batch: batch), {}, "train has a transform of its own"),
        (lambda dataset: dataset.cast_column("image", datasets.Image(mode="L")), {}, r"images in mode 'L'"),
        (lambda dataset: dataset.to_iterable_dataset(), {}, r"got IterableDataset; load a streamed data set without"),
        (lambda dataset: dataset, {"image": "objects"}, r"image='objects' has .* instead of images"),
        (lambda dataset: dataset, {"boxes": "objects.box"}, r"boxes='objects.box' is not a column of train"),
        (lambda dataset: dataset, {"labels": "label"}, r"labels='label' is not a column of train, which has"),
    ],
)  # fmt: skip
def test_data_sets_that_cannot_be_read_as_they_are_are_refused(tmp_path, change, settings, message):
    dataset = change(on_disk(tmp_path, detection_rows(), LISTS_OF_DICTS))
    with pytest.raises((TypeError, ValueError, SettingError), match=message):
        table_of(dataset, **settings)


def test_wrong_rows_name_row_and_column(tmp_path):
    rows = detection_rows(300)
    rows[290]["objects"] = [{"bbox": [2, 3, 200, 10], "category": 0}]
    dataset = on_disk(tmp_path, rows, LISTS_OF_DICTS)
    with pytest.raises(AnnotationError, match=r"^train: row 290, object 0: box .*beyond the image"):
        table_of(dataset, policy={"out_of_image": "raise"})
