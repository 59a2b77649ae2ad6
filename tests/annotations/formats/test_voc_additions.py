"""Points, attributes, crowds and schemas that people write by hand, or that are wrong."""

from __future__ import annotations

import pytest

from lit_loader.annotations.formats import read_annotations
from lit_loader.errors import AnnotationError

BOX = ("x", 1, 2, 30, 40)


def keypoints(*points):
    return "<keypoints>" + "".join(f"<point {point}/>" for point in points) + "</keypoints>"


def attributes(**values):
    rows = (f"<attribute><name>{n}</name><value>{v}</value></attribute>" for n, v in values.items())
    return f"<attributes>{''.join(rows)}</attributes>"


def listed(*names, more=""):
    points = "".join(f'<point name="{name}"/>' for name in names)
    return f"<schema><keypoints>{points}{more}</keypoints></schema>"


NOSE = 'name="nose" x="5" y="6.5"'
EYE = 'name="eye" x="7" y="8" visibility="1"'


def test_without_a_schema_the_points_that_occur_are_sorted_by_name(voc):
    voc.add("a", (*BOX, keypoints(NOSE)), BOX)
    voc.add("b", (*BOX, keypoints('name="zip" x="1" y="1" visibility="0"', EYE)))
    table = voc.read()
    assert (table.keypoint_names, table.flip_pairs, table.normalization_pair) == (("eye", "nose"), (), None)
    assert table.keypoints.tolist() == [[[0, 0], [5, 6.5]], [[0, 0], [0, 0]], [[7, 8], [0, 0]]]
    assert table.visibility.tolist() == [[0, 2], [0, 0], [1, 0]]
    assert len(table.report) == 0


def test_schema_option_orders_the_points_and_reports_others(voc):
    voc.add("a", (*BOX, keypoints(NOSE, EYE)))
    table = voc.read(schema={"names": ["nose", "chin"], "flip_pairs": [["nose", "chin"]]})
    assert (table.keypoint_names, table.flip_pairs) == (("nose", "chin"), ((0, 1),))
    assert table.visibility.tolist() == [[2, 0]]
    assert table.report.counts == {("unknown_point", "ignore"): 1}
    assert "'eye'" in next(iter(table.report)).message
    assert voc.read(schema=3).keypoint_names == ("00", "01", "02")


def test_schema_option_makes_columns_without_any_point(three_images):
    table = three_images.read(schema="face_5")
    assert (table.keypoints.shape, int(table.visibility.max())) == ((5, 5, 2), 0)
    assert table.normalization_pair == (0, 1)


def test_points_and_attributes_can_be_left_out(voc):
    voc.add("a", (*BOX, keypoints(NOSE), attributes(pose="front")), before=listed("nose"))
    table = voc.read(keypoints=False)
    assert (table.keypoints, table.keypoint_names, list(table.attributes)) == (None, (), ["pose"])
    assert dict(voc.read(attributes=False).attributes) == {}
    with pytest.raises(ValueError, match="schema='face_5' names points, but keypoints=False"):
        voc.read(keypoints=False, schema="face_5")


def test_points_and_attributes_left_out_are_not_checked(voc):
    voc.add("a", (*BOX, keypoints('name="p" x="?" y="1"')))
    voc.add("b", (*BOX, "<attributes><attribute/></attributes>"))
    assert voc.read(keypoints=False, attributes=False).num_objects == 2


def test_an_object_without_a_box_gets_the_box_of_its_points(voc):
    unboxed = keypoints(NOSE, EYE, 'name="ear" x="nan" y="1"')
    voc.add("a", BOX)
    voc.raw("a", f"<annotation><object><name>f</name>{unboxed}</object></annotation>")
    table = voc.read(unreadable_image="keep")
    assert table.boxes.tolist() == [[5, 6.5, 7, 8]]
    assert table.report.count("invalid_keypoint", "absent") == 1
    assert voc.read(keypoints=False, unreadable_image="keep").boxes.tolist() == [[5, 6.5, 7, 8]]
    moved = voc.read(one_based=True, unreadable_image="keep")
    assert moved.boxes.tolist() == [[4, 5.5, 6, 7]]
    assert moved.keypoints[0, 2].tolist() == [4, 5.5]


def test_a_box_around_points_is_not_judged_as_outside_but_has_an_area(voc):
    for points, num_narrow in ((keypoints(NOSE), 1), (keypoints(NOSE, 'name="q" x="900" y="900"'), 0)):
        voc.add("a")
        head = "<size><width>100</width><height>80</height></size>"
        voc.raw("a", f"<annotation>{head}<object><name>f</name>{points}</object></annotation>")
        table = voc.read(out_of_image="raise", keypoint_outside="keep", bad_size="raise")
        assert table.num_objects == 1
        assert table.report.count("narrow_points") == num_narrow


def test_points_outside_and_not_finite_are_absent_by_policy(voc):
    voc.add("a", (*BOX, keypoints(NOSE, 'name="l" x="-0.5" y="1"', 'name="r" x="1" y="1e39"')))
    voc.add("b", (*BOX, keypoints('name="l" x="100" y="80"', 'name="r" x="100.5" y="1"')))
    voc.add("c", (*BOX, keypoints('name="l" x="-1" y="9999"')), size=None)
    table = voc.read(keypoint_outside="absent", invalid_keypoint="absent", unreadable_image="keep")
    assert table.keypoint_names == ("l", "nose", "r")
    assert table.visibility.tolist() == [[0, 2, 0], [2, 0, 0], [2, 0, 0]]
    assert (table.keypoints[table.visibility == 0] == 0).all()
    assert table.report.counts == {
        ("unreadable_image", "keep"): 1,
        ("invalid_keypoint", "absent"): 1,
        ("keypoint_outside", "absent"): 2,
    }
    assert voc.read(unreadable_image="keep").visibility.sum() == 2 * 5


def test_attributes_are_sorted_and_missing_values_are_none(voc):
    voc.add("a", (*BOX, attributes(pose="left", age="old")), BOX)
    voc.add("b", (*BOX, attributes(pose="front", empty="")))
    table = voc.read()
    assert list(table.attributes) == ["age", "pose"]
    assert table.attributes["pose"].names == ("front", "left")
    assert table.attributes["pose"].ids.tolist() == [1, -1, 0]
    assert table.attributes["age"].ids.tolist() == [0, -1, -1]


def test_values_that_a_schema_does_not_list_follow_it_sorted(voc):
    schema = "<schema><attribute><name>pose</name><value>up</value><value>down</value></attribute></schema>"
    voc.add("a", (*BOX, attributes(pose="left", age="1")), (*BOX, attributes(pose="down")), before=schema)
    table = voc.read()
    assert list(table.attributes) == ["pose", "age"]
    assert table.attributes["pose"].names == ("up", "down", "left")
    assert table.attributes["pose"].ids.tolist() == [2, 1]


def test_crowds_are_flags_of_the_table(voc):
    voc.add("a", *((*BOX, f"<crowd>{text}</crowd>") for text in ("1", "0", " true ", "")))
    assert voc.read().crowd.tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (keypoints('x="1" y="1"'), "the name of a <point> has 0 characters"),
        (keypoints(f'name="{"n" * 300}" x="1" y="1"'), "the name of a <point> has 300 characters"),
        (keypoints(NOSE, NOSE), "the point 'nose' twice"),
        (keypoints(NOSE) + keypoints(NOSE), "the point 'nose' twice"),
        (keypoints('name="p" x="1"'), "y of the point 'p' is '', not a number"),
        (keypoints('name="p" x="1,5" y="1"'), "x of the point 'p' is '1,5', not a number"),
        (keypoints('name="p" x="1" y="1" visibility="3"'), "visibility '3'; 0, 1 or 2 expected"),
        (attributes(**{"": "a"}), "the name of an <attribute> has 0 characters"),
        (attributes(p="a") + attributes(p="b"), "the attribute 'p' twice"),
        (attributes(p="a" * 300), "the value of the attribute 'p' has 300 characters"),
        ("<crowd>many</crowd>", "<crowd> is 'many'"),
    ],
)
def test_malformed_additions_make_an_object_malformed(voc, extra, message):
    voc.add("a", BOX, (*BOX, extra))
    with pytest.raises(AnnotationError, match=r"a\.xml:3: object 1: ") as caught:
        voc.read()
    assert message in str(caught.value)
    table = voc.read(malformed="drop")
    assert (table.num_objects, table.keypoints, dict(table.attributes)) == (1, None, {})
    assert table.report.counts == {("malformed", "drop"): 1}


def test_a_point_that_the_files_own_schema_lacks_is_malformed(voc):
    voc.add("a", (*BOX, keypoints(NOSE)), before=listed("eye"))
    with pytest.raises(AnnotationError, match="'nose', which the file's <schema> does not list"):
        voc.read()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("<schema/>\n<schema/>", r"a\.xml:2: <annotation> holds <schema> more than once"),
        (listed(), "names is empty"),
        (listed("p", "p"), "<point> 'p' occurs twice"),
        (listed("p", more='<mirror first="p" second="q"/>'), "<mirror> names 'q', which is not a <point>"),
        (listed("p", more='<mirror first="p" second="p"/>'), "itself"),
        (listed("p", more="<normalization_pair/>"), "<normalization_pair> names ''"),
        (listed("p", more="<interocular/>"), "holds <interocular>; expected <point>, <mirror>, <edge>, <norm"),
        (
            listed("p", "q", more='<normalization_pair first="p" second="q"/>' * 2),
            "<normalization_pair> more than once",
        ),
        (listed("p", "q", "r", more='<mirror first="p" second="q"/><mirror first="p" second="r"/>'), "twice"),
        ("<schema><keypoints/><keypoints/></schema>", "<keypoints> more than once"),
        ('<schema><keypoints schema="face_7"/></schema>', "schema='face_7'> must be one of coco_17, face_5"),
        ("<schema><class>a</class><class>a</class></schema>", "<class> 'a' occurs twice"),
        ("<schema><class/></schema>", "<class> has 0 characters"),
        ("<schema><attribute/></schema>", "<name> of an <attribute> has 0 characters"),
    ],
)
def test_malformed_schema_makes_a_file_malformed(voc, schema, message):
    voc.add("a", before=schema)
    with pytest.raises(AnnotationError, match=r"a\.xml:1: |a\.xml:2: ") as caught:
        voc.read()
    assert message.removeprefix(r"a\.xml:2: ") in str(caught.value)
    table = voc.read(malformed="drop")
    assert (table.num_images, table.report.counts) == (0, {("malformed", "drop"): 1})


def test_folders_of_annotations_are_searched_when_there_is_no_split(voc, tmp_path):
    voc.add("day/1", BOX)
    voc.add("2", BOX)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/9.xml").write_text("<annotation/>")
    (voc.root / "Annotations/link").symlink_to(tmp_path / "elsewhere")
    table = read_annotations("voc", voc.root, policy={"missing_image": "keep"}, use_cache=False)
    assert list(table.image_ids) == ["2", "day/1", "link/9"]


def add_contradicting_schemas(voc):
    first = '<mirror first="p" second="q"/>'
    voc.add("a", (*BOX, keypoints('name="q" x="1" y="1"')), before=listed("p", "q", more=first))
    second = '<mirror first="r" second="s"/><normalization_pair first="s" second="q"/>'
    voc.add("b", (*BOX, keypoints('name="s" x="2" y="2"')), before=listed("q", "r", "s", more=second))
    voc.add("c", (*BOX, keypoints('name="p" x="3" y="3"')))


def test_contradicting_schemas_are_an_error_naming_the_second_file(voc):
    add_contradicting_schemas(voc)
    with pytest.raises(AnnotationError, match=r"b\.xml: names differ from an earlier file: points q, r, s instead of"):
        voc.read()


def test_contradicting_schemas_can_be_united_by_name(voc):
    add_contradicting_schemas(voc)
    table = voc.read(schema_mismatch="unite")
    assert table.keypoint_names == ("p", "q", "r", "s")
    assert (table.flip_pairs, table.normalization_pair) == (((0, 1), (2, 3)), (3, 1))
    assert table.visibility.tolist() == [[0, 2, 0, 0], [0, 0, 0, 2], [2, 0, 0, 0]]
    assert table.report.counts == {("schema_mismatch", "unite"): 1}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("<class>a</class><class>x</class>", "<class>x</class><class>a</class>"),
        ("<attribute><name>n</name><value>1</value></attribute>", "<attribute><name>n</name></attribute>"),
        (listed("p", "q")[8:-9], listed("p", "q", more='<normalization_pair first="p" second="q"/>')[8:-9]),
    ],
)
def test_listed_parts_of_schemas_are_compared_and_omitted_parts_are_not(voc, first, second):
    voc.add("a", before=f"<schema>{first}</schema>")
    voc.add("b")
    voc.add("c", before="<schema/>")
    assert len(voc.read().report) == 0
    voc.add("d", before=f"<schema>{second}</schema>")
    with pytest.raises(AnnotationError, match=r"d\.xml: names differ .*policy=\{'schema_mismatch'"):
        voc.read()


def test_schemas_are_not_compared_if_the_caller_passes_one(voc):
    add_contradicting_schemas(voc)
    assert voc.read(schema={"names": ["s", "q"]}).report.count("schema_mismatch") == 0
    assert voc.read(keypoints=False).report.count("schema_mismatch") == 0
