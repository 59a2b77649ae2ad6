from __future__ import annotations

import json

import pytest

from lit_loader.annotations.formats import labelme_file, read_annotations
from lit_loader.errors import AnnotationError, UnsafePathError
from tests.support.structured_sets import labelme_shape as shape
from tests.support.structured_sets import make_labelme
from tests.support.text_sets import SIZE, write_image

BOX = shape("rectangle", "cat", [1, 2], [30, 40])
TRIANGLE = shape("polygon", "cat", [1, 2], [30, 4], [12.5, 20])


@pytest.fixture
def folder(tmp_path):
    """Writes ``NAME.json`` beside an image ``NAME.png``, and reads the folder."""
    write_image(tmp_path / "a.png")

    def write(*shapes, name="a", text=None, **more):
        document = {"version": "5.0.1", "flags": {}, "shapes": shapes, "imagePath": f"{name}.png", "imageData": None}
        document |= {"imageWidth": SIZE[0], "imageHeight": SIZE[1]} | more
        (tmp_path / f"{name}.json").write_text(json.dumps(document) if text is None else text)
        return tmp_path

    return write


def read(root, name=".", **options):
    return read_annotations("labelme", root, name, use_cache=False, progress=False, **options)


def test_a_rectangle_is_a_box_and_a_polygon_a_mask(folder):
    table = read(folder(shape("rectangle", "cat", [30, 2.5], [1, 40]), TRIANGLE | {"label": "dog"}))
    assert table.boxes.tolist() == [[1, 2.5, 30, 40], [1, 2, 30, 20]]
    assert table.class_names == ("cat", "dog")
    assert (table.masks.polygons(0), table.masks.polygons(1)[0].tolist()) == ([], [[1, 2], [30, 4], [12.5, 20]])
    assert (list(table.image_paths), table.widths.tolist(), len(table.report)) == (["a.png"], [SIZE[0]], 0)


def test_a_rectangle_may_have_four_corners_that_are_upright(folder):
    corners = [[1, 2], [30, 2], [30, 40], [1, 40]]
    assert read(folder(shape("rectangle", "cat", *corners))).boxes.tolist() == [[1, 2, 30, 40]]
    with pytest.raises(AnnotationError, match=r"object 0: .*is not a shape"):
        read(folder(shape("rectangle", "cat", [1, 2], [30, 3], [29, 40], [1, 40])))


def test_shapes_of_one_group_and_label_are_one_object_with_points_by_their_labels(folder):
    parts = [TRIANGLE, shape("polygon", "cat", [40, 40], [50, 40], [45, 48])]
    points = [shape("point", "left_eye", [3, 4]), shape("point", "right_eye", [5, 6])]
    table = read(folder(*(part | {"group_id": 7} for part in [*parts, *points]), BOX, BOX))
    assert table.boxes.tolist() == [[1, 2, 50, 48], [1, 2, 30, 40], [1, 2, 30, 40]]
    assert len(table.masks.polygons(0)) == 2
    assert (table.keypoint_names, table.flip_pairs) == (("left_eye", "right_eye"), ((0, 1),))
    assert table.keypoints[0].tolist() == [[3, 4], [5, 6]]
    assert table.visibility.tolist() == [[2, 2], [0, 0], [0, 0]]
    boxed = read(folder(*(part | {"group_id": "x"} for part in [BOX, *parts, *points])))
    assert (boxed.boxes.tolist(), len(boxed.masks.polygons(0))) == ([[1, 2, 30, 40]], 2)


def test_labels_of_one_group_are_objects_of_their_own(folder):
    table = read(folder(BOX | {"group_id": 0}, BOX | {"group_id": 0, "label": "dog"}))
    assert (table.num_objects, table.class_names) == (2, ("cat", "dog"))


def test_groups_that_can_be_read_in_two_ways_are_malformed(folder):
    point = shape("point", "eye", [3, 4], group_id=1)
    box = BOX | {"group_id": 1}
    for shapes, words in {
        (0, 0): "two rectangles, or two points of one label; give each object its own",
        (0, 1, 1): "two rectangles, or two points of one label",
        (0, 2, 1): "points, and objects of several labels; give each its own",
    }.items():
        group = [(box, point, box | {"label": "dog"})[i] for i in shapes]
        with pytest.raises(AnnotationError, match=rf"a\.json: object \d: group_id 1 has {words}"):
            read(folder(*group))


def test_points_without_an_object_are_counted_or_objects_by_the_option(folder):
    points = [shape("point", "a", [3, 4]), shape("point", "b", [5, 8])]
    root = folder(*points, *(point | {"group_id": 5} for point in points), BOX)
    table = read(root)
    assert table.num_objects == 1
    assert table.report.counts == {("point without a rectangle or polygon in its group", "not read"): 4}
    table = read(root, class_name="face", schema={"names": ["b", "a"]})
    assert table.class_names == ("cat", "face")
    assert sorted(table.boxes.tolist()) == [[1, 2, 30, 40], [3, 4, 5, 8], [3, 4, 5, 8]]
    assert [[5, 8], [3, 4]] in table.keypoints.tolist()


def test_other_shapes_and_keys_are_counted_by_name(folder):
    other_shapes = [shape(kind, "x", [1, 2], [3, 4]) for kind in ("circle", "line", "mask", "mask", "rotation")]
    point = shape("point", "eye", [3, 4], group_id=1, flags={"hidden": True})
    box = BOX | {"description": "fat", "score": 0, "line_color": None, "group_id": 1}
    table = read(folder(*other_shapes, box, point, lineColor=[0, 255, 0, 128], flags={"night": True, "day": False}))
    assert (table.num_objects, table.masks) == (1, None)
    expected = {"shape 'circle'": 1, "shape 'line'": 1, "shape 'mask'": 2, "shape 'rotation'": 1}
    expected |= {"'description' of a shape": 1, "'score' of a shape": 1, "'lineColor' of a file": 1}
    expected |= {"flag 'night' of a file": 1, "flag 'hidden' of a point": 1}
    assert table.report.counts == {(name, "not read"): count for name, count in expected.items()}


def test_flags_of_a_shape_are_flags_and_attributes_of_the_object(folder):
    parts = [TRIANGLE | {"group_id": 1, "flags": flags} for flags in ({"wet": True, "crowd": False}, {"wet": False})]
    table = read(folder(*parts, BOX | {"flags": {"truncated": True}, "difficult": True}))
    assert (table.truncated.tolist(), table.difficult.tolist()) == ([False, True], [False, True])
    assert (table.attributes["wet"].names, table.attributes["wet"].ids.tolist()) == (("yes",), [0, -1])
    assert list(table.attributes) == ["wet"]


def test_flags_of_a_file_without_shapes_class_the_image(folder):
    folder(flags={"__ignore__": False, "cat": True, "dog": False})
    write_image(folder(name="b", flags={"__ignore__": True, "cat": False}) / "b.png")
    write_image(folder(name="c", flags={"dog": True, "cat": True}) / "c.png")
    write_image(folder(BOX, name="d", flags={"dog": True}) / "d.png")
    root = folder(name="d", flags={"dog": True})
    table = read(root)
    assert (table.class_names, table.offsets.tolist()) == (("cat", "dog"), [0, 1, 1, 3, 4])
    assert table.boxes[0].tolist() == [0, 0, *SIZE]
    assert table.report.counts == {("flag '__ignore__' of a file", "not read"): 1}
    assert read(root, image_flags=False).report.count("flag 'dog' of a file", "not read") == 2


def test_a_file_of_classes_gives_their_order(folder):
    root = folder(BOX, BOX | {"label": "ant"})
    (root / "labels.txt").write_text("__ignore__\n_background_\nzebra\r\ncat\n\n")
    assert read(root, class_file="labels.txt").class_names == ("zebra", "cat", "ant")
    for text, words in {"": "has no class names", "a\nb\na\n": r"labels\.txt:3: 'a' is a duplicate"}.items():
        (root / "labels.txt").write_text(text)
        with pytest.raises(AnnotationError, match=words):
            read(root, class_file="labels.txt")


def test_images_are_found_from_the_file_and_backslashes_are_slashes(tmp_path):
    make_labelme(tmp_path)
    table = read(tmp_path, "ann/a.json")
    assert (list(table.image_paths), table.widths.tolist()) == (["img/a.jpg"], [SIZE[0]])
    assert read(tmp_path, "*/a.json").num_images == 1


@pytest.mark.parametrize("path", ["../../a.png", "/etc/a.png", "..\\..\\a.png", "b/../../../a.png", ".."])
def test_images_outside_the_root_are_refused_with_the_option_that_helps(tmp_path, path):
    make_labelme(tmp_path)
    document = json.loads((tmp_path / "ann/a.json").read_text()) | {"imagePath": path}
    (tmp_path / "ann/a.json").write_text(json.dumps(document))
    if path != "..":  # the root itself, which is not an image
        with pytest.raises(UnsafePathError, match=r"a\.json: imagePath .* leads out of .*pass image_dir"):
            read(tmp_path, "ann/a.json")
    write_image(tmp_path / "img/a.png")
    if path.endswith("a.png"):
        assert list(read(tmp_path, "ann/a.json", image_dir="../img").image_paths) == ["img/a.png"]
    with pytest.raises(AnnotationError):
        read(tmp_path, "ann/a.json")


@pytest.mark.parametrize("wrong", [
    {"label": ""}, {"label": 3}, {"label": "x" * 257}, {"points": None}, {"points": [[1, 2]]}, {"points": [[1], [2]]},
    {"points": [[1, 2], [3, "4"]]}, {"points": [[1, 2], [3, float("nan")]]}, {"points": [[1, 2], [3, 1e31]]},
    {"points": [[1, 2], [3, True]]}, {"shape_type": 3}, {"shape_type": ["polygon"]}, {"group_id": [1]},
    {"group_id": True}, {"flags": [1]}, {"flags": {"a": "yes"}}, {"difficult": "no"},
    {"shape_type": "polygon"}, {"shape_type": "point"},
])  # fmt: skip
def test_a_malformed_shape_is_named_and_the_others_are_read(folder, wrong):
    root = folder(BOX, BOX | wrong)
    with pytest.raises(AnnotationError, match=r"a\.json: object 1: .*is not a shape; expected a label"):
        read(root)
    table = read(root, policy={"malformed": "drop"})
    assert (table.num_objects, table.report.counts) == (1, {("malformed", "drop"): 1})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a.json:1: it is not a LabelMe file"),
        ("[]", "a JSON object {...} expected"),
        ('{"shapes": []}', "imagePath None must be text, shapes a list"),
        ('{"shapes": {}, "imagePath": "a.png"}', "shapes a list"),
        ('{"shapes": [], "imagePath": "a.png", "flags": {"a": 1}}', "flags names with true or false"),
        ('{\n"shapes": [],\n "imagePath": x}', "a.json:3: it is not a LabelMe file: Expecting value"),
        ('{"shapes": [], "imagePath": "\\ud800.png"}', "surrogates not allowed"),
        ('{"shapes": ' + "[" * 200_000, "it is not a LabelMe file: "),
        ('{"shapes": ' + "9" * 5000 + "}", "it is not a LabelMe file: Exceeds the limit"),
        ('{"shapes": [], "shapes": [], "imagePath": "a.png"}', "an object has a repeated key"),
        ('{"shapes": [' + "[]," * 600_000 + "[]]}", "more than 1000000 values"),
    ],
)
def test_a_file_that_is_not_labelme_is_refused(folder, text, words):
    with pytest.raises(AnnotationError) as error:
        read(folder(text=text))
    assert words in str(error.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_lone_surrogates_are_refused_in_every_encoding(folder, encoding):
    root = folder(BOX | {"label": "@"})
    text = (root / "a.json").read_text()
    (root / "a.json").write_bytes(text.replace("@", "\ud800").encode(encoding, "surrogatepass"))
    with pytest.raises(AnnotationError, match=r"a\.json: it is not a LabelMe file: .*can't decode byte"):
        read(root)


def test_a_damaged_file_of_many_is_dropped_by_the_policy(folder, monkeypatch):
    folder(BOX)
    root = folder(name="b", text="{")
    table = read(root, policy={"malformed": "drop"})
    assert (list(table.image_paths), table.report.counts) == (["a.png"], {("malformed", "drop"): 1})
    monkeypatch.setattr(labelme_file, "MAX_LABELME_BYTES", 50)
    with pytest.raises(AnnotationError, match="larger than 50 bytes"):
        read(root, "a.json")


def test_invalid_sizes_are_reported_and_read_from_the_image(folder):
    table = read(folder(BOX, imageWidth="60"))
    assert (table.widths.tolist(), table.report.counts) == ([SIZE[0]], {("bad_size", "unknown"): 1})
    assert read(folder(BOX, imageWidth="60", imageHeight=50.0)).report.count("bad_size", "unknown") == 1
    assert len(read(folder(BOX, imageWidth=None, imageHeight=None)).report) == 0


def test_xml_of_the_old_labelme_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "a.xml").write_text("<annotation></annotation>")
    with pytest.raises(AnnotationError, match=r"extension '\.json'.*XML files of the old LabelMe to COCO"):
        read(tmp_path)
