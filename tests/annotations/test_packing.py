"""Shards of a packed set: the same bytes however often packing was killed, and readable by others."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.packing import PACKED_KEY, pack_tables, verify_packed
from lit_loader.annotations.tiling import Tiling, tile_table
from lit_loader.errors import AnnotationError
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.listing import Listing
from lit_loader.storage.pack_target import FolderTarget, StoreTarget
from lit_loader.storage.settings import StorageSettings
from lit_loader.storage.verifying import wrong_images
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
    with pytest.raises(AnnotationError, match="unfinished run of other images"):
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


def test_append_adds_sets_and_rows_of_packed_images(tmp_path, table):
    pack({"train": table.select(range(6))}, tmp_path / "packed")
    for rows in ([1, 4], [1, 4, 5]):
        report = pack({"val": table.select(rows)}, tmp_path / "packed", append=True)
        assert (report.num_images, report.num_skipped) == (0, len(rows))
        stored = AnnotationTable.load(tmp_path / "packed/val.arrow", key=PACKED_KEY)
        assert list(stored.image_paths) == [f"{row}.png" for row in rows]
    catalog = Catalog.load(tmp_path / "packed/catalog.arrow")
    assert stored.shards.tolist() == catalog.object_of[catalog.slots(stored.image_paths)].tolist()
    assert verify_packed(FolderTarget(tmp_path / "packed"), progress=False) == []


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


class _FullTarget(FolderTarget):
    """A folder whose disk is full when a file whose name has a part is moved there."""

    part = "train.arrow"

    def put(self, names):
        for name in names:
            if self.part in name:
                raise OSError(28, "No space left on device")
            super().put([name])


def test_other_data_are_refused_after_a_run_that_died_behind_its_commit(tmp_path, table):
    with pytest.raises(OSError, match="No space left"):
        pack({"train": table.select(range(5))}, tmp_path / "packed", target=_FullTarget)
    with pytest.raises(AnnotationError, match=r"unfinished run of other images.*same arguments"):
        pack({"other": table.select(range(5, 12))}, tmp_path / "packed")
    assert pack({"train": table.select(range(5))}, tmp_path / "packed").num_images == 5
    assert sorted(path.name for path in (tmp_path / "packed").iterdir()) == ["catalog.arrow", "shards", "train.arrow"]


def test_image_that_changed_behind_its_finished_shard_is_refused(tmp_path, table):
    target = type("_", (_FullTarget,), {"part": "train-000001"})
    with pytest.raises(OSError, match="No space left"):
        pack({"train": table}, tmp_path / "packed", target=target)
    flip_byte(table.root / "0.png", -20)
    with pytest.raises(AnnotationError, match="unfinished run of other images"):
        pack({"train": table}, tmp_path / "packed")


@pytest.mark.parametrize("name", ["train.arrow", "shards/train-000000.tar", "shards/train-000077.tar"])
def test_files_of_others_are_neither_replaced_nor_joined(tmp_path, table, name):
    path = tmp_path / "packed" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    for _ in range(2):
        with pytest.raises(AnnotationError, match=f"not of this packed set: {name}; remove them"):
            pack({"train": table.select([0])}, tmp_path / "packed")
    assert contents(tmp_path / "packed") == {name: b"mine"}


def test_folder_of_a_stranger_leads_to_no_file_elsewhere(tmp_path, table):
    secret = tmp_path / "id_rsa"
    secret.write_text("mine")
    secret.chmod(0o600)
    work = tmp_path / "packed/.packing"
    pack({"train": table.select([0])}, tmp_path / "packed")
    work.mkdir()
    (work / "committed").write_text('["/etc/passwd", "../../id_rsa"]')
    (work / "train.arrow").symlink_to(secret)
    with pytest.raises(OSError, match=r"train\.arrow"):
        pack({"train": table}, tmp_path / "packed", append=True)
    assert not work.exists()
    work.symlink_to(tmp_path / "images")
    with pytest.raises(AnnotationError, match="got a link"):
        pack({"train": table}, tmp_path / "packed", append=True)
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("mine", 0o600)


@pytest.mark.parametrize("lines", ["[1]\n", '{"plan": "KEY"}\n{"shard": 1, "starts": [1e999], "digests": 3}\n[[[\n'])
def test_journal_of_a_stranger_is_no_crash(tmp_path, table, lines):
    work = tmp_path / "packed/.packing"
    work.mkdir(parents=True)
    with pytest.raises(OSError, match="No space left"):
        pack({"train": table}, tmp_path / "packed", target=type("_", (_FullTarget,), {"part": "train-000000"}))
    key = json.loads((work / "journal.jsonl").read_text().splitlines()[0])["plan"]
    (work / "journal.jsonl").write_text(lines.replace("KEY", key))
    shutil.rmtree(tmp_path / "packed/shards", ignore_errors=True)
    assert pack({"train": table}, tmp_path / "packed").num_images == 12


def test_set_with_the_name_of_the_catalog_is_refused(tmp_path, table):
    with pytest.raises(AnnotationError, match="a set cannot be called 'catalog'"):
        pack({"catalog": table}, tmp_path / "packed")


def test_images_of_a_mirror_are_refused(tmp_path, table, monkeypatch):
    monkeypatch.setattr("lit_loader.annotations.packing.run.is_mirrored", lambda root: root == table.root)
    with pytest.raises(AnnotationError, match="the images are in a store; copy the data set to this host"):
        pack({"train": table}, tmp_path / "packed")


def test_long_extension_does_not_move_the_ranges(tmp_path, table):
    path = "a.jpg?sig=" + "x" * 120
    (table.root / "0.png").rename(table.root / path)
    table = replace(table.select([0, 1]), image_paths=[path, "1.png"])
    pack({"train": table}, tmp_path / "packed")
    shard = (tmp_path / "packed/shards/train-000000.tar").read_bytes()
    assert member_names(shard)[0] == "00000000.img"
    assert verify_packed(FolderTarget(tmp_path / "packed"), progress=False) == []


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


def test_verify_compares_images_whose_shard_has_its_digest(tmp_path, table):
    pack({"train": table}, tmp_path / "packed")
    path = tmp_path / "packed/catalog.arrow"
    catalog = Catalog.load(path)
    replace(catalog, starts=catalog.starts + (np.arange(12) == 1)).save(path)
    problems = verify_packed(FolderTarget(tmp_path / "packed"), progress=False)
    assert problems == ["shards/train-000000.tar: the image '1.png' differs"]


def test_verify_names_damaged_and_missing_tables(tmp_path, tables):
    pack(tables, tmp_path / "packed")
    target = FolderTarget(tmp_path / "packed")
    (tmp_path / "packed/train.arrow").write_bytes(b"garbage")
    assert verify_packed(target, progress=False) == ["train.arrow differs"]
    (tmp_path / "packed/val.arrow").unlink()
    assert verify_packed(target, progress=False) == ["val.arrow is missing"]


def test_images_are_verified_in_parts_and_forged_ranges_are_named(tmp_path, table, monkeypatch):
    monkeypatch.setattr("lit_loader.storage.verifying._READ_BYTES", 700)
    pack({"train": table}, tmp_path / "packed", shard_bytes=1 << 20)
    catalog = Catalog.load(tmp_path / "packed/catalog.arrow")
    shard = (tmp_path / "packed/shards/train-000000.tar").read_bytes()
    reads = []

    def read_at(offset, length):
        reads.append((offset, length))
        return shard[offset : offset + length]

    assert wrong_images(catalog, 0, read_at) is None
    # No byte is read twice, and none stays in memory.
    assert reads == [(start, 700) for start in (*range(0, len(shard), 700), len(shard))]
    # An image inside another one, and one behind the end.
    starts = catalog.starts.copy()
    starts[[3, 11]] = [starts[2] + 1, 1 << 62]
    assert wrong_images(replace(catalog, starts=starts), 0, read_at) == [3, 11]


class _FakeStore:
    """Jobs on a folder, in this process."""

    def __init__(self, folder):
        self.folder = folder
        self.downloads = []

    def run_job(self, name, settings, request, *, progress):
        if name == "upload":
            for path, key in request["files"]:
                (self.folder / key).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, self.folder / key)
        if name == "list":
            files = contents(self.folder)
            arrays = {"sizes": np.array([len(data) for data in files.values()], np.int64)}
            arrays["times"] = np.zeros(len(files), np.int64)
            Listing(keys=list(files), versions=[""] * len(files), **arrays).save(Path(request["path"]))
        if name == "download":
            for key in Listing.load(Path(request["listing"])).keys:
                self.downloads.append(key)
                (Path(request["folder"]) / key).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.folder / key, Path(request["folder"]) / key)
        return {"differing": {}}


def test_store_sends_the_index_alone_and_no_copy_of_it_stays(tmp_path, table, monkeypatch):
    store = _FakeStore(tmp_path / "store")
    monkeypatch.setattr("lit_loader.storage.pack_target.run_job", store.run_job)
    target = StoreTarget(StorageSettings(url="s3://bucket/set", cache_dir=tmp_path / "cache"))
    pack_tables({"train": table.select(range(6)), "val": table.select([6])}, target, shard_bytes=SHARD_BYTES)
    assert store.downloads == []
    pack_tables({"train": table}, target, shard_bytes=SHARD_BYTES, append=True)
    assert store.downloads == ["catalog.arrow", "train.arrow"]
    assert verify_packed(target, progress=False) == []
    assert store.downloads[2:] == ["catalog.arrow", "train.arrow", "val.arrow"]
    assert contents(tmp_path / "cache") == {}


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


def test_table_of_regions_is_refused_with_the_remedy(tmp_path):
    table = draw_set(tmp_path / "files", num_images=2, objects=1)
    tiles = tile_table(table, Tiling(size=32, overlap=0.25))
    with pytest.raises(AnnotationError, match="regions of images; pack the table of whole images"):
        pack({"train": tiles}, tmp_path / "packed")


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
