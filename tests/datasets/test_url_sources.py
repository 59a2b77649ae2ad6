"""Guarantee: a data set in a store is read by its URL as the same files in a folder are."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.table import COLUMNS
from lit_loader.datasets import (
    AutoSource,
    DetectionDataset,
    FormatSource,
    ImageFilesSource,
    MixedSource,
    VocSource,
    auto_source,
)
from lit_loader.datasets.url_source import UrlSource
from lit_loader.errors import AnnotationError, ImageError, SettingError
from lit_loader.images import ImageReading
from lit_loader.images.stored_reading import StoredReading
from lit_loader.storage.mirror import fill_headers
from tests.support.stored_sets import closing_store
from tests.support.url_sets import NUM_IMAGES, write_sets

# Not by importorskip, because obstore must not be imported where tests fork.
pytestmark = pytest.mark.skipif(find_spec("obstore") is None, reason="the extra storage is not installed")

SOURCES = {
    "coco": lambda root, **settings: FormatSource("coco", root, train="train.json", **settings),
    "yolo": lambda root, **settings: FormatSource("yolo", root, train="train", **settings),
    "voc": lambda root, **settings: VocSource(root, val=None, test=None, **settings),
    "classes": lambda root, **settings: FormatSource("image_folder", root, train=".", **settings),
    "list": lambda root, **settings: FormatSource(
        "keypoints_txt", root, train="train.txt", options={"columns": "path box", "box_format": "xyxy"}, **settings
    ),
    "plain": ImageFilesSource,
}


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """A folder with a set of each format."""
    folder = tmp_path_factory.mktemp("sets")
    write_sets(folder)
    return folder


@pytest.fixture(scope="module")
def cache_dir(sets, tmp_path_factory):
    """A cache with the mirror of that folder, so that the sources need not list it again."""
    folder = tmp_path_factory.mktemp("cache")
    mirror = ImageFilesSource(sets.as_uri(), cache_dir=str(folder), progress=False).open_mirror(refresh=True)
    # One job for several sets; the source of YOLO has to fetch its own headers.
    folders = ("classes/", "list/", "plain/")
    fill_headers(mirror.folder, [key for key in mirror.catalog.objects if key.startswith(folders)], progress=False)
    return folder


@pytest.fixture(autouse=True)
def shared_mirror(sets, cache_dir, monkeypatch):
    """Let the sources of single sets use the mirror of the parent folder, as an `AutoSource` does."""
    open_own = UrlSource.open_mirror

    def open_part(source, *, refresh):
        if str(source.root).startswith(f"{sets.as_uri()}/"):
            source.__dict__.setdefault("_listed_url", sets.as_uri())
        return open_own(source, refresh=refresh)

    monkeypatch.setattr(UrlSource, "open_mirror", open_part)


def tables_of(source):
    """Return the tables of all stages, from an existing mirror for a URL."""
    source.reopen()
    return {stage: source.tables(stage) for stage in ("train", "val", "test", "predict")}


def assert_equal_tables(table: AnnotationTable, expected: AnnotationTable):
    # The time of an object is stored in microseconds, so stamps differ.
    for name in COLUMNS.keys() - {"image_stamps"}:
        column = getattr(table, name)
        expected_column = getattr(expected, name)
        assert (column is None) == (expected_column is None), name
        if column is not None:
            arrays = COLUMNS[name].to_arrays(name, column)
            expected_arrays = COLUMNS[name].to_arrays(name, expected_column)
            assert all(np.array_equal(arrays[key], expected_arrays[key]) for key in expected_arrays), name
    assert table.class_names == expected.class_names


@pytest.mark.parametrize("kind", SOURCES)
def test_tables_of_a_url_equal_those_of_the_folder(kind, sets, cache_dir, tmp_path):
    settings = {"progress": False, "num_workers": 0}
    local = tables_of(SOURCES[kind](sets / kind, cache_dir=str(tmp_path), **settings))
    remote = tables_of(SOURCES[kind](f"{sets.as_uri()}/{kind}", cache_dir=str(cache_dir), **settings))
    for stage, tables in local.items():
        assert len(tables) == len(remote[stage])
        for table, expected in zip(remote[stage], tables, strict=True):
            assert_equal_tables(table, expected)
    assert any(table.num_images == NUM_IMAGES for tables in remote.values() for table in tables)


def test_layout_of_a_url_is_found(sets, cache_dir):
    source = AutoSource(f"{sets.as_uri()}/voc", cache_dir=str(cache_dir), progress=False)
    layout = source.find(refresh=False)
    assert (layout.format, layout.root) == ("voc", f"{sets.as_uri()}/voc")
    assert layout.tables("train")[0].num_images


def test_pickled_source_of_a_nested_layout_opens_the_same_mirror(sets, cache_dir, monkeypatch):
    # Without the fixture above.
    monkeypatch.undo()
    choose = auto_source.choose_layout
    monkeypatch.setattr(auto_source, "choose_layout", lambda folder, _: replace(choose(folder / "voc"), root="voc"))
    source = AutoSource(sets.as_uri(), cache_dir=str(cache_dir), progress=False)
    source.reopen()
    table = source.tables("train")[0]
    other = pickle.loads(pickle.dumps(source.find()))
    other.reopen()
    assert other.tables("train")[0].root == table.root


def test_images_of_several_urls_are_read_from_their_stores(sets, cache_dir):
    kinds = ("coco", "voc")
    sources = {
        kind: SOURCES[kind](f"{sets.as_uri()}/{kind}", cache_dir=str(cache_dir), progress=False) for kind in kinds
    }
    mixed = MixedSource(sources, missing="absent")
    mixed.reopen()
    reading = mixed.image_reading(ImageReading())
    for kind, table in zip(kinds, mixed.tables("train"), strict=True):
        inner = reading.for_table(table)
        assert isinstance(inner, StoredReading)
        with closing_store(sources[kind].__dict__["_store"]):
            image, _ = DetectionDataset(table, reading=reading)[1]
            expected, _ = DetectionDataset(SOURCES[kind](sets / kind, progress=False).tables("train")[0])[1]
            assert np.array_equal(image, expected)
        # A placeholder has zeros, which no decoder takes for an image.
        with pytest.raises(ImageError):
            ImageReading().read(table.image_path(1))


def test_error_names_the_url_and_not_the_mirror(sets, cache_dir):
    source = FormatSource("coco", f"{sets.as_uri()}/coco", train="nope.json", cache_dir=str(cache_dir), progress=False)
    with pytest.raises(AnnotationError) as raised:
        source.reopen()
    assert f"{sets.as_uri()}/coco/nope.json" in str(raised.value)
    assert str(cache_dir) not in str(raised.value)


def test_split_file_of_the_store_is_read_and_another_url_is_refused(sets, cache_dir):
    settings = {"cache_dir": str(cache_dir), "progress": False, "fold": 0}
    root = f"{sets.as_uri()}/coco"
    with pytest.raises(SettingError, match=r"split_file='s3://other/split\.json' is not below root"):
        tables_of(FormatSource("coco", root, train="train.json", split_file="s3://other/split.json", **settings))
    with pytest.raises(AnnotationError, match=re.escape(f"{root}/split.json")):
        tables_of(FormatSource("coco", root, train="train.json", split_file=f"{root}/split.json", **settings))


def test_folds_compare_copies_by_the_store(sets, cache_dir):
    """Placeholders of images with equal sizes have equal bytes, although the images differ."""
    root = f"{sets.as_uri()}/classes"
    source = FormatSource("image_folder", root, train=".", folds=2, fold=0, cache_dir=str(cache_dir), progress=False)
    tables = tables_of(source)
    assert sum(table.num_images for stage in ("train", "val") for table in tables[stage]) == NUM_IMAGES
    sizes = {path.stat().st_size for path in tables["train"][0].root.rglob("*.jpg")}
    assert len(sizes) < NUM_IMAGES


@pytest.mark.parametrize(
    ("root", "storage", "message"),
    [
        ("memory://set", {}, "root='memory://set' is the memory of one process"),
        ("ftp://host/set", {}, "schemes: s3, gs, az, http, https, file"),
        ("s3://me:sesame@host/set", {}, "must not contain a login"),
        ("https://host/set?token=sesame", {}, "must not contain a login, a query"),
        ("s3://bucket/set", {"window": 0}, "storage.window=0 is not a whole number from 1"),
        (
            "s3://bucket/set",
            {"num_connections": 1025},
            "storage.num_connections=1025 is not a whole number from 1 to 1024",
        ),
        ("s3://bucket/set", {"token": ["sesame"]}, "storage.token=... must be text"),
        ("folder", {"token": "sesame"}, "storage=... is for the URL of a store"),
    ],
)
def test_wrong_url_or_setting_is_refused_without_secrets(root, storage, message):
    with pytest.raises(SettingError) as raised:
        FormatSource("coco", root, train="train.json", storage=storage)
    assert message in str(raised.value)
    assert "sesame" not in str(raised.value)


def test_credentials_are_in_no_repr_and_no_pickle():
    storage = {"endpoint": "http://host", "secret_access_key": "sesame"}
    for source in (
        FormatSource("coco", "s3://bucket/set", train="a.json", storage=storage),
        ImageFilesSource("s3://bucket/set", storage=storage),
        AutoSource("s3://bucket/set", storage=storage),
    ):
        assert "sesame" not in repr(source)
        data = pickle.dumps(source)
        assert b"sesame" not in data
        assert pickle.loads(data).storage == {"endpoint": "http://host"}
