from __future__ import annotations

import re

import pytest

from lit_loader.errors import AnnotationError
from tests.support.coco_set import CocoSet


@pytest.fixture
def coco(tmp_path):
    coco = CocoSet(tmp_path)
    coco.image()
    coco.category()
    return coco


PROBLEMS = {
    "image_id 9 does not match any entry in `images`": {"image_id": 9},
    "image_id is None": {"image_id": None},
    "image_id is True": {"image_id": True},
    "bits; expected at most 63": {"image_id": 1e30},
    "expected bbox as x, y, width, height, got [1, 2, 3]": {"bbox": [1, 2, 3]},
    "expected bbox as x, y, width, height, got [1, 2, 3, '4']": {"bbox": [1, 2, 3, "4"]},
    "expected bbox as x, y, width, height, got 'no'": {"bbox": "no"},
    "expected iscrowd 0 or 1, got 'no'": {"iscrowd": "no"},
    "three for each point": {"keypoints": [1, 2]},
    "three for each point: x": {"keypoints": [1, 2, "2"]},
    "expected v of a point as 0 (absent), 1 (hidden) or 2 (visible), got 3.0": {"keypoints": [1, 2, 3]},
    "expected v of a point as 0 (absent), 1 (hidden) or 2 (visible), got 1.5": {"keypoints": [1, 2, 1.5]},
    "expected 2 points for 'x', got 1": {"keypoints": [1, 2, 2]},
    "attributes are [1]": {"attributes": [1]},
    "the name of the attribute has 0 characters": {"attributes": {"": "a"}},
    "id is [1]": {"id": [1]},
}


@pytest.mark.parametrize("words", PROBLEMS)
def test_malformed_annotations_are_refused_with_line_or_dropped(coco, words):
    coco.add(keypoints=[1, 1, 2, 2, 2, 2])
    coco.add(**PROBLEMS[words])
    with pytest.raises(AnnotationError, match=r"a\.json:5: object 1: .*'malformed': ") as caught:
        coco.read()
    assert words in str(caught.value)
    table = coco.read(malformed="drop")
    assert (table.num_objects, table.report.counts) == (1, {("malformed", "drop"): 1})


@pytest.mark.parametrize(
    ("member", "repeated", "place"),
    [
        ('"bbox": [1, 2, 3, 4]', '"bbox": [5, 6, 7, 8]', "a.json:6: object 1: the key 'bbox'"),
        ('"size": 4', '"size": 5', "a.json:6: object 1: the key 'size'"),
        ('"file_name": "b.jpg"', '"file_name": "a.jpg"', "a.json:3: images[1]: the key 'file_name'"),
        ('"split": "val"', '"split": "train"', "info: the key 'split'"),
    ],
)
def test_entry_that_repeats_a_key_is_malformed(coco, member, repeated, place):
    coco.image(2, "b.jpg")
    coco.more = {"info": {"split": "val"}}
    coco.add()
    coco.add(attributes={"size": 4, "color": "red"})
    coco.write()
    head, sign, tail = (coco.root / "a.json").read_text().rpartition(member)
    assert sign
    (coco.root / "a.json").write_text(f"{head}{member}, {repeated}{tail}")
    with pytest.raises(AnnotationError, match=rf"{re.escape(place)} is repeated.*'malformed': "):
        coco.read(rewrite=False)
    table = coco.read(rewrite=False, malformed="drop")
    assert table.report.counts == {("malformed", "drop"): 1}
    assert (table.num_images, table.num_objects) == (1 if "images" in place else 2, 1 if "object" in place else 2)
    assert table.split == (None if "info" in place else "val")


def test_other_meanings_of_keys_are_reported_not_refused(coco):
    coco.image(7, "b.jpg", source_id=5)
    coco.image(8, "c.jpg", source_id="")
    coco.more = {"info": {"split": 2017}, "attributes": [{"name": 5, "values": [1]}, {"name": "q", "values": ["v"]}]}
    coco.add(truncated=0.3, occluded=2, ignore="no")
    coco.add(truncated=1, occluded=1.0, ignore=0, difficult=True, attributes={"q": "v"})
    table = coco.read()
    assert list(table.image_ids) == ["1", "7", "8"]
    assert (table.split, list(table.attributes)) == (None, ["q"])
    unread = {("split of info", "not read"): 1, ("attributes", "not read"): 1}
    assert table.report.counts == {("odd_flag", "false"): 3} | unread
    assert (6, "expected ignore 0 or 1, got 'no'") in {(problem.line, problem.message) for problem in table.report}
    flags = (table.difficult, table.truncated, table.occluded)
    assert [flag.tolist() for flag in flags] == [[False, True]] * 3


def test_unread_points_still_give_missing_boxes(coco):
    points = [5, 6, 2, 9, 30, 1, 70, 70, 0]
    coco.add(None, keypoints=points)
    coco.add(None, keypoints=[0, 0, 0])
    coco.add(None, keypoints="no")
    table = coco.read(keypoints=False)
    assert table.keypoints is None
    assert table.boxes.tolist() == [[5, 6, 9, 30], [0, 0, 100, 80], [0, 0, 100, 80]]


def test_a_file_of_empty_lists_is_an_empty_set(coco):
    coco.images.clear()
    table = coco.read()
    assert (table.num_images, table.class_names) == (0, ("x",))


def test_an_unknown_category_is_an_unknown_class(coco):
    coco.add(category_id=4)
    with pytest.raises(AnnotationError, match=r"a\.json:4: object 0: category_id 4 .*'unknown_class': "):
        coco.read()
    assert coco.read(unknown_class="drop").report.counts == {("unknown_class", "drop"): 1}


@pytest.mark.parametrize(
    ("part", "record", "words"),
    [
        ("images", 5, "expected an object, got 5"),
        ("images", {"id": 1, "file_name": "b.jpg"}, "id 1 is already used by an earlier image"),
        ("images", {"id": 2}, "expected the path of an image as file_name, got None"),
        ("images", {"file_name": "b.jpg"}, "id is None"),
        ("categories", {"id": 2}, "name is None, not text"),
        ("categories", {"id": 2, "name": "n" * 300}, "name has 300 characters"),
        ("categories", {"id": 1, "name": "y"}, "id 1 is already used by an earlier category"),
        ("categories", {"id": 2, "name": "y", "keypoints": "abc"}, "keypoints must be a list"),
        ("categories", {"id": 2, "name": "y", "keypoints": ["a", "a"]}, "twice"),
        ("categories", {"id": 2, "name": "y", "keypoints": ["a"], "flip_pairs": [[0, 5]]}, "position 5"),
        ("categories", {"id": 2, "name": "y", "keypoints": ["a"], "flip_pairs": 5}, "flip_pairs must be"),
        ("categories", {"id": 2, "name": "y", "keypoints": ["a"], "normalization_pair": [0]}, "expected two positions"),
        ("categories", {"id": 2, "name": "y", "keypoints": ["p"] * 3_000}, "at most 2048"),
    ],
)
def test_malformed_images_and_categories_are_refused_with_line_or_dropped(coco, part, record, words):
    getattr(coco, part).append(record)
    with pytest.raises(AnnotationError, match=rf"a\.json:\d: {part}\[1\]: .*'malformed': ") as caught:
        coco.read()
    assert words in str(caught.value)
    table = coco.read(malformed="drop")
    assert (table.num_images, table.class_names) == (1, ("x",))
    assert table.report.count("malformed", "drop") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", r"a\.json"),
        ('{"a": 1}', r"a\.json"),
        ("[]", r"a\.json"),
        ('{"images": 1', r"a\.json"),
        ('{"images": {"id": 1}}', "images must be a list"),
        ('{"images": [],\n"categories": [], "images": []}', ":2: the key 'images' is repeated"),
    ],
)
def test_other_json_is_refused(coco, text, words):
    (coco.root / "a.json").write_text(text)
    with pytest.raises(AnnotationError, match=words):
        coco.read(rewrite=False)


@pytest.mark.parametrize("key", ["images", "annotations", "categories"])
def test_any_number_of_entries_may_be_malformed(coco, key):
    coco.add()
    getattr(coco, key).extend([1] * 10_001)
    table = coco.read(malformed="drop")
    assert (table.num_images, table.num_objects) == (1, 1)
    assert table.report.counts == {("malformed", "drop"): 10_001}


def test_only_malformed_annotations_are_dropped(coco):
    for number in range(500):
        coco.add(bbox=[1, 2, 3] if number in (0, 77, 78, 499) else [1, 2, 3, 4])
    table = coco.read(malformed="drop")
    assert table.object_ids.tolist() == [number for number in range(500) if number not in (0, 77, 78, 499)]
    assert [problem.line for problem in table.report.problems] == [4, 81, 82, 503]


def test_annotations_without_any_image_are_malformed(coco):
    coco.images.clear()
    coco.add()
    for order in (("annotations", "categories"), ("images", "annotations", "categories")):
        coco.write(order)
        with pytest.raises(AnnotationError, match="object 0: image_id 1 does not match any entry"):
            coco.read(rewrite=False)


@pytest.mark.parametrize("width", ["100", 100.5, [100], True, -1])
def test_invalid_width_is_reported(tmp_path, width):
    coco = CocoSet(tmp_path)
    coco.image(width=width)
    coco.category()
    table = coco.read(unreadable_image="keep")
    assert (table.widths.tolist(), table.report.count("bad_size", "unknown")) == ([0], 1)


@pytest.mark.parametrize("categories", [((5, "x"), (6, "x")), ((5, "x"), ("six", "y"))])
def test_text_or_ambiguous_category_ids_are_counted(tmp_path, categories):
    coco = CocoSet(tmp_path)
    coco.image()
    for category in categories:
        coco.category(*category)
    table = coco.read()
    assert table.category_ids is None
    kind = "ids of categories, since one is text or two have the same name"
    assert table.report.counts == {(kind, "not read"): 2}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 10**30])
def test_nan_and_huge_numbers_are_refused_with_line(coco, number):
    coco.add()
    coco.add([1, 1, number, 3])
    with pytest.raises(AnnotationError, match=r"a\.json:5: not valid JSON \(.*write null for NaN"):
        coco.read(malformed="drop")


def test_unread_keys_are_counted_by_name(coco):
    coco.images[0] |= {"license": 3, "coco_url": "http://x/a.jpg", "date_captured": "", "neg_category_ids": [1]}
    coco.categories[0] |= {"supercategory": "animal"}
    coco.more = {"info": {"year": 2017, "split": "val", "contributor": ""}, "captions": [{"id": 1}], "videos": []}
    coco.more |= {"licenses": [{"id": 1}, {"id": 2}], "version": "1.0", "attributes": [{"name": "q"}]}
    coco.add(track_id=4, id="a")
    coco.add(area="large", id=2)
    table = coco.read()
    assert (table.split, coco.read(split="test").split) == ("val", "test")
    once = ("license", "coco_url", "neg_category_ids")
    expected = {f"{key} of an image": 1 for key in once} | {"licenses": 2}
    expected |= dict.fromkeys(("supercategory of a category", "year of info"), 1)
    expected |= dict.fromkeys(("captions", "version", "attributes", "track_id of an annotation"), 1)
    expected |= {"id of an annotation that is text": 1, "area of an annotation that is not an area": 1}
    assert table.report.counts == {(name, "not read"): count for name, count in expected.items()}
