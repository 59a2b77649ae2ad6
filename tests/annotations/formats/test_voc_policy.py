from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
from PIL import Image

from lit_loader.annotations.formats import ReadPolicy
from lit_loader.errors import AnnotationError

GOOD = ("x", 1, 1, 5, 5)
ACTIONS = {name: get_args(hint) for name, hint in get_type_hints(ReadPolicy).items()}


def points(x, y):
    other = '<point name="q" x="2" y="3"/>'
    return f'<keypoints><point name="p" x="{x}" y="{y}"/>{other}</keypoints>'


def break_voc(voc, kind):
    """Write one good image ``a`` and the problem; returns the split to read."""
    voc.add("a", GOOD)
    objects = {
        "unknown_class": ("alien", 1, 1, 5, 5),
        "invalid_keypoint": ("x", 1, 1, 9, 9, points("nan", 5)),
        "keypoint_outside": ("x", 1, 1, 9, 9, points(4, 200)),
        "non_finite": ("x", 1, "nan", 5, 5),
        "swapped": ("x", 9, 8, 2, 1),
        "out_of_image": ("x", -5, 70, 120, 90),
        "degenerate": ("x", 7, 7, 7, 9),
    }
    if kind in objects:
        voc.add("b", GOOD, objects[kind])
    elif kind == "wrong_filename":
        voc.add("b", GOOD, filename="<filename>c.jpg</filename>")
    elif kind == "schema_mismatch":
        for image_id, names in (("a", "pq"), ("b", "qr")):
            listed = "".join(f'<point name="{name}"/>' for name in names)
            voc.add(image_id, GOOD, before=f"\n<schema><keypoints>{listed}</keypoints></schema>")
    elif kind == "missing_image":
        voc.add("b", GOOD, image=None)
    elif kind == "turned_image":
        voc.add("b", ("x", 1, 1, 500, 50), size=(600, 500))
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.new("L", (600, 500)).save(voc.root / "JPEGImages/b.jpg", exif=exif)
    elif kind in ("bad_size", "unreadable_image"):
        voc.add("b", ("x", 1, 1, 500, 500), size=(0, 80) if kind == "bad_size" else None)
        if kind == "bad_size":
            Image.new("L", (600, 500)).save(voc.root / "JPEGImages/b.jpg")
    elif kind == "malformed":
        voc.add("b")
        voc.raw("b", "<annotation>\n<object>")
    elif kind in ("duplicate_id", "missing_annotation"):
        voc.split("s", "a\na\n" if kind == "duplicate_id" else "a\nb\n")
        Image.new("L", (9, 9)).save(voc.root / "JPEGImages/b.jpg")
        return "s"
    return None


# (kind, action) -> images, boxes of the last image, kind in the report
EXPECTED = {
    ("duplicate_id", "drop"): (["a"], [[1, 1, 5, 5]], "duplicate_id"),
    ("missing_annotation", "drop"): (["a"], [[1, 1, 5, 5]], "missing_annotation"),
    ("missing_annotation", "empty"): (["a", "b"], [], "missing_annotation"),
    ("malformed", "drop"): (["a"], [[1, 1, 5, 5]], "malformed"),
    ("missing_image", "drop"): (["a"], [[1, 1, 5, 5]], "missing_image"),
    ("missing_image", "keep"): (["a", "b"], [[1, 1, 5, 5]], "missing_image"),
    ("wrong_filename", "report"): (["a", "b"], [[1, 1, 5, 5]], "wrong_filename"),
    ("wrong_filename", "drop"): (["a"], [[1, 1, 5, 5]], "wrong_filename"),
    ("bad_size", "unknown"): (["a", "b"], [[1, 1, 500, 500]], "bad_size"),
    ("turned_image", "keep"): (["a", "b"], [[1, 1, 500, 50]], "turned_image"),
    ("turned_image", "drop"): (["a"], [[1, 1, 5, 5]], "turned_image"),
    ("unreadable_image", "keep"): (["a", "b"], [[1, 1, 500, 500]], "unreadable_image"),
    ("unreadable_image", "drop"): (["a"], [[1, 1, 5, 5]], "unreadable_image"),
    ("unknown_class", "drop"): (["a", "b"], [[1, 1, 5, 5]], "unknown_class"),
    ("schema_mismatch", "unite"): (["a", "b"], [[1, 1, 5, 5]], "schema_mismatch"),
    ("invalid_keypoint", "absent"): (["a", "b"], [[1, 1, 5, 5], [1, 1, 9, 9]], "invalid_keypoint"),
    ("invalid_keypoint", "drop"): (["a", "b"], [[1, 1, 5, 5]], "invalid_keypoint"),
    ("keypoint_outside", "keep"): (["a", "b"], [[1, 1, 5, 5], [1, 1, 9, 9]], "keypoint_outside"),
    ("keypoint_outside", "absent"): (["a", "b"], [[1, 1, 5, 5], [1, 1, 9, 9]], "keypoint_outside"),
    ("non_finite", "drop"): (["a", "b"], [[1, 1, 5, 5]], "non_finite"),
    ("swapped", "fix"): (["a", "b"], [[1, 1, 5, 5], [2, 1, 9, 8]], "swapped"),
    ("swapped", "drop"): (["a", "b"], [[1, 1, 5, 5]], "swapped"),
    ("out_of_image", "clip"): (["a", "b"], [[1, 1, 5, 5], [0, 70, 100, 80]], "out_of_image"),
    ("out_of_image", "keep"): (["a", "b"], [[1, 1, 5, 5], [-5, 70, 120, 90]], "out_of_image"),
    ("out_of_image", "drop"): (["a", "b"], [[1, 1, 5, 5]], "out_of_image"),
    ("degenerate", "drop"): (["a", "b"], [[1, 1, 5, 5]], "degenerate"),
    ("degenerate", "keep"): (["a", "b"], [[1, 1, 5, 5], [7, 7, 7, 9]], "degenerate"),
}
PLACES = {"duplicate_id": r"s\.txt:2: ", "missing_annotation": r"s\.txt:2: ", "malformed": r"b\.xml:2: "}
PLACES |= dict.fromkeys(
    ("missing_image", "wrong_filename", "bad_size", "turned_image", "unreadable_image"), r"b\.xml: "
)
PLACES["schema_mismatch"] = r"b\.xml: "
OF_OBJECTS = ("unknown_class", "invalid_keypoint", "keypoint_outside", "non_finite", "swapped", "out_of_image")
PLACES |= dict.fromkeys((*OF_OBJECTS, "degenerate"), r"b\.xml:3: object 1: ")


def test_every_action_has_a_case():
    cases = {(kind, action) for kind, actions in ACTIONS.items() for action in actions}
    assert cases - {(kind, "raise") for kind in ACTIONS} == set(EXPECTED)
    assert PLACES.keys() == ACTIONS.keys()


@pytest.mark.parametrize(("kind", "action"), list(EXPECTED))
def test_every_action_does_what_it_says_and_is_reported(voc, kind, action):
    table = voc.read(break_voc(voc, kind) or ".", class_names=["x"], **{kind: action})
    images, boxes, reported = EXPECTED[kind, action]
    assert list(table.image_ids) == images
    assert table.boxes[table.objects(-1)].tolist() == boxes
    assert table.report.counts == {(reported, action): 1}
    (problem,) = table.report
    assert problem.message
    if kind in ("missing_annotation", "duplicate_id"):
        assert (problem.file, problem.line) == ("ImageSets/Main/s.txt", 2)
    else:
        assert problem.file == "Annotations/b.xml"


@pytest.mark.parametrize("kind", list(ACTIONS))
def test_raise_names_file_line_and_remedy(voc, kind):
    split = break_voc(voc, kind)
    with pytest.raises(AnnotationError, match=PLACES[kind]) as caught:
        voc.read(split or ".", class_names=["x"], **{kind: "raise"})
    assert f"policy={{{kind!r}: " in str(caught.value)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e400", "1e39", "-1e39"])
def test_values_beyond_float32_are_dropped_and_reported(voc, value):
    voc.add("a", GOOD, ("x", value, 1, 5, 5), ("x", 1, 1, 5, value))
    table = voc.read()
    assert table.num_objects == 1
    assert table.report.counts == {("non_finite", "drop"): 2}


@pytest.mark.parametrize("value", ["", "abc", "1,5", "0x10", "<b/>"])
def test_a_corner_that_is_not_a_number_makes_the_object_malformed(voc, value):
    voc.add("a", GOOD, ("x", 1, value, 5, 5))
    with pytest.raises(AnnotationError, match=r"a\.xml:3: object 1: <ymin> is"):
        voc.read()
    table = voc.read(malformed="drop")
    assert table.num_objects == 1
    assert table.report.counts == {("malformed", "drop"): 1}


@pytest.mark.parametrize("text", ["<object><name>x</name></object>", "<object><bndbox/></object>", "<object/>"])
def test_objects_without_name_or_box_are_malformed_and_the_rest_is_read(voc, text):
    voc.add("a")
    voc.raw("a", f"<annotation>{text}</annotation>")
    with pytest.raises(AnnotationError, match=r"object 0: has (no|neither) <"):
        voc.read()
    assert voc.read(malformed="drop", unreadable_image="keep").num_images == 1


def test_another_root_element_is_malformed(voc):
    voc.add("a")
    voc.raw("a", "<annotations/>")
    with pytest.raises(AnnotationError, match="root element is <annotations>"):
        voc.read()
    assert voc.read(malformed="drop").num_images == 0


def test_a_box_that_ends_at_width_and_height_is_inside(voc):
    voc.add("a", ("x", 0, 0, 100, 80), ("x", 1, 1, 100, 80))
    assert len(voc.read(out_of_image="raise").report) == 0
    assert len(voc.read(out_of_image="drop", one_based=True, class_names=["x"]).report) == 1


def test_a_box_wholly_outside_is_degenerate_after_clipping(voc):
    voc.add("a", ("x", 200, 10, 300, 20))
    table = voc.read(out_of_image="clip")
    assert table.num_objects == 0
    assert table.report.counts == {("out_of_image", "clip"): 1, ("degenerate", "drop"): 1}
    assert voc.read().boxes.tolist() == [[200, 10, 300, 20]]


@pytest.mark.parametrize("size", [("abc", 3), (-1, 5), ("nan", 5), (1e30, 5), (0, 5)])
def test_invalid_sizes_are_read_from_the_image(voc, size):
    voc.add("a", ("x", 10, 10, 5_000, 5_000), ("x", -3, 1, 9, 9), size=size)
    Image.new("L", (70, 60)).save(voc.root / "JPEGImages/a.jpg")
    table = voc.read(out_of_image="clip")
    assert (table.widths.tolist(), table.heights.tolist()) == ([70], [60])
    assert table.boxes.tolist() == [[10, 10, 70, 60], [0, 1, 9, 9]]
    assert table.report.counts == {("bad_size", "unknown"): 1, ("out_of_image", "clip"): 2}


@pytest.mark.parametrize("size", [None, ("", ""), (0, 0)])
def test_missing_sizes_are_read_from_the_image_and_unknown_sizes_bound_nothing(voc, size):
    voc.add("a", ("x", 10, 10, 5_000, 5_000), ("x", -3, 1, 9, 9), size=size)
    table = voc.read(out_of_image="clip", unreadable_image="keep")
    assert (table.widths.tolist(), table.heights.tolist()) == ([0], [0])
    assert table.boxes.tolist() == [[10, 10, 5_000, 5_000], [-3, 1, 9, 9]]
    assert table.report.counts == {("unreadable_image", "keep"): 1}
    Image.new("L", (70, 60)).save(voc.root / "JPEGImages/a.jpg")
    table = voc.read(out_of_image="clip")
    assert table.boxes.tolist() == [[10, 10, 70, 60], [0, 1, 9, 9]]
    assert table.report.counts == {("out_of_image", "clip"): 2}


@pytest.mark.parametrize("name", ["a.jpg", "a.JPG", "a", "", r"C:\photos\a.jpg", "/home/me/a.jpg"])
def test_equivalent_filenames_are_not_reported(voc, name):
    voc.add("a", filename=f"<filename>{name}</filename>")
    assert len(voc.read(wrong_filename="raise").report) == 0


def test_class_ids_do_not_depend_on_which_objects_are_dropped(voc):
    voc.add("a", ("ant", 5, 5, 5, 5), ("bee", 1, 1, 2, 2))
    table = voc.read()
    assert (table.class_names, table.class_counts().tolist()) == (("ant", "bee"), [0, 1])


@pytest.mark.parametrize("kind", ["missing_annotation", "bad_size"])
def test_raising_action_applies_even_if_malformed_files_are_dropped(voc, kind):
    split = break_voc(voc, kind)
    with pytest.raises(AnnotationError, match=PLACES[kind]):
        voc.read(split or ".", malformed="drop", **{kind: "raise"})


def test_a_second_annotation_file_of_an_image_is_counted(voc):
    voc.add("a", GOOD)
    folder = voc.root / "Annotations"
    (folder / "a.XML").write_bytes((folder / "a.xml").read_bytes())
    table = voc.read()
    assert (len(table), table.num_objects, table.report.counts) == (1, 1, {("duplicate_id", "drop"): 1})
    assert table.report.problems[0].file == "Annotations/a.XML"
