"""A source of any format: stages by file or held out, the same names everywhere, groups on one side."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from PIL import Image

from lit_loader.annotations.formats.registry import read_annotations
from lit_loader.datasets import FormatSource, format_source
from lit_loader.errors import AnnotationError
from tests.support.face_lists import OPTIONS, write_faces


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "faces"
    write_faces(folder, "train.txt", 40)
    write_faces(folder, "val.txt", 6, start=40, rare_every=100)
    write_faces(folder, "test.txt", 4, start=60, folder="exam")
    return folder


def source(root, **arguments):
    settings = {"format": "keypoints_txt", "root": str(root), "train": "train.txt", "options": OPTIONS}
    settings |= {"cache_dir": str(root.parent / "cache"), "progress": False}
    return FormatSource(**settings | arguments)


def paths(tables):
    return [path for table in tables for path in table.image_paths]


STAGES = ("train", "val", "test", "predict")


def test_a_stage_has_one_several_or_no_tables(root):
    faces = source(root, val=["val.txt", "test.txt"], predict="val.txt")
    assert [len(faces.tables(stage)) for stage in STAGES] == [1, 2, 0, 1]
    assert [len(source(root, test="test.txt").tables(stage)) for stage in STAGES] == [1, 0, 1, 1]


def test_all_stages_number_the_same_classes(root):
    faces = source(root, val="val.txt", test="test.txt")  # val has no angry face
    assert {faces.tables(stage)[0].class_names for stage in STAGES} == {("angry", "calm")}
    assert set(faces.tables("val")[0].labels.tolist()) == {1}
    renamed = source(root, val="val.txt", class_names=["calm", "sad", "angry"])
    assert set(renamed.tables("val")[0].labels.tolist()) == {0}
    with pytest.raises(AnnotationError, match="angry"):
        source(root, class_names=["calm"]).tables("train")


def test_all_stages_number_the_same_attribute_values(tmp_path):
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    (tmp_path / "train.txt").write_text("a.png 1 1 9 9 left\na.png 1 1 9 8 up\n")
    (tmp_path / "val.txt").write_text("a.png 1 1 9 9 up\na.png 1 1 9 8 right\n")
    faces = source(
        tmp_path, val="val.txt", options={"columns": "path box attribute:pose"}, cache_dir=str(tmp_path / "c")
    )
    train, val = (faces.tables(stage)[0] for stage in ("train", "val"))
    assert train.attributes["pose"].names == val.attributes["pose"].names == ("left", "right", "up")
    assert train.attributes["pose"].ids.tolist() == [0, 2]
    assert val.attributes["pose"].ids.tolist() == [2, 1]
    assert val.boxes.tolist() == [[1, 1, 9, 9], [1, 1, 9, 8]]


def test_held_out_images_keep_the_class_mix_and_miss_nothing(root):
    faces = source(root, val_fraction=0.2, test_fraction=0.1)
    train, val, test, predict = (faces.tables(stage)[0] for stage in STAGES)
    assert [table.num_images for table in (train, val, test)] == [28, 8, 4]
    assert sorted(paths([train, val, test])) == sorted(paths(source(root).tables("train")))
    assert all(table.class_counts().min() >= 1 for table in (train, val, test))
    assert list(predict.image_paths) == list(test.image_paths)
    uncached = replace(faces, cache_dir=str(root.parent / "other"))
    assert paths(uncached.tables("val")) == paths([val])
    assert paths(replace(faces, seed=1).tables("val")) != paths([val])
    assert len(pickle.dumps(val)) < 2_000  # still rows of the cache file


def test_the_order_of_the_list_changes_no_split(root):
    expected = {stage: set(paths(source(root, val_fraction=0.2).tables(stage))) for stage in STAGES}
    lines = (root / "train.txt").read_text().splitlines(keepends=True)
    (root / "train.txt").write_text("".join(reversed(lines)))
    assert {stage: set(paths(source(root, val_fraction=0.2).tables(stage))) for stage in STAGES} == expected


def test_a_group_is_on_one_side(root):
    pattern = r"person(\d+)_"
    persons = {}
    for group_pattern in (pattern, None):
        faces = source(root, val_fraction=0.25, group_pattern=group_pattern)
        persons[group_pattern] = [{p.split("_")[0] for p in paths(faces.tables(s))} for s in ("train", "val")]
    train, val = persons[pattern]
    assert (len(train), len(val), train & val) == (15, 5, set())
    # Without the pattern, some persons are in both.
    assert persons[None][0] & persons[None][1]


def test_a_fraction_that_leaves_nothing_is_refused(root):
    grouped = source(root, val_fraction=0.1, group_pattern="(images)/")
    message = r"val_fraction=0\.1 of 40 images leaves no image for val: there are too few groups of '\(images\)/'"
    with pytest.raises(AnnotationError, match=message):
        grouped.tables("train")
    write_faces(root, "one.txt", 1, folder="one")
    with pytest.raises(AnnotationError, match=r"test_fraction=0.3 of 1 images .* too few images; raise"):
        source(root, train="one.txt", test_fraction=0.3).tables("train")


def test_groups_in_two_files_are_refused(root):
    write_faces(root, "leak.txt", 4, start=2, folder="again")
    leaky = source(root, val="leak.txt", group_pattern=r"person(\d+)_")
    with pytest.raises(AnnotationError, match=r"2 groups of .* are in both train and val, such as '1', '2'"):
        leaky.tables("train")
    with pytest.raises(AnnotationError, match="are in both train and val"):
        leaky.prepare()
    assert replace(leaky, group_pattern=None).tables("val")[0].num_images == 4
    with pytest.raises(ValueError, match=r"does not match the image path 'images/person0_0.png'"):
        source(root, group_pattern="(teapot)").tables("train")


def test_options_may_differ_in_a_stage(root):
    lines = (root / "test.txt").read_text().replace("exam/", "").replace(" ", ";")
    (root / "bare.txt").write_text(lines)
    other = {"separator": ";", "image_dir": "exam"}
    faces = source(root, test="bare.txt", stage_options={"test": other})
    assert faces.tables("train")[0].num_images == 40
    assert list(faces.tables("test")[0].image_paths) == [f"exam/person{i // 2}_{i}.png" for i in range(60, 64)]
    with pytest.raises(AnnotationError, match=r"bare.txt:1"):
        replace(faces, stage_options={}).tables("test")


def test_the_policy_reaches_the_reader(root):
    (root / "images" / "person0_0.png").unlink()
    with pytest.raises(AnnotationError, match=r"person0_0.png"):
        source(root).tables("train")
    readable = source(root, policy={"missing_image": "drop"}, num_workers=0).tables("train")[0]
    assert readable.num_images == 39
    with pytest.raises(ValueError, match="num_workers=-1"):
        source(root, num_workers=-1).tables("train")


def test_a_list_is_read_once_for_all_stages(root, monkeypatch):
    calls = []

    def counted(*arguments, **settings):
        calls.append(arguments)
        return read_annotations(*arguments, **settings)

    monkeypatch.setattr(format_source, "read_annotations", counted)
    faces = source(root, val="train.txt", test="train.txt")
    assert faces.tables("val")[0].num_images == 40
    assert [(format, name) for format, _, name in calls] == [("keypoints_txt", "train.txt")]
    faces.prepare()
    assert len(list((root.parent / "cache").rglob("*.arrow"))) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": None}, "no stage is set; give one, e.g. train='train.txt'"),
        ({"val": "val.txt", "val_fraction": 0.1}, "val='val.txt' and val_fraction=0.1 contradict each other"),
        ({"test": "val.txt", "test_fraction": 0.1}, "test='val.txt' and test_fraction=0.1 contradict"),
        ({"val_fraction": 1.0}, r"val_fraction=1.0 must be in \[0, 1\)"),
        ({"test_fraction": -0.1}, r"test_fraction=-0.1 must be in \[0, 1\)"),
        ({"val_fraction": 0.5, "test_fraction": 0.5}, "= 1.0 must be below 1"),
        ({"train": None, "test": "test.txt", "val_fraction": 0.1}, "out of train, which is None"),
        ({"stage_options": {"trian": {}}}, r"stage_options names \['trian'\]; the stages are train, val, test"),
        ({"group_pattern": "person"}, "has no group"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(root, changes, message):
    with pytest.raises(ValueError, match=message):
        source(root, **changes)


def test_a_list_without_any_object_needs_class_names(tmp_path):
    (tmp_path / "train.txt").write_text("# nothing\n")
    faces = source(tmp_path, cache_dir=str(tmp_path / "cache"))
    with pytest.raises(AnnotationError, match="no object in any of the lists"):
        faces.tables("train")
    assert replace(faces, class_names=["calm"]).tables("train")[0].num_images == 0


def test_an_unknown_option_is_refused_with_what_was_meant(root):
    with pytest.raises(ValueError, match="did you mean 'columns'"):
        source(root, options={"colums": "path"}).tables("train")
    with pytest.raises(ValueError, match="did you mean 'keypoints_txt'"):
        source(root, format="point_list").tables("train")
    with pytest.raises(ValueError, match="no 'mising_image'"):
        source(root, policy={"mising_image": "drop"}).tables("train")


def test_people_in_training_and_test_of_udacity_faces_are_found(shared_data, tmp_path):
    faces = FormatSource(
        format="keypoints_csv",
        root=str(shared_data / "udacity_faces"),
        train="training_frames_keypoints.csv",
        test="test_frames_keypoints.csv",
        options={"image_dir": "training", "schema": "face_68"},
        stage_options={"test": {"image_dir": "test"}},
        group_pattern=r"([A-Za-z_]+)_\d+\.",
        cache_dir=str(tmp_path),
        progress=False,
    )
    with pytest.raises(AnnotationError, match=r"16 groups .* are in both train and test"):
        faces.tables("train")
    assert replace(faces, group_pattern=None).tables("test")[0].num_images == 16
    held_out = replace(faces, test=None, test_fraction=0.2)
    assert sum(held_out.tables(stage)[0].num_images for stage in ("train", "test")) == 79
