"""Packed sets give the tables, images and batches of the files that were packed."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from lit_loader.annotations import Masks
from lit_loader.annotations.fingerprint import table_digests
from lit_loader.annotations.formats import read_annotations
from lit_loader.annotations.packing import verify_packed
from lit_loader.datamodules import DetectionDataModule, WorkerSettings
from lit_loader.datasets import PackedSource, dataset_overrides, open_source
from lit_loader.errors import AnnotationError, ImageError, SettingError, UnsafePathError
from lit_loader.images import ImageReading
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.pack_target import FolderTarget
from tests.support.drawn_set import DrawnSource, draw_set
from tests.support.made_sets import WITHOUT_POINTS, make_image_folder
from tests.support.packed_sets import flip_byte, pack


@pytest.fixture
def packed(tmp_path):
    """Return a function that makes the source of a packed folder."""

    def make(folder="packed", **settings):
        return PackedSource(tmp_path / folder, cache_dir=str(tmp_path / "cache"), progress=False, **settings)

    return make


def split(table):
    last = len(table) - 4
    return {
        "train": table.select(range(last)),
        "val": table.select(range(last, last + 2)),
        "test": table.select([-1 % len(table)]),
    }


def detection_set(root):
    return split(draw_set(root, num_images=12))


def mask_set(root):
    table = draw_set(root, num_images=12, **WITHOUT_POINTS)
    corners = table.boxes[:, [0, 1, 2, 1, 2, 3]]
    return split(replace(table, masks=Masks.from_rows([[polygon] for polygon in corners])))


def classification_set(root):
    table = draw_set(root / "drawn", num_images=12, objects=1, **WITHOUT_POINTS)
    make_image_folder(root, {"all": table})
    return split(read_annotations("image_folder", root, "all", use_cache=False, progress=False))


@pytest.mark.parametrize("make", [detection_set, mask_set, classification_set])
def test_tables_and_images_are_those_that_were_packed(tmp_path, packed, make):
    tables = make(tmp_path / "files")
    pack(tables, tmp_path / "packed")
    source = packed()
    reading = source.image_reading(ImageReading())
    for stage, table in tables.items():
        (packed_table,) = source.tables(stage)
        assert table_digests(packed_table) == table_digests(table)
        assert packed_table.shards.min() >= 0
        for row in range(len(table)):
            assert torch.equal(reading.read(packed_table.image_path(row)), ImageReading().read(table.image_path(row)))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_are_bit_for_bit_those_of_local_files(tmp_path, packed, num_workers):
    tables = detection_set(tmp_path / "files")
    pack(tables, tmp_path / "packed")
    workers = WorkerSettings(num_workers=num_workers, worker_method="thread" if num_workers else "multiprocessing")
    batches = []
    for source in (DrawnSource(**tables), packed(predict="test")):
        datamodule = DetectionDataModule(source, batch_size=3, seed=5, workers=workers)
        datamodule.prepare_data()
        datamodule.setup("fit")
        batches.append(list(datamodule.train_dataloader()))
    assert len(batches[0]) == len(batches[1]) > 1
    for (local_images, local_targets), (images, targets) in zip(*batches, strict=True):
        assert all(map(torch.equal, local_images, images))
        for local_target, target in zip(local_targets, targets, strict=True):
            assert local_target.keys() == target.keys()
            assert all(torch.equal(local_target[name], target[name]) for name in ("boxes", "labels"))
            assert local_target["image_id"] == target["image_id"]


def test_source_is_pickled_without_its_tables_and_reads_again(tmp_path, packed):
    tables = detection_set(tmp_path / "files")
    pack(tables, tmp_path / "packed")
    source = packed()
    source.tables("train")
    copy = pickle.loads(pickle.dumps(source))
    (table,) = copy.tables("train")
    assert table_digests(table) == table_digests(tables["train"])
    assert pickle.loads(pickle.dumps(table)).root == table.root
    assert copy.image_reading(ImageReading()).read(table.image_path(0)).shape[0] == 3


def test_moved_and_appended_sets_are_read_again(tmp_path, packed):
    table = draw_set(tmp_path / "files", num_images=12)
    pack({"train": table.select(range(6))}, tmp_path / "packed")
    source = packed(val=None, test=None)
    assert len(source.tables("train")[0]) == 6
    key = source.fingerprint()
    pack({"train": table}, tmp_path / "packed", append=True)
    source.prepare()
    assert len(source.tables("train")[0]) == 12
    assert source.fingerprint() != key
    (tmp_path / "packed").rename(tmp_path / "moved")
    (moved,) = packed("moved", val=None, test=None).tables("train")
    assert moved.root == (tmp_path / "moved").resolve()


def test_images_are_held_out_by_the_digests_of_the_index(tmp_path, packed):
    table = draw_set(tmp_path / "files", num_images=12)
    # A copy of an image must stay in its split.
    (table.root / "3.png").write_bytes((table.root / "2.png").read_bytes())
    pack({"train": table}, tmp_path / "packed")
    for seed in range(4):
        source = packed(val=None, test=None, val_fraction=0.3, seed=seed)
        paths = {stage: list(source.tables(stage)[0].image_paths) for stage in ("train", "val")}
        assert sorted([*paths["train"], *paths["val"]]) == sorted(table.image_paths)
        assert ("2.png" in paths["val"]) == ("3.png" in paths["val"])


def test_class_names_give_the_order_of_ids(tmp_path, packed):
    pack(detection_set(tmp_path / "files"), tmp_path / "packed")
    names = ["pointless", "other", "rare", "common"]
    assert packed(class_names=names).tables("val")[0].class_names == tuple(names)
    with pytest.raises(AnnotationError, match=r"'pointless'.*class_names lacks"):
        packed(class_names=["common", "rare"]).tables("val")


def test_unknown_set_and_missing_index_are_errors_with_the_remedy(tmp_path, packed):
    pack({"train": draw_set(tmp_path / "files", num_images=3)}, tmp_path / "packed")
    with pytest.raises(AnnotationError, match=r"the set 'val' of val does not exist; the sets are train; .*val=None"):
        packed().tables("train")
    with pytest.raises(AnnotationError, match=r"found no index; pack it with lit-loader pack.*train-\*\.tar"):
        packed("files").tables("train")
    with pytest.raises(AnnotationError, match="names of sets alone, or patterns alone"):
        packed(val="shards/*.tar").tables("train")
    with pytest.raises(UnsafePathError):
        packed(train="../files").tables("train")


def test_damaged_index_is_an_error_with_the_remedy(tmp_path, packed):
    pack({"train": draw_set(tmp_path / "files", num_images=3)}, tmp_path / "packed")
    path = tmp_path / "packed/train.arrow"
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(AnnotationError, match=r"train\.arrow.*copy it again"):
        packed(val=None, test=None).tables("train")


def test_damaged_catalog_is_an_error_with_the_remedy(tmp_path, packed):
    tables = {"train": draw_set(tmp_path / "files", num_images=3)}
    pack(tables, tmp_path / "packed")
    flip_byte(tmp_path / "packed/catalog.arrow", -1000)
    for function in (
        lambda: packed(val=None, test=None).tables("train"),
        lambda: pack(tables, tmp_path / "packed", append=True),
        lambda: verify_packed(FolderTarget(tmp_path / "packed"), progress=False),
    ):
        with pytest.raises(AnnotationError, match=r"catalog\.arrow.*copy it again") as error:
            function()
        assert "delete" not in str(error.value)


def test_catalog_that_names_files_elsewhere_is_refused(tmp_path, packed):
    pack({"train": draw_set(tmp_path / "files", num_images=3)}, tmp_path / "packed")
    path = tmp_path / "packed/catalog.arrow"
    catalog = Catalog.load(path)
    replace(catalog, objects=["../files/0.png"] * len(catalog.objects)).save(path)
    with pytest.raises(UnsafePathError, match=r"contains '\.\.'"):
        packed(val=None, test=None).tables("train")


@pytest.mark.parametrize(("start", "length"), [(0, 2**62), (2**62, 2**62), (10**6, 1)])
def test_catalog_with_ranges_beyond_a_shard_is_refused(tmp_path, packed, start, length):
    pack({"train": draw_set(tmp_path / "files", num_images=3)}, tmp_path / "packed")
    path = tmp_path / "packed/catalog.arrow"
    catalog = Catalog.load(path)
    starts = np.append(np.int64(start), catalog.starts[1:])
    replace(catalog, starts=starts, lengths=np.append(np.int64(length), catalog.lengths[1:])).save(path)
    with pytest.raises(AnnotationError, match=r"1 images end after their shards, such as one of 'shards/train-000000"):
        packed(val=None, test=None).tables("train")


# -- tar files of other programs --------------------------------------------------------------------------------------


def write_tar(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def picture(value=0):
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), (value, value, value)).save(buffer, "PNG")
    return buffer.getvalue()


def record(**fields):
    return json.dumps({"width": 8, "height": 6, "boxes": [[1, 1, 4, 5]], **fields}).encode()


def test_shards_without_their_index_have_the_same_objects(tmp_path, packed):
    tables = detection_set(tmp_path / "files")
    pack(tables, tmp_path / "packed")
    (tmp_path / "packed/catalog.arrow").unlink()
    source = packed(train="shards/train-*.tar", val="shards/val-*.tar", test=None)
    (table,) = source.tables("train")
    original = tables["train"]
    np.testing.assert_array_equal(table.offsets, original.offsets)
    np.testing.assert_array_equal(table.boxes, original.boxes)
    np.testing.assert_array_equal(table.keypoints, original.keypoints)
    np.testing.assert_array_equal(table.visibility, original.visibility)
    np.testing.assert_array_equal(table.widths, original.widths)
    names = [[t.class_names[label] for label in t.labels] for t in (table, original)]
    assert names[0] == names[1]
    values = [
        [(*t.attributes["finish"].names, None)[value] for value in t.attributes["finish"].ids]
        for t in (table, original)
    ]
    assert values[0] == values[1]
    assert len(set(table.shards.tolist()) | set(source.tables("val")[0].shards.tolist())) == 2
    reading = source.image_reading(ImageReading())
    for row in range(len(table)):
        assert torch.equal(reading.read(table.image_path(row)), ImageReading().read(original.image_path(row)))


def test_numbers_of_classes_are_their_ids(tmp_path, packed):
    members = {}
    for number in (2, 10, 0):
        members |= {f"{number}.png": picture(number), f"{number}.cls": b"%d\n" % number}
    write_tar(tmp_path / "packed/a.tar", members)
    (table,) = packed(train="a.tar", val=None, test=None).tables("train")
    assert table.labels.tolist() == [2, 10, 0]
    assert table.class_names == tuple(map(str, range(11)))
    names = [*"abcdefghijk"]
    (table,) = packed(train="a.tar", val=None, test=None, class_names=names).tables("train")
    assert [table.class_names[label] for label in table.labels] == ["c", "k", "a"]
    with pytest.raises(AnnotationError, match=r"'a/10\.png': class 10 is not below 3"):
        packed(train="a.tar", val=None, test=None, class_names=names[:3]).tables("train")


@pytest.mark.parametrize(
    ("ending", "values", "classes"),
    [
        ("cls", ["2", "10", "0"], ["2", "10", "0"]),
        ("cls", ["002", "10", "00"], ["2", "10", "0"]),
        ("cls", ["007", "bond", "7"], ["007", "bond", "7"]),
        ("json", [{"labels": [2]}, {"labels": [10]}, {"labels": [0]}], ["2", "10", "0"]),
        ("json", [{"names": ["x"]}, {"names": [None], "labels": [1]}, {"names": ["02"]}], ["x", "1", "02"]),
    ],
)
def test_classes_are_names_or_numbers_in_both_members(tmp_path, packed, ending, values, classes):
    members = {}
    for number, value in enumerate(values):
        data = value.encode() if ending == "cls" else record(**value)
        members |= {f"{number}.png": picture(number), f"{number}.{ending}": data}
    write_tar(tmp_path / "packed/a.tar", members)
    (table,) = packed(train="a.tar", val=None, test=None).tables("train")
    assert [table.class_names[label] for label in table.labels] == classes
    if "10" in classes:
        assert table.labels.tolist() == [2, 10, 0]


def test_numbers_in_json_are_ids_of_the_given_classes(tmp_path, packed):
    write_tar(tmp_path / "packed/a.tar", {"1.png": picture(), "1.json": record(labels=[1])})
    (table,) = packed(train="a.tar", val=None, test=None, class_names=["x", "y"]).tables("train")
    assert (table.labels.tolist(), table.class_names) == ([1], ("x", "y"))


def test_unchanged_tar_files_are_opened_without_their_annotations(tmp_path, packed, monkeypatch):
    write_tar(tmp_path / "packed/a.tar", {"1.png": picture(), "1.cls": b"x"})
    settings = {"train": "a.tar", "val": None, "test": None}
    path = packed(**settings).tables("train")[0].image_path(0)
    for file in (tmp_path / "cache").rglob("*.texts.arrow"):
        file.unlink()
    monkeypatch.setattr("lit_loader.datasets.packed_source.read_samples", None)
    assert packed(**settings).image_reading(ImageReading()).read(path).shape == (3, 6, 8)


def test_braces_in_a_pattern_are_an_error_with_the_remedy(tmp_path, packed):
    write_tar(tmp_path / "packed/train-0.tar", {"1.png": picture(), "1.cls": b"x"})
    with pytest.raises(AnnotationError, match=r"train-0\.tar; write numbers as \* or \[0-9\]"):
        packed(train="train-{0..3}.tar", val=None, test=None).tables("train")


def test_index_of_tar_files_is_reused_until_a_file_changes(tmp_path, packed, monkeypatch):
    from lit_loader.datasets import packed_source

    indexed = []
    read_samples = packed_source.read_samples
    monkeypatch.setattr(
        packed_source,
        "read_samples",
        lambda *arguments, name, **more: indexed.append(name[-5:]) or read_samples(*arguments, name=name, **more),
    )
    for name in ("a", "b"):
        write_tar(tmp_path / f"packed/{name}.tar", {"1.png": picture(), "1.cls": b"x"})
    settings = {"train": "*.tar", "val": None, "test": None}
    assert len(packed(**settings).tables("train")[0]) == 2
    assert len(packed(**settings).tables("train")[0]) == 2
    assert indexed == ["a.tar", "b.tar"]
    write_tar(tmp_path / "packed/b.tar", {"1.png": picture(), "1.cls": b"x", "2.png": picture(), "2.cls": b"y"})
    assert len(packed(**settings).tables("train")[0]) == 3
    assert indexed == ["a.tar", "b.tar", "b.tar"]


@pytest.mark.parametrize(
    ("members", "error", "message"),
    [
        ({"../1.png": picture(), "../1.cls": b"x"}, UnsafePathError, r"contains '\.\.'"),
        ({"/etc/1.png": picture(), "/etc/1.cls": b"x"}, UnsafePathError, "is absolute"),
        ({"1.png": picture(), "1.json": b'{"boxes": ['}, AnnotationError, "as JSON"),
        ({"1.png": picture(), "1.json": b'["boxes"]'}, AnnotationError, "as a JSON object, got list"),
        ({"1.png": picture(), "1.json": b'{"boxes":' * 10_000}, AnnotationError, "as JSON"),
        ({"1.png": picture(), "1.json": record(names=["a", "b"])}, AnnotationError, "a value for each of 1 objects"),
        ({"1.png": picture(), "1.json": record(names=["a"], boxes=[["x"]])}, AnnotationError, "no valid class"),
        ({"1.png": picture(), "1.json": record(names=["a"], boxes=[7])}, AnnotationError, "no valid class"),
        ({"1.png": picture(), "1.json": record(names=["a" * 300])}, AnnotationError, "256"),
        (
            {"1.png": picture(), "1.json": record(names=["a"], attributes={"x": [[]]})},
            AnnotationError,
            "no valid class",
        ),
        ({"1.png": picture(), "1.json": record(names=["a"], keypoints=[[1, 2]])}, AnnotationError, "no valid class"),
        ({"1.png": picture(), "1.json": record()}, AnnotationError, "class None is neither"),
        ({"1.png": picture(), "1.json": record(labels=[[1, 2]])}, AnnotationError, "neither a name nor a number"),
        ({"1.png": picture(), "1.json": record(labels=[True])}, AnnotationError, "class True is neither"),
        ({"1.png": picture(), "1.json": record(labels=[-1])}, AnnotationError, "class -1 is neither"),
        *(
            (
                {"1.png": picture(), "1.json": record(names=["a"], keypoints=[[[1, 2, state]]])},
                AnnotationError,
                "visibility must be 0, 1 or 2",
            )
            for state in (300, -1, 2.5, float("nan"))
        ),
        ({"1.png": picture(), "1.png ": b"", "1.cls": b""}, AnnotationError, "class"),
        ({"1.cls": b"x"}, AnnotationError, "classes are unknown"),
    ],
)
def test_hostile_members_are_errors(tmp_path, packed, members, error, message):
    write_tar(tmp_path / "packed/a.tar", members)
    with pytest.raises(error, match=message):
        packed(train="a.tar", val=None, test=None).tables("train")


def test_two_images_of_one_name_are_refused(tmp_path, packed):
    path = tmp_path / "packed/a.tar"
    path.parent.mkdir()
    with tarfile.open(path, "w") as tar:
        for name in ("1.png", "1.cls", "2.png", "2.cls", "1.png", "1.cls"):
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(AnnotationError, match=r"'a/1\.png' twice"):
        packed(train="a.tar", val=None, test=None).tables("train")


def test_shard_that_was_cut_after_the_index_was_read_fails_the_sample(tmp_path, packed):
    pack({"train": draw_set(tmp_path / "files", num_images=3)}, tmp_path / "packed")
    source = packed(val=None, test=None)
    (table,) = source.tables("train")
    shard = tmp_path / "packed/shards/train-000000.tar"
    shard.write_bytes(shard.read_bytes()[:600])
    with pytest.raises(ImageError, match=r"train-000000\.tar"):
        source.image_reading(ImageReading()).read(table.image_path(2))


# -- found without a search for formats -------------------------------------------------------------------------------


def test_layout_of_a_packed_set_is_found(tmp_path, packed):
    tables = detection_set(tmp_path / "files")
    pack({"train": tables["train"], "val": tables["val"]}, tmp_path / "packed")
    source = open_source(tmp_path / "packed", cache_dir=str(tmp_path / "cache"), progress=False)
    assert isinstance(source, PackedSource)
    assert (source.train, source.val, source.test) == ("train", "val", "val")
    assert table_digests(source.tables("train")[0]) == table_digests(tables["train"])
    words = dataset_overrides(source)
    assert words[:2] == ["dataset=packed", f"dataset.root={tmp_path / 'packed'}"]
    assert "dataset.test=val" in words
    with pytest.raises(SettingError, match="is of annotation files"):
        open_source(tmp_path / "packed", options={"image_dir": "x"})
