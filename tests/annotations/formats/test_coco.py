from __future__ import annotations

import pytest

from lit_loader.annotations import KEYPOINT_SCHEMAS
from lit_loader.errors import AnnotationError, UnsafePathError
from tests.support.coco_set import CocoSet

POINTS = ["nose", "left_eye", "right_eye"]


@pytest.fixture
def coco(tmp_path):
    coco = CocoSet(tmp_path)
    coco.image()
    coco.category()
    return coco


def test_boxes_sizes_crowds_and_flags_are_read(coco):
    coco.add((1, 2.5, 3, 4), iscrowd=0, area=12, score=1.0)
    coco.add((0, 0, 10, 5), iscrowd=1, segmentation={"counts": [7000, 1000], "size": [80, 100]})
    coco.add(ignore=1, truncated=True, occluded=1.0, segmentation=[])
    table = coco.read()
    assert table.boxes.tolist() == [[1, 2.5, 4, 6.5], [0, 0, 10, 5], [1, 2, 4, 6]]
    assert table.crowd.tolist() == [False, True, False]
    assert table.difficult.tolist() == table.truncated.tolist() == table.occluded.tolist() == [False, False, True]
    assert (list(table.image_paths), list(table.image_ids)) == (["img/a.jpg"], ["1"])
    assert (table.widths.tolist(), table.heights.tolist()) == ([100], [80])
    assert table.report.counts == {("score of an annotation", "not read"): 1}
    assert (table.keypoints, dict(table.attributes), table.split) == (None, {}, None)


@pytest.mark.parametrize(
    "order",
    [
        ("images", "categories", "annotations"),
        ("annotations", "categories", "images"),
        ("categories", "annotations", "images"),
    ],
)
def test_lists_may_be_in_any_order(coco, order):
    coco.category(7, "y")
    coco.add(category_id=7)
    coco.write(order)
    table = coco.read(rewrite=False)
    assert (table.class_names, table.labels.tolist()) == (("x", "y"), [1])


def test_classes_are_all_categories_in_the_order_of_their_ids(coco):
    for category_id, name in ((90, "last"), (18, "dog"), (3.0, "car")):
        coco.category(category_id, name)
    coco.add(category_id=18)
    coco.add(category_id=3)
    table = coco.read()
    assert table.class_names == ("x", "car", "dog", "last")
    assert table.class_counts().tolist() == [0, 1, 1, 0]
    chosen = coco.read(class_names=["dog"], unknown_class="drop")
    assert (chosen.class_names, chosen.report.counts) == (("dog",), {("unknown_class", "drop"): 1})


def test_ids_may_be_text_and_categories_may_share_a_name(coco):
    coco.image("img-2", "b.jpg")
    coco.category("c", "x")
    coco.add(image_id="img-2", category_id="c")
    table = coco.read()
    assert (list(table.image_ids), table.class_names, table.labels.tolist()) == (["1", "img-2"], ("x",), [0])


def test_points_keep_visibility_and_get_flip_pairs_by_name(coco):
    coco.category(2, "face", keypoints=POINTS)
    coco.add(category_id=2, keypoints=[5, 6, 2, 7.5, 8, 1, 3, 3, 0])
    coco.add()
    coco.add(category_id=2, keypoints=[0] * 9)
    table = coco.read()
    assert (table.keypoint_names, table.flip_pairs, table.normalization_pair) == (tuple(POINTS), ((1, 2),), None)
    assert table.keypoints[0].tolist() == [[5, 6], [7.5, 8], [0, 0]]
    assert table.visibility.tolist() == [[2, 1, 0], [0, 0, 0], [0, 0, 0]]


def test_flip_pairs_of_the_file_replace_those_by_name(coco):
    coco.category(2, "face", keypoints=POINTS, flip_pairs=[[0, 1]], normalization_pair=[1, 2])
    assert (coco.read().flip_pairs, coco.read().normalization_pair) == (((0, 1),), (1, 2))


def test_points_of_several_categories_are_united_by_name(coco):
    coco.category(2, "face", keypoints=POINTS)
    coco.category(3, "hand", keypoints=["thumb", "nose"])
    coco.add(category_id=3, keypoints=[1, 1, 2, 9, 9, 1])
    table = coco.read()
    assert table.keypoint_names == (*POINTS, "thumb")
    assert table.visibility.tolist() == [[1, 0, 0, 2]]
    assert table.keypoints[0].tolist() == [[9, 9], [0, 0], [0, 0], [1, 1]]


def test_unnamed_points_are_numbered_or_matched_by_position(coco):
    coco.add(keypoints=[1, 1, 2, 2, 2, 2] + [3, 3, 1] * 3)
    assert coco.read().keypoint_names == ("00", "01", "02", "03", "04")
    table = coco.read(schema="face_5")
    assert (table.keypoint_names[0], table.normalization_pair) == ("left_eye", (0, 1))
    assert table.visibility.tolist() == [[2, 2, 1, 1, 1]]
    with pytest.raises(AnnotationError, match=r"object 0: expected 68 points for 'x', got 5; pass `schema`"):
        coco.read(schema="face_68")


def test_a_schema_finds_named_points_by_name_and_reports_others(coco):
    coco.category(2, "face", keypoints=POINTS)
    coco.add(category_id=2, keypoints=[5, 6, 2, 7, 8, 1, 3, 3, 2])
    table = coco.read(schema={"names": ["right_eye", "chin", "nose"]})
    assert table.visibility.tolist() == [[2, 0, 2]]
    assert table.report.counts == {("unknown_point", "ignore"): 1}


def test_missing_box_is_around_points_or_the_whole_image(coco):
    coco.add(None, keypoints=[10, 20, 1, 30, 25, 2, 99, 99, 0], center=[1, 1], scale=2)
    coco.add(None, keypoints=[0] * 9)
    coco.add([], None)
    coco.annotations[2]["category_id"] = 1
    boxes = [[10, 20, 30, 25], [0, 0, 100, 80], [0, 0, 100, 80]]
    assert coco.read().boxes.tolist() == boxes
    bare = coco.read(keypoints=False)
    assert bare.keypoints is None
    assert bare.boxes.tolist()[1:] == boxes[1:]


def test_attributes_are_read_as_text(coco):
    coco.add(attributes={"pose": "up", "n": 3, "f": 0.5, "yes": True, "none": None, "empty": "", "list": [1]})
    coco.add(attributes={})
    table = coco.read()
    values = {name: attribute.names for name, attribute in table.attributes.items()}
    assert values == {"pose": ("up",), "n": ("3",), "f": ("0.5",), "yes": ("true",)}
    assert all(attribute.ids.tolist() == [0, -1] for attribute in table.attributes.values())
    assert table.report.counts == {("attribute 'list' without a single value", "not read"): 1}
    assert dict(coco.read(attributes=False).attributes) == {}


def test_listed_values_keep_their_order_and_others_follow(coco):
    coco.more["attributes"] = [{"name": "z", "values": ["b", "a"]}, {"name": "y", "values": ["q"]}]
    coco.add(attributes={"z": "0", "x": "1"})
    coco.add(attributes={"z": "a"})
    table = coco.read()
    assert {name: a.names for name, a in table.attributes.items()} == {"z": ("b", "a", "0"), "y": ("q",), "x": ("1",)}
    assert list(table.attributes) == ["z", "y", "x"]
    assert table.attributes["z"].ids.tolist() == [2, 1]


def test_entries_of_the_same_file_are_one_image(coco):
    (coco.root / "img/day").mkdir()
    coco.image(2, "day/b.jpg")
    coco.image(3, "day/b.jpg")
    coco.add(image_id=3)
    table = coco.read()
    assert list(table.image_paths) == ["img/a.jpg", "img/day/b.jpg"]
    assert table.offsets.tolist() == [0, 0, 1]
    assert table.report.counts == {("same_file", "unite"): 1}


def test_duplicate_annotation_ids_are_reported_and_kept(coco):
    coco.add(id=5)
    coco.add(id=5.0)
    table = coco.read()
    assert (table.num_objects, table.report.counts) == (2, {("duplicate_id", "keep"): 1})


@pytest.mark.parametrize("file_name", ["../b.jpg", "/etc/passwd", "a/../../b.jpg", "..\\b.jpg"])
def test_images_outside_of_the_root_are_refused_with_the_line(coco, file_name):
    coco.image(2, file_name)
    with pytest.raises(UnsafePathError, match=r"a\.json:3: "):
        coco.read(missing_image="keep")


def test_the_policy_decides_on_unusable_numbers(coco):
    coco.add([1e300, 1, 2, 3])
    coco.add([1, 1, 1e308, 3])
    coco.add([5, 5, -4, 3])
    coco.add([5, 5, 0, 3])
    coco.add(keypoints=[1e300, 1, 2, 1e39, 1, 2, 5, 5, 2])
    coco.images[0]["width"] = "wide"
    coco.images[0]["height"] = 1e300
    table = coco.read(unreadable_image="keep")
    assert table.boxes.tolist() == [[1, 5, 5, 8], [1, 2, 4, 6]]
    assert table.visibility[1].tolist() == [0, 0, 2]
    assert table.report.counts == {
        ("bad_size", "unknown"): 1,
        ("unreadable_image", "keep"): 1,
        ("invalid_keypoint", "absent"): 1,
        ("non_finite", "drop"): 2,
        ("swapped", "fix"): 1,
        ("degenerate", "drop"): 1,
    }


def test_lvis_images_are_found_by_coco_url(coco):
    coco.image(7, "b.jpg", coco_url="http://images.cocodataset.org/img/b.jpg")
    del coco.images[1]["file_name"]
    coco.add(image_id=7)
    table = coco.read(image_dir=".", missing_image="keep")
    assert (table.image_path(1).is_file(), table.source_ids.tolist()) == (True, [1, 7])
    assert table.report.count("no file_name", "end of coco_url") == 1


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"schema": "face_5", "keypoints": False}, ValueError, "keypoints=False reads none"),
        ({"num_workers": -1}, ValueError, "num_workers=-1"),
        ({"class_names": "x"}, TypeError, "not a string"),
    ],
)
def test_contradicting_options_are_refused(coco, options, error, words):
    with pytest.raises(error, match=words):
        coco.read(**options)


def test_skeleton_counts_from_one_and_coco_names_have_coco_sigmas(coco):
    schema = KEYPOINT_SCHEMAS["coco_17"]
    coco.category(2, "person", keypoints=list(schema.names), skeleton=[[a + 1, b + 1] for a, b in schema.skeleton])
    coco.add(category_id=2, keypoints=[1, 1, 2] * 17)
    assert coco.read().keypoint_schema == schema
    # Without a skeleton, or with flip pairs as this package writes them, the names still tell the rest.
    coco.categories[1] |= {"skeleton": [], "flip_pairs": list(schema.flip_pairs)}
    assert coco.read().keypoint_schema == schema
    coco.categories[1] |= {"skeleton": [[1, 2]], "sigmas": [0.5] * 17}
    schema = coco.read().keypoint_schema
    assert (schema.skeleton, schema.sigmas) == (((0, 1),), (0.5,) * 17)


@pytest.mark.parametrize(
    ("skeleton", "message"),
    [
        ([[0, 1]], "positions from 1, got [0, 1]; add 1 to every position"),
        ([[1, 4]], "skeleton has position 3, but there are 3 points"),
        ([[1, 1]], "with itself"),
        ([[1, 2, 3]], "pairs of whole numbers"),
        ([["a", "b"]], "pairs of whole numbers"),
        ([[1, True]], "pairs of whole numbers"),
        ({"1": 2}, "a list of at most 2048 pairs"),
        ([[1, 2]] * 2049, "a list of at most 2048 pairs"),
    ],
)
def test_bad_skeleton_is_reported_and_the_points_are_read(coco, skeleton, message):
    coco.category(2, "face", keypoints=POINTS, skeleton=skeleton)
    coco.add(category_id=2, keypoints=[1, 1, 2] * 3)
    table = coco.read()
    (problem,) = table.report.problems
    assert (problem.kind, problem.action, problem.file) == ("bad_skeleton", "ignore", "a.json")
    assert "categories[1] is read without its skeleton" in problem.message
    assert message in problem.message
    assert (table.skeleton, len(table.keypoint_names)) == ((), 3)


def test_sigmas_that_do_not_fit_their_points_make_a_category_malformed(coco):
    coco.category(2, "face", keypoints=POINTS, sigmas=[0.1])
    with pytest.raises(AnnotationError, match=r"a\.json.*sigmas has 1 numbers, but there are 3 points"):
        coco.read()
