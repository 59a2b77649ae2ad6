"""`MixedSource`: tables of several sources under the same names, and settings that must fit them."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from lit_loader.annotations import AnnotationTable, Attribute
from lit_loader.datasets import AutoSource, FormatSource, ImageFilesSource, MixedSource, TableSource, VocSource
from lit_loader.errors import AnnotationError, CacheError, ImageError, SettingError
from lit_loader.samplers import RandomSampler, SequentialSampler
from tests.support.drawn_set import DrawnSource
from tests.support.mixed_sets import CLASSES, make_folders, mixed_source

STAGES = ("train", "val", "test", "predict")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    make_folders(folder)
    return folder


def table(*class_names, labels=(0,), **columns):
    """Return a table with one image for each label."""
    arguments = {
        "root": "/nowhere",
        "image_paths": [f"{i}.jpg" for i in range(len(labels))],
        "class_names": class_names,
        "offsets": np.arange(len(labels) + 1),
        "boxes": np.tile([1, 2, 8, 9], (len(labels), 1)),
        "labels": labels,
    }
    return AnnotationTable(**{**arguments, **columns})


def one(*class_names, **columns):
    """Return a source with a table for training and validation."""
    single = table(*class_names, **columns)
    return DrawnSource(train=single, val=single)


def points(*names):
    """Return columns of one object with points."""
    shape = (1, len(names))
    return {
        "keypoints": np.ones((*shape, 2), np.float32),
        "visibility": np.full(shape, 2, np.uint8),
        "keypoint_names": names,
    }


def test_every_stage_has_a_table_of_each_source_under_the_same_names(folder):
    source = mixed_source(folder)
    for stage in STAGES:
        assert source.set_names(stage) == ["plant", "street", "field"]
        tables = source.tables(stage)
        assert {table.class_names for table in tables} == {("leaf", "stem", "car")}
        assert [Path(table.root).name for table in tables] == ["plant", "street", "field"]
        assert [table.unlabelled_classes for table in tables] == [(), ("stem",), ()]


def test_tables_equal_those_of_each_source_alone_but_for_the_names(folder):
    source = mixed_source(folder)
    for name, mixed in zip(source.sources, source.tables("val"), strict=True):
        (alone,) = AutoSource(source.sources[name], cache_dir=str(folder / "cache"), progress=False).tables("val")
        new_names = [CLASSES[name].get(label, label) for label in alone.class_names]
        kept_rows = [row for row, label in enumerate(alone.labels.tolist()) if new_names[label] is not None]
        assert list(mixed.image_paths) == list(alone.image_paths)
        assert mixed.boxes.tolist() == alone.boxes[kept_rows].tolist()
        labels = [new_names[label] for label in alone.labels[kept_rows]]
        assert [mixed.class_names[label] for label in mixed.labels] == labels


def test_image_that_only_had_dropped_objects_has_no_objects():
    source = MixedSource({"a": one("leaf", "weed", labels=[1, 0, 1])}, classes={"a": {"weed": None}})
    (train,) = source.tables("train")
    assert train.class_names == ("leaf",)
    assert train.offsets.tolist() == [0, 0, 1, 1]


def test_star_stands_for_classes_that_are_not_listed():
    sources = {"a": one("leaf", "stem", "weed", labels=[0, 1, 2]), "b": one("leaf")}
    dropped = MixedSource(sources, classes={"a": {"leaf": "leaf", "*": None}})
    assert dropped.tables("val")[0].offsets.tolist() == [0, 1, 1, 1]
    merged = MixedSource(sources, classes={"a": {"leaf": "leaf", "*": "other"}}, missing="absent")
    assert merged.tables("val")[0].class_names == ("leaf", "other")
    assert merged.tables("val")[0].labels.tolist() == [0, 1, 1]


def test_classes_are_numbered_by_first_occurrence_or_as_class_names_says():
    sources = {"a": one("b", "a"), "b": one("c", "b")}
    assert MixedSource(sources, missing="absent").tables("train")[1].class_names == ("b", "a", "c")
    names = ["c", "a", "b", "later"]
    chosen = MixedSource(sources, missing="absent", class_names=names)
    assert chosen.tables("train")[0].class_names == tuple(names)
    assert chosen.tables("train")[0].labels.tolist() == [2]
    with pytest.raises(ValueError, match=r"class_names=\['c', 'b'\] lacks \['a'\].*drop them by classes"):
        MixedSource(sources, missing="absent", class_names=["c", "b"]).tables("train")


def test_missing_classes_that_are_not_settled_are_listed_with_both_options():
    sources = {"plant": one("leaf", "stem"), "street": one("leaf", "car"), "both": one("leaf", "stem", "car")}
    with pytest.raises(ValueError, match=r"plant lacks car and street lacks stem\.") as error:
        MixedSource(sources).tables("train")
    text = str(error.value)
    assert "'unlabelled': such objects may be visible there" in text
    assert "'absent': there are none" in text
    assert text.endswith("pass missing={'plant': 'unlabelled', 'street': 'unlabelled'}")
    with pytest.raises(ValueError, match=r": street lacks stem\."):
        MixedSource(sources, missing={"plant": "absent"}).tables("train")


def test_remedy_of_missing_settles_all_classes_and_keeps_the_present_words():
    sources = {"plant": one("leaf", "stem"), "street": one("leaf", "car", "bus"), "roof": one("tile", "leaf")}
    missing = {"plant": {"car": "absent"}, "roof": "absent"}
    with pytest.raises(SettingError, match="leaves open") as error:
        MixedSource(sources, missing=missing).tables("train")
    remedy = error.value.settings["missing"]
    assert remedy["plant"] == {"car": "absent", "bus": "unlabelled", "tile": "unlabelled"}
    assert remedy["roof"] == "absent"
    tables = MixedSource(sources, missing=remedy).tables("train")
    assert [table.unlabelled_classes for table in tables] == [("bus", "tile"), ("stem", "tile"), ()]


@pytest.mark.parametrize(
    ("missing", "unlabelled"),
    [
        ("absent", [(), ()]),
        ("unlabelled", [("car", "bus"), ("stem",)]),
        ({"plant": "unlabelled", "street": "absent"}, [("car", "bus"), ()]),
        ({"plant": {"car": "absent", "bus": "unlabelled"}, "street": "unlabelled"}, [("bus",), ("stem",)]),
    ],
)
def test_missing_says_which_classes_are_unlabelled(missing, unlabelled):
    sources = {"plant": one("leaf", "stem"), "street": one("leaf", "car", "bus")}
    for stage in ("train", "val"):
        tables = MixedSource(sources, missing=missing).tables(stage)
        assert [table.unlabelled_classes for table in tables] == unlabelled


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (
            {"plant": {"car": "absent", "leaf": "absent"}, "street": "absent"},
            "names classes that plant labels.*lacks car",
        ),
        ({"plant": {"van": "absent"}, "street": "absent"}, r"\{'van': 'absent'\}.* or that the run does not have"),
    ],
)
def test_contradictory_entries_of_missing_are_refused(missing, message):
    sources = {"plant": one("leaf", "stem"), "street": one("leaf", "car")}
    with pytest.raises(ValueError, match=message):
        MixedSource(sources, missing=missing).tables("train")


def test_source_that_only_predicts_lacks_no_class(tmp_path):
    images = ImageFilesSource(str(tmp_path), progress=False)
    (tmp_path / "a.jpg").touch()
    source = MixedSource({"plant": one("leaf"), "new": images})
    assert source.set_names("predict") == ["new"]
    assert source.set_names("val") == ["plant"]
    assert source.tables("predict")[0].class_names == ("leaf",)


def test_different_points_are_refused_and_absent_ones_are_added():
    left_right = one("face", **points("left", "right"))
    with pytest.raises(ValueError, match=r"the points of the sources a and b differ: .*'left'.*'top'"):
        MixedSource({"a": left_right, "b": one("face", **points("top", "low"))}).tables("train")
    _, without = MixedSource({"a": left_right, "b": one("face")}).tables("train")
    assert without.keypoint_names == ("left", "right")
    assert without.visibility.tolist() == [[0, 0]]


def test_attributes_and_their_values_are_united():
    first = one("face", attributes={"pose": Attribute(ids=np.array([0]), names=("front",))})
    second = one("face", attributes={"pose": Attribute(ids=np.array([0]), names=("back",))})
    tables = MixedSource({"a": first, "b": second, "c": one("face")}).tables("train")
    assert [table.attributes["pose"].names for table in tables] == [("back", "front")] * 3
    assert [table.attributes["pose"].ids.tolist() for table in tables] == [[1], [0], [-1]]


def test_sources_that_share_a_table_rename_it_differently():
    shared = table("leaf", "stem", labels=[0, 1])
    sources = {"day": DrawnSource(val=shared), "night": DrawnSource(val=shared)}
    classes = {"day": {"leaf": "tree"}, "night": {"stem": "tree"}}
    day, night = MixedSource(sources, classes=classes, missing="absent").tables("val")
    assert [day.class_names[label] for label in day.labels] == ["tree", "stem"]
    assert [night.class_names[label] for label in night.labels] == ["leaf", "tree"]


def test_sets_with_equal_names_are_refused():
    source = MixedSource({"a": DrawnSource(val=[table("leaf"), table("leaf")]), "a-0": one("leaf")})
    with pytest.raises(ValueError, match=r"several sets of val have the names \['a-0'\]; give other names"):
        source.set_names("val")


def test_whole_numbers_are_names_as_hydra_parses_them():
    sources = {2023: one("0", "1"), "b": one("0")}
    source = MixedSource(sources, classes={2023: {0: "leaf", 1: None}, "b": {0: "leaf"}}, ratio={2023: 1, "b": 1})
    assert source.set_names("train") == ["2023", "b"]
    assert source.tables("train")[0].class_names == ("leaf",)


def test_several_validation_sets_of_a_source_are_numbered():
    source = MixedSource({"a": DrawnSource(val=[table("leaf"), table("leaf")]), "b": one("leaf")})
    assert source.set_names("val") == ["a-0", "a-1", "b"]
    assert len(source.tables("val")) == 3


def test_paths_are_opened_by_auto_source_with_the_cache_of_the_mix(folder, tmp_path):
    source = MixedSource({"plant": folder / "plant"}, cache_dir=str(tmp_path / "cache"), progress=False)
    source.prepare()
    assert source.tables("train")[0].cache_key is not None
    assert any((tmp_path / "cache").iterdir())
    alone = VocSource(str(folder / "plant"), cache_dir=str(tmp_path / "cache"), progress=False)
    assert alone.tables("train")[0].class_names == source.tables("train")[0].class_names


def test_changed_files_change_the_fingerprint_and_the_tables(tmp_path):
    make_folders(tmp_path)
    source = mixed_source(tmp_path)
    source.prepare()
    fingerprint = source.fingerprint()
    assert source.tables("val")[0] is source.tables("val")[0]
    source.prepare()
    assert source.fingerprint() == fingerprint
    split = tmp_path / "plant" / "ImageSets" / "Main" / "val.txt"
    split.write_text("".join(split.read_text().splitlines(keepends=True)[:1]))
    source.prepare()
    assert source.fingerprint() != fingerprint
    assert source.tables("val")[0].num_images == 1


def test_pickled_source_opens_the_same_tables(folder):
    source = mixed_source(folder)
    source.prepare()
    data = pickle.dumps(source)
    assert len(data) < 2_000
    copy = pickle.loads(data)
    copy.reopen()
    for mine, theirs in zip(source.tables("train"), copy.tables("train"), strict=True):
        assert mine.labels.tolist() == theirs.labels.tolist()


def test_renamed_tables_are_pickled_as_references(folder):
    for mixed in mixed_source(folder).tables("train"):
        assert len(pickle.dumps(mixed)) < 1_000


def test_errors_of_a_source_name_it(folder, tmp_path):
    source = MixedSource({"plant": str(folder / "plant"), "gone": FormatSource("coco", str(tmp_path), train="a.json")})
    for method in (source.prepare, source.reopen, lambda: source.tables("train")):
        with pytest.raises(AnnotationError, match=f"^{re.escape(str(tmp_path))}/a.json: source gone: ") as error:
            method()
        assert error.value.path == tmp_path / "a.json"


class Failing(TableSource):
    """A source whose tables raise an error."""

    def __init__(self, error):
        self.error = error

    def prepare(self):
        pass

    def tables(self, stage):
        raise self.error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CacheError("damaged", remedy="delete it"), "source a: damaged; delete it"),
        (AnnotationError("bad box", path="x.json", line=3), "x.json:3: source a: bad box"),
        (ImageError("no image", settings={"policy.size": "drop"}), "no image; give .*size.* to the source$"),
        (SettingError("fraction", 2, "is too large"), "sources.a.fraction=2 is too large"),
        (ValueError("no images"), "source a: no images"),
        (KeyError("unexpected"), "unexpected"),
    ],
)
def test_error_of_a_source_keeps_its_type_and_gets_its_name(error, message):
    with pytest.raises(type(error), match=message) as raised:
        MixedSource({"a": Failing(error)}).tables("train")
    assert raised.value is error
    assert type(pickle.loads(pickle.dumps(error))) is type(error)


def test_remedy_for_a_path_is_a_config_of_its_source(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "a.jpg").touch()
    (tmp_path / "data.yaml").write_text("train: train\nnames: [cat, dog]\n")
    node = f"dataset.sources.a={{_target_: lit_loader.datasets.AutoSource, root: {tmp_path}"
    with pytest.raises(AnnotationError, match=re.escape(f"; set arguments of the source by {node}, layout: VALUE}}")):
        MixedSource({"a": tmp_path}).tables("train")
    source = MixedSource({"a": tmp_path})
    errors = {
        "options: {image_dir: a/b}": {"image_dir": "a/b"},
        "policy: {box: drop}": {"policy.box": "drop"},
        "ARGUMENT: VALUE": {},
    }
    for text, settings in errors.items():
        source.__dict__["_source_by_name"]["a"] = Failing(AnnotationError("bad", remedy="change it", settings=settings))
        remedy = f"bad; change it; set arguments of the source by {node}, {text}}}"
        with pytest.raises(AnnotationError, match=re.escape(remedy)):
            source.tables("train")


# -- the mix -----------------------------------------------------------------------------------------------


def joined(lengths, **settings):
    """Return the sampler of a mix of sources with these numbers of images."""
    sources = {f"s{n}": one("leaf", labels=[0] * length) for n, length in enumerate(lengths)}
    source = MixedSource(sources, **settings)
    return source.join_samplers([SequentialSampler(length) for length in lengths])


def test_ratio_decides_the_mix():
    assert joined([10, 4]).quotas.tolist() == [10, 4]
    assert joined([10, 4], num_samples=7).quotas.tolist() == [5, 2]
    assert joined([10, 4], ratio={"s0": 0.5, "s1": 0.5}).quotas.tolist() == [10, 10]
    # Quotas are in the order of the sources, whatever the order of the ratio.
    assert joined([10, 4], ratio={"s1": 1, "s0": 3}, num_samples=8).quotas.tolist() == [6, 2]
    per_batch = joined([10, 4], ratio={"s0": 3, "s1": 1}, ratio_per="batch")
    assert per_batch.counts == (3, 1)
    assert len(per_batch) == 16
    assert len(joined([10, 4], ratio={"s0": 3, "s1": 1.0}, ratio_per="batch", num_samples=8)) == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": {"s0": 1}}, r"ratio=\{'s0': 1\} must have a number for each source.*\['s0', 's1'\]"),
        (
            {"ratio": {"s0": 3, "s1": 1}, "ratio_per": "batch", "num_samples": 6},
            r"num_samples=6 is not a multiple of 4, the sum of .*; pass num_samples=8",
        ),
    ],
)
def test_mix_that_does_not_fit_the_training_images_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        joined([10, 4], **settings)


def test_sources_without_training_images_take_no_part_in_the_mix():
    sources = {"a": one("leaf"), "b": DrawnSource(val=table("leaf"))}
    assert MixedSource(sources, ratio={"a": 1}).set_names("train") == ["a"]
    with pytest.raises(ValueError, match=r"training images, which are \['a'\]"):
        MixedSource(sources, ratio={"a": 1, "b": 1}).tables("train")
    with pytest.raises(ValueError, match="num_samples=5 is the length of a mix, and only a has training images"):
        MixedSource(sources, num_samples=5).tables("train")
    with pytest.raises(ValueError, match=r"fixes the mix of a batch, and only a has .*; pass ratio_per='epoch'"):
        MixedSource(sources, ratio={"a": 4}, ratio_per="batch").tables("train")


def test_source_with_several_training_tables_is_refused():
    with pytest.raises(ValueError, match=r"sources\['a'\] has 2 training tables"):
        MixedSource({"a": DrawnSource(train=[table("leaf"), table("leaf")])}).tables("train")


def test_table_sources_mix_their_training_tables_in_full():
    sampler = DrawnSource().join_samplers([RandomSampler(3), SequentialSampler(5)])
    assert sampler.quotas.tolist() == [3, 5]
    assert DrawnSource(val=table("leaf")).set_names("val") == [""]
    assert DrawnSource(val=[table("leaf")] * 2).set_names("val") == ["0", "1"]


# -- settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"sources": {}}, ValueError, "`sources` is empty"),
        ({"sources": ["a"]}, TypeError, r"got list; give .* \{'plant': 'data/plant', 'street': 'data/street'\}$"),
        ({"sources": {"": "x"}}, ValueError, "sources names ''"),
        ({"sources": {"a\x1b": "x"}}, ValueError, "expected a text that can be printed"),
        ({"sources": {1.5: "x"}}, ValueError, "sources names 1.5"),
        ({"class_names": "leaf,stem"}, TypeError, "class_names='leaf,stem' must be a list of names, got str"),
        ({"ratio": [3, 1]}, TypeError, r"ratio=\[3, 1\] must map names of sources to numbers, got list"),
        ({"sources": {"a": {"root": "x"}}}, TypeError, "must be a TableSource or a path; .* needs a _target_"),
        ({"classes": {"c": {}}}, ValueError, r"classes names \['c'\], expected names of sources: \['a', 'b'\]"),
        ({"classes": ["a"]}, TypeError, "`classes` must map sources"),
        ({"classes": {"a": "x"}}, TypeError, r"classes\['a'\]='x' must map class names"),
        ({"classes": {"a": {"x": 1}}}, TypeError, r"classes\['a'\] has 'x': 1.*write a number as new name in quotes"),
        ({"classes": {"a": {"x": ""}}}, TypeError, r"classes\['a'\] has 'x': ''"),
        ({"missing": "ignored"}, ValueError, r"has 'ignored', which is not one of \['unlabelled', 'absent'\]"),
        ({"missing": {"a": {"x": None}}}, ValueError, "has None"),
        ({"missing": {"c": "absent"}}, ValueError, r"missing names \['c'\].*give classes, missing, ratio,"),
        ({"ratio": {"c": 1}}, ValueError, r"ratio names \['c'\]"),
        ({"ratio": {"a": 0, "b": 1}}, ValueError, r"ratio\['a'\]=0 must be positive"),
        ({"ratio": {"a": "1"}}, TypeError, r"ratio\['a'\] must be a number, got '1'"),
        ({"ratio": {"a": 1.5, "b": 1}, "ratio_per": "batch"}, ValueError, "got ratio.*1.5; pass ratio_per='epoch'"),
        ({"num_samples": 0}, ValueError, "`num_samples` must be at least 1, got num_samples=0"),
        ({"num_samples": "9"}, TypeError, "`num_samples` must be an int, got '9'"),
        ({"ratio_per": "batch"}, ValueError, r"needs the number of each .*; pass ratio=... or ratio_per='epoch'"),
        ({"ratio_per": "step"}, ValueError, r"ratio_per='step' is not one of \['batch', 'epoch'\]"),
    ],
)
def test_invalid_settings_are_refused_before_anything_is_read(settings, error, message):
    with pytest.raises(error, match=message):
        MixedSource(**{"sources": {"a": "/nowhere", "b": "/nowhere"}, **settings})


def test_unknown_classes_are_refused_with_those_of_the_source(folder):
    classes = {**CLASSES, "plant": {"weeds": None}}
    with pytest.raises(ValueError, match=r"names classes that plant does not have; its classes: leaf, stem, weed"):
        mixed_source(folder, classes=classes).tables("train")
    with pytest.raises(ValueError, match="no source has a class, or `classes` drops all of them"):
        MixedSource({"a": one("leaf")}, classes={"a": {"*": None}}).tables("train")
