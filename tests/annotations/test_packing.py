"""Shards of a packed set: the same bytes however often packing was killed, and readable by others."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.packing import PACKED_KEY, pack_tables, verify_packed
from lit_loader.errors import AnnotationError
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.pack_target import FolderTarget
from tests.support.drawn_set import draw_set
from tests.support.forks import exit_code_of_fork
from tests.support.packed_sets import contents, flip_byte, pack

SHARD_BYTES = 20480


@pytest.fixture
def table(tmp_path):
    return draw_set(tmp_path / "images", num_images=12)


@pytest.fixture
def tables(table):
    return {"train": table.select(range(9)), "val": table.select(range(9, 12))}


def test_shard_is_not_larger_than_its_limit_unless_a_single_image_is(tmp_path, table):
    noise = np.random.default_rng(0).integers(0, 255, (120, 120, 3), dtype=np.uint8)
    Image.fromarray(noise).save(table.root / "4.png")
    report = pack({"train": table}, tmp_path / "packed")
    sizes = [path.stat().st_size for path in sorted((tmp_path / "packed/shards").iterdir())]
    assert report.num_bytes == sum(sizes)
    assert report.num_shards == len(sizes) > 2
    oversized = [number for number, size in enumerate(sizes) if size > SHARD_BYTES]
    catalog = Catalog.load(tmp_path / "packed/catalog.arrow")
    assert [np.flatnonzero(catalog.object_of == number).tolist() for number in oversized] == [[4]]


def test_images_are_stored_byte_by_byte_at_the_ranges_of_the_catalog(tmp_path, tables, table):
    pack(tables, tmp_path / "packed")
    catalog = Catalog.load(tmp_path / "packed/catalog.arrow")
    for path, slot in zip(table.image_paths, catalog.slots(table.image_paths), strict=True):
        shard = (tmp_path / "packed" / catalog.objects[catalog.object_of[slot]]).read_bytes()
        start = catalog.starts[slot]
        assert shard[start : start + catalog.lengths[slot]] == table.root.joinpath(path).read_bytes()
    stored = AnnotationTable.load(tmp_path / "packed/val.arrow", key=PACKED_KEY)
    assert [catalog.objects[number][:11] for number in stored.shards] == ["shards/val-"] * 3


def test_equal_data_give_equal_bytes_with_other_times_and_workers(tmp_path, tables):
    pack(tables, tmp_path / "a")
    for path in (tmp_path / "images").iterdir():
        os.utime(path, (1, 1))
    pack_tables(tables, FolderTarget(tmp_path / "b"), shard_bytes=SHARD_BYTES, num_workers=1)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


class _DyingTarget(FolderTarget):
    """A folder whose process ends at a step: before or after a file moves there."""

    def __init__(self, folder, steps):
        super().__init__(folder)
        self.steps = steps

    def put(self, names):
        for name in names:
            self.count()
            super().put([name])
            self.count()

    def count(self):
        self.steps -= 1
        if self.steps == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def pack_in_child(tables, folder, *, steps, **options):
    """Pack in a process that dies at a step, and return True if it did."""

    def run():
        report = pack(tables, folder, target=lambda folder: _DyingTarget(folder, steps), **options)
        return report is not None

    code = exit_code_of_fork(run)
    assert code in (0, -signal.SIGKILL)
    return code != 0


def test_run_killed_at_any_point_continues_to_the_bytes_of_one_run(tmp_path, table):
    tables = {"train": table.select(range(4)), "val": table.select([4])}
    pack(tables, tmp_path / "once")
    expected = contents(tmp_path / "once")
    step = 1
    while pack_in_child(tables, tmp_path / f"{step}", steps=step):
        (tmp_path / f"{step}/.packing/shards").mkdir(exist_ok=True)
        (tmp_path / f"{step}/.packing/shards/.train-000001.x.tmp").write_bytes(b"incomplete")
        assert pack(tables, tmp_path / f"{step}").num_images == 5
        assert contents(tmp_path / f"{step}") == expected
        step += 1
    assert step > 2 * len(expected)


def test_continued_run_does_not_write_finished_shards_again(tmp_path, tables):
    assert pack_in_child(tables, tmp_path / "packed", steps=6)
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "packed/shards").iterdir()}
    pack(tables, tmp_path / "packed")
    new_times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "packed/shards").iterdir()}
    # The last shard may lack its line in the journal.
    assert len(times.items() & new_times.items()) >= len(times) - 1 > 0


def test_unfinished_shards_of_other_data_are_refused(tmp_path, tables):
    assert pack_in_child(tables, tmp_path / "packed", steps=4)
    with pytest.raises(AnnotationError, match="unfinished shards of other images"):
        pack({"train": tables["train"]}, tmp_path / "packed")


def test_append_adds_new_images_as_new_shards(tmp_path, table):
    pack({"train": table.select(range(6))}, tmp_path / "packed")
    earlier_files = contents(tmp_path / "packed/shards")
    report = pack({"train": table, "val": table.select([1, 11])}, tmp_path / "packed", append=True)
    assert (report.num_images, report.num_skipped, report.num_shared) == (6, 7, 1)
    shards = contents(tmp_path / "packed/shards")
    assert earlier_files.items() < shards.items()
    stored = AnnotationTable.load(tmp_path / "packed/train.arrow", key=PACKED_KEY)
    catalog = Catalog.load(tmp_path / "packed/catalog.arrow")
    assert list(stored.image_paths) == list(table.image_paths)
    assert (stored.shards == catalog.object_of[catalog.slots(table.image_paths)]).all()
    np.testing.assert_array_equal(stored.boxes, table.boxes)
    assert verify_packed(FolderTarget(tmp_path / "packed"), progress=False) == []
    keys = [name for shard in sorted(shards) for name in member_names(shards[shard]) if name.endswith(".json")]
    assert len(keys) == len(set(keys)) == 12
    unchanged = contents(tmp_path / "packed")
    assert pack({"train": table}, tmp_path / "packed", append=True).num_skipped == 12
    assert contents(tmp_path / "packed") == unchanged


def test_killed_append_continues_to_the_bytes_of_one_run(tmp_path, table):
    table = table.select(range(4))
    pack({"train": table.select(range(2))}, tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "once")
    pack({"train": table}, tmp_path / "once", append=True)
    step = 1
    shutil.copytree(tmp_path / "first", tmp_path / f"{step}")
    while pack_in_child({"train": table}, tmp_path / f"{step}", steps=step, append=True):
        pack({"train": table}, tmp_path / f"{step}", append=True)
        assert contents(tmp_path / f"{step}") == contents(tmp_path / "once")
        step += 1
        shutil.copytree(tmp_path / "first", tmp_path / f"{step}")
    assert step > 4


def test_append_refuses_changed_images_and_annotations(tmp_path, table):
    pack({"train": table}, tmp_path / "packed")
    moved = replace(table, boxes=table.boxes + 1)
    with pytest.raises(AnnotationError, match=r"1\.png: the image has other annotations.*pack the set anew"):
        pack({"train": moved}, tmp_path / "packed", append=True)
    flip_byte(table.root / "7.png", 100)
    with pytest.raises(AnnotationError, match=r"7\.png: the image has changed since it was packed"):
        pack({"train": table}, tmp_path / "packed", append=True)


def test_packed_set_is_not_packed_again_by_accident(tmp_path, table):
    pack({"train": table}, tmp_path / "packed")
    earlier_files = contents(tmp_path / "packed")
    with pytest.raises(AnnotationError, match="append=True"):
        pack({"train": table}, tmp_path / "packed")
    assert contents(tmp_path / "packed") == earlier_files


def test_missing_image_is_an_error_that_names_it(tmp_path, table):
    (table.root / "5.png").unlink()
    with pytest.raises(AnnotationError, match=r"5\.png: the image cannot be read .*missing_image"):
        pack({"train": table}, tmp_path / "packed")


def test_verify_names_the_image_of_one_flipped_byte(tmp_path, tables):
    target = FolderTarget(tmp_path / "packed")
    pack(tables, tmp_path / "packed")
    catalog = Catalog.load(tmp_path / "packed/catalog.arrow")
    shard = tmp_path / "packed" / catalog.objects[0]
    flip_byte(shard, int(catalog.starts[1] + catalog.lengths[1] - 1))
    assert verify_packed(target, progress=False) == ["shards/train-000000.tar: the image '1.png' differs"]
    flip_byte(shard, int(catalog.starts[1] + catalog.lengths[1] - 1))
    flip_byte(shard, int(catalog.starts[1]) - 512)
    assert "annotations or headers do" in verify_packed(target, progress=False)[0]
    shard.write_bytes(shard.read_bytes()[: int(catalog.starts[1])])
    assert "'1.png' differs" in verify_packed(target, progress=False)[0]
    shard.unlink()
    assert verify_packed(target, progress=False) == ["shards/train-000000.tar is missing"]


def member_names(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getnames()


def test_webdataset_reads_images_and_records(tmp_path, table):
    webdataset = pytest.importorskip("webdataset")
    from webdataset.tariterators import group_by_keys, tar_file_expander

    pack({"train": table}, tmp_path / "packed")
    samples = []
    # WebDataset itself leaves its files to the garbage collector.
    for shard in sorted((tmp_path / "packed/shards").iterdir()):
        with shard.open("rb") as stream:
            samples += group_by_keys(tar_file_expander([{"url": str(shard), "stream": stream}]))
    samples = map(webdataset.autodecode.Decoder([webdataset.autodecode.imagehandler("rgb8")]), samples)
    samples = list(samples)
    assert [sample["__key__"] for sample in samples] == [f"{number:08d}" for number in range(12)]
    for row, sample in enumerate(samples):
        objects = table.objects(row)
        record = sample["json"]
        np.testing.assert_array_equal(sample["png"], np.asarray(Image.open(table.image_path(row))))
        assert (record["path"], record["width"], record["height"]) == (f"{row}.png", 64, 48)
        assert record["boxes"] == table.boxes[objects].tolist()
        assert record["labels"] == table.labels[objects].tolist()
        assert record["names"] == [table.class_names[label] for label in table.labels[objects]]
        points = np.reshape(record["keypoints"], (-1, 3, 3))
        np.testing.assert_array_equal(points[..., :2], table.keypoints[objects])
        np.testing.assert_array_equal(points[..., 2], table.visibility[objects])
        finish = table.attributes["finish"]
        assert record["attributes"]["finish"] == [
            None if value < 0 else finish.names[value] for value in finish.ids[objects]
        ]


def test_record_of_regions_has_the_objects_of_the_whole_image(tmp_path):
    Image.new("RGB", (60, 40)).save(tmp_path / "a.jpg")
    table = AnnotationTable(
        root=tmp_path,
        image_paths=["a.jpg", "a.jpg"],
        class_names=["x"],
        widths=[30, 30],
        heights=[40, 40],
        regions=[[0, 0, 30, 40], [30, 0, 60, 40]],
        file_sizes=[[60, 40], [60, 40]],
        offsets=[0, 1, 2],
        boxes=[[1, 2, 3, 4], [1, 2, 3, 4]],
        labels=[0, 0],
        crowd=[True, False],
    )
    assert pack({"train": table}, tmp_path / "packed").num_images == 1
    with tarfile.open(tmp_path / "packed/shards/train-000000.tar") as tar:
        record = json.load(tar.extractfile("00000000.json"))
    assert (record["width"], record["height"]) == (60, 40)
    assert record["boxes"] == [[1, 2, 3, 4], [31, 2, 33, 4]]
    assert record["crowd"] == [True, False]
    stored = AnnotationTable.load(tmp_path / "packed/train.arrow", key=PACKED_KEY)
    assert stored.shards.tolist() == [0, 0]


def test_image_embedded_in_an_annotation_file_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    table = AnnotationTable(
        root=tmp_path, image_paths=["a.json"], class_names=["x"], offsets=[0, 0], boxes=[], labels=[]
    )
    with pytest.raises(AnnotationError, match=r"embedded.*lit-loader convert"):
        pack({"train": table}, tmp_path / "packed")


def test_two_runs_do_not_pack_to_one_folder_at_once(tmp_path, table):
    class _Busy(FolderTarget):
        def sizes(self):
            with pytest.raises(AnnotationError, match="another process is packing"):
                pack({"train": table}, tmp_path / "packed")
            return super().sizes()

    pack({"train": table}, tmp_path / "packed", target=_Busy)
