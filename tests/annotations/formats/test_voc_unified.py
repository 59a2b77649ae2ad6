"""The unified VOC format: tables are restored from written files, and the documented example is valid."""

from __future__ import annotations

import re
import textwrap
from functools import partial
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lit_loader.annotations.formats import ReadPolicy, read_annotations, write_annotations
from lit_loader.annotations.formats import voc as voc_format
from tests.support.any_table import assert_same_table, tables
from tests.support.voc_set import write_voc_xml

KEEP = ReadPolicy(missing_image="keep", degenerate="keep", swapped="fix", malformed="raise")
read_voc = partial(read_annotations, "voc", use_cache=False, progress=False)


def write_voc(table, root, **options):
    return write_annotations("voc", table, root, table.split or ".", progress=False, **options)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(table=tables())
def test_any_table_written_and_read_without_a_further_argument_is_the_same_table(tmp_path_factory, table):
    root = tmp_path_factory.mktemp("set")
    write_voc(table, root)
    restored = read_voc(root, table.split or ".", policy=KEEP)
    assert_same_table(restored, table)
    write_voc(restored, root / "twice")
    for path in (root / "Annotations").iterdir():
        assert (root / "twice/Annotations" / path.name).read_bytes() == path.read_bytes()


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(table=tables(), picked=st.integers(0, 3))
def test_every_subset_of_a_written_set_has_the_columns_of_the_whole(tmp_path_factory, table, picked):
    root = tmp_path_factory.mktemp("set")
    write_voc(table, root)
    (root / "ImageSets/Main").mkdir(parents=True, exist_ok=True)
    rows = [min(picked, table.num_images - 1)]
    (root / "ImageSets/Main/few.txt").write_text("".join(f"{table.image_id(i)}\n" for i in rows))
    few = read_voc(root, "few", policy=KEEP)
    assert few.keypoint_names == table.keypoint_names
    assert {n: a.names for n, a in few.attributes.items()} == {n: a.names for n, a in table.attributes.items()}
    if table.keypoints is None and not table.attributes:  # plain VOC
        assert set(few.class_names) <= set(table.class_names)
    else:
        assert few.class_names == table.class_names
    restored = few.with_class_names(table.class_names)
    np.testing.assert_array_equal(restored.labels, table.select(rows).labels)


def documented_example() -> str:
    text = (voc_format.__doc__ or "").replace("\r", "")
    example = re.search(r"\n    <annotation>\n.*?\n    </annotation>\n", text, re.S)
    assert example
    return textwrap.dedent(example[0]).strip()


def test_documented_example_is_read_as_described(voc):
    voc.add("portrait")
    voc.raw("portrait", documented_example())
    table = voc.read(schema_mismatch="raise", bad_size="raise", wrong_filename="raise")
    assert len(table.report) == 0
    assert table.class_names == ("face",)
    assert table.boxes.tolist() == [[100, 80.5, 220, 240], [300, 10, 640, 200]]
    assert (table.occluded.tolist(), table.crowd.tolist()) == ([True, False], [False, True])
    assert table.keypoint_names == ("left eye", "right eye", "nose")
    assert (table.flip_pairs, table.normalization_pair) == (((0, 1),), (0, 1))
    assert table.keypoints.tolist() == [[[130, 120.25], [0, 0], [155, 165]], [[0, 0]] * 3]
    assert table.visibility.tolist() == [[2, 0, 1], [0, 0, 0]]
    expression = table.attributes["expression"]
    assert (expression.names, expression.ids.tolist()) == (("calm", "laughing"), [1, -1])


def test_writer_writes_the_documented_example(tmp_path):
    (tmp_path / "Annotations").mkdir()
    write_voc_xml(
        tmp_path / "Annotations/portrait.xml",
        filename="portrait.jpg",
        width=640,
        height=480,
        names=["face", "face"],
        boxes=[[100, 80.5, 220, 240], [300, 10, 640, 200]],
        occluded=[True, False],
        crowd=[False, True],
        keypoints=[[[130, 120.25], [9, 9], [155, 165]], np.zeros((3, 2))],
        visibility=[[2, 0, 1], [0, 0, 0]],
        schema={
            "names": ["left eye", "right eye", "nose"],
            "flip_pairs": [["left eye", "right eye"]],
            "sigmas": [0.025, 0.025, 0.026],
            "skeleton": [["left eye", "nose"]],
            "normalization_pair": [0, 1],
        },
        attributes={"expression": ["laughing", None]},
        attribute_values={"expression": ["calm", "laughing"]},
    )

    def normal(text: str) -> list[str]:
        lines = [line.strip().replace(" />", "/>") for line in text.splitlines()]
        return [line for line in lines if not line.startswith("<?")]

    written = normal(Path(tmp_path / "Annotations/portrait.xml").read_text())
    documented = normal(documented_example())
    flags = ["<truncated>0</truncated>", "<difficult>0</difficult>", "<occluded>0</occluded>"]
    second = documented.index("<crowd>1</crowd>")
    assert written == documented[:second] + flags + documented[second:]  # the example omits flags that are not set


def test_points_of_a_known_schema_are_not_listed_and_few_digits_are_written(tmp_path):
    write_voc_xml(
        tmp_path / "a.xml",
        filename="a.jpg",
        width=9,
        height=9,
        names=["face"],
        boxes=np.array([[0.1, 2.0, 3, -0.0]], dtype=np.float32),
        keypoints=np.full((1, 68, 2), 0.1, dtype=np.float32),
        schema="face_68",
    )
    text = (tmp_path / "a.xml").read_text()
    assert '<keypoints schema="face_68" />' in text
    assert '<point name="00" x="0.1" y="0.1" visibility="2" />' in text
    assert [text.count(number) for number in ("<xmin>0.1<", "<ymin>2<", "<xmax>3<", "<ymax>-0.0<")] == [1] * 4


def test_a_plain_table_is_written_as_plain_voc(three_images, tmp_path):
    write_voc(three_images.read(), tmp_path)
    tags = set(re.findall(r"<(\w+)", (tmp_path / "Annotations/b.xml").read_text()))
    flags = {"truncated", "difficult", "occluded"}
    corners = {"bndbox", "xmin", "ymin", "xmax", "ymax"}
    head = {"annotation", "folder", "filename", "size", "width", "height", "depth", "object", "name"}
    assert tags == head | flags | corners


def test_classes_are_listed_only_where_their_order_is_not_that_of_the_objects(three_images, tmp_path):
    table = three_images.read(class_names=["owl", "dog", "cat"])
    write_voc(table, tmp_path)
    restored = read_voc(tmp_path, policy=KEEP)
    assert restored.class_names == ("owl", "dog", "cat")
    np.testing.assert_array_equal(restored.labels, table.labels)
    given_names = read_voc(tmp_path, policy=KEEP, class_names=["cat", "dog"])
    assert given_names.class_names == ("cat", "dog")


def test_points_and_attributes_of_many_files_do_not_depend_on_num_workers(voc):
    for i in range(450):
        points = f'<keypoints><point name="p{i % 5}" x="{i}" y="1" visibility="{i % 3}"/></keypoints>'
        value = f"<attributes><attribute><name>a</name><value>v{i % 4}</value></attribute></attributes>"
        voc.add(f"{i:03}", *((f"c{k}", 1, 2, 30, 40, points, value) for k in range(i % 4)))
    assert_same_table(voc.read(num_workers=2), voc.read(num_workers=0))


def test_an_attribute_that_a_first_file_lists_without_values_fits_any_values(voc):
    box = (1, 2, 30, 40)
    listed = "<schema><attribute><name>pose</name>{}</attribute></schema>"
    voc.add("a", ("cat", *box), before=listed.format(""))
    voc.add("b", ("cat", *box), before=listed.format("<value>left</value>"))
    table = voc.read()
    assert table.attributes["pose"].names == ("left",)
