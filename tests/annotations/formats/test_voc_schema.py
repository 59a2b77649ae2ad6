"""Files of one set whose ``<schema>`` contradict each other."""

from __future__ import annotations

import pytest

from lit_loader.errors import AnnotationError

BOX = ("x", 1, 2, 30, 40)


def keypoints(*points):
    return "<keypoints>" + "".join(f"<point {point}/>" for point in points) + "</keypoints>"


def listed(*names, more=""):
    points = "".join(f'<point name="{name}"/>' for name in names)
    return f"<schema><keypoints>{points}{more}</keypoints></schema>"


def contradict(voc):
    first = '<mirror first="p" second="q"/>'
    voc.add("a", (*BOX, keypoints('name="q" x="1" y="1"')), before=listed("p", "q", more=first))
    second = '<mirror first="r" second="s"/><normalization_pair first="s" second="q"/>'
    voc.add("b", (*BOX, keypoints('name="s" x="2" y="2"')), before=listed("q", "r", "s", more=second))
    voc.add("c", (*BOX, keypoints('name="p" x="3" y="3"')))


def test_files_that_contradict_each_other_are_an_error_that_names_the_second(voc):
    contradict(voc)
    with pytest.raises(AnnotationError, match=r"b\.xml: names differ from an earlier file: points q, r, s instead of"):
        voc.read()


def test_files_that_contradict_each_other_can_be_united_by_name(voc):
    contradict(voc)
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
def test_each_part_of_a_schema_is_compared_and_what_is_left_out_is_not(voc, first, second):
    voc.add("a", before=f"<schema>{first}</schema>")
    voc.add("b")
    voc.add("c", before="<schema/>")
    assert len(voc.read().report) == 0
    voc.add("d", before=f"<schema>{second}</schema>")
    with pytest.raises(AnnotationError, match=r"d\.xml: names differ .*ReadPolicy\(schema_mismatch"):
        voc.read()


def test_what_the_caller_says_is_not_compared(voc):
    contradict(voc)
    assert voc.read(schema={"names": ["s", "q"]}).report.count("schema_mismatch") == 0
    assert voc.read(keypoints=False).report.count("schema_mismatch") == 0
