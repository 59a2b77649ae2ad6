from __future__ import annotations

import time

import numpy as np
import pytest
from PIL import Image

from lit_loader.annotations.formats import ReadPolicy, read_annotations
from lit_loader.errors import AnnotationError, UnsafePathError

HEAD = "<?xml version='1.0' encoding='ISO-8859-1'?>\n<?xml-stylesheet type='text/xsl' href='s.xsl'?>\n"
BOX = "top='2' left='1' width='3' height='4'"
# file -> images, boxes, points, as the data's README counts them
DLIB = {
    "training.xml": (4, 18, 0),
    "testing.xml": (5, 25, 0),
    "training_with_face_landmarks.xml": (4, 18, 68),
    "testing_with_face_landmarks.xml": (5, 25, 68),
}


@pytest.fixture
def imglab(tmp_path):
    """Write images of 50 x 40 with these boxes, and read them."""
    Image.new("RGB", (50, 40)).save(tmp_path / "a.jpg")

    def read(boxes, *, name="a.xml", raw=None, **options):
        image = f"\n<image file='a.jpg'>\n{boxes}\n</image>"
        body = f"<dataset><name>x</name><images>{image}</images></dataset>"
        (tmp_path / name).write_bytes((HEAD + (body if raw is None else raw)).encode("latin-1"))
        actions = {key: options.pop(key) for key in list(options) if key in ReadPolicy.__dataclass_fields__}
        options.setdefault("use_cache", False)
        return read_annotations("imglab", tmp_path, name, policy=ReadPolicy(**actions), progress=False, **options)

    return read


def part(name, x, y):
    return f"<part name='{name}' x='{x}' y='{y}'/>"


def test_boxes_labels_and_flags_are_read(imglab):
    table = imglab(
        f"<box {BOX}/><box {BOX} ignore='1'><label> h\xfcnd </label></box>"
        f"<box {BOX} occluded='1' truncated='true'><label/></box><box {BOX} difficult='yes' ignore='0'/>"
    )
    assert table.boxes.tolist() == [[1, 2, 4, 6]] * 4
    assert [table.class_names[label] for label in table.labels] == ["face", "h\xfcnd", "face", "face"]
    assert table.difficult.tolist() == [False, True, False, True]
    assert table.occluded.tolist() == table.truncated.tolist() == [False, False, True, False]
    assert (table.widths.tolist(), table.heights.tolist()) == ([50], [40])
    assert (list(table.image_paths), table.keypoints, len(table.report)) == (["a.jpg"], None, 0)


@pytest.mark.parametrize(("width", "size", "num_problems"), [("7", (7, 9), 0), ("wide", (50, 40), 1)])
def test_a_size_in_the_file_is_used_unless_it_is_not_a_number(imglab, width, size, num_problems):
    table = imglab("", raw=f"<dataset><images><image file='a.jpg' width='{width}' height='9'/></images></dataset>")
    assert (table.widths[0], table.heights[0]) == size
    assert table.report.count("bad_size", "unknown") == num_problems


def test_parts_are_points_by_their_names_sorted(imglab):
    table = imglab(
        f"<box {BOX}>{part('02', 3, 4)}{part('00', 1.5, -2)}</box><box {BOX}>{part('11', 5, 6)}</box><box {BOX}/>"
    )
    assert (table.keypoint_names, table.flip_pairs) == (("00", "02", "11"), ())
    assert table.keypoints[:2].tolist() == [[[1.5, -2], [3, 4], [0, 0]], [[0, 0], [0, 0], [5, 6]]]
    assert table.visibility.tolist() == [[2, 2, 0], [0, 0, 2], [0, 0, 0]]
    assert table.report.counts == {("keypoint_outside", "keep"): 1}


def test_a_schema_orders_the_parts_and_reports_others(imglab):
    boxes = f"<box {BOX}>{part('01', 3, 4)}{part('68', 1, 2)}</box>"
    table = imglab(boxes, schema="face_68")
    assert (table.keypoints.shape, table.normalization_pair) == ((1, 68, 2), (36, 45))
    assert np.flatnonzero(table.visibility[0]).tolist() == [1]
    assert table.report.counts == {("unknown_point", "ignore"): 1}
    assert imglab(boxes, keypoints=False).keypoints is None
    with pytest.raises(ValueError, match="keypoints=False reads none"):
        imglab(boxes, schema=2, keypoints=False)


def test_flip_pairs_follow_from_left_and_right_in_names(imglab):
    table = imglab(f"<box {BOX}>{part('right_eye', 1, 1)}{part('nose', 2, 2)}{part('left_eye', 3, 3)}</box>")
    assert (table.keypoint_names, table.flip_pairs) == (("left_eye", "nose", "right_eye"), ((0, 2),))


def test_elements_and_attributes_not_read_are_counted_by_name(imglab):
    raw = (
        f"<dataset><name>x</name><comment>y</comment><images><image file='a.jpg' source='cam'><tag/>"
        f"<box {BOX} gender='female' age='30'><note>z</note><label>a</label><label>b</label>"
        f"<part name='0' x='1' y='1' score='.5'/></box><box {BOX} age='7'/></image></images></dataset>"
    )
    assert imglab("", raw=raw).report.counts == {
        ("source of <image>", "not read"): 1,
        ("<tag> of <image>", "not read"): 1,
        ("gender of <box>", "not read"): 1,
        ("age of <box>", "not read"): 2,
        ("<note> of <box>", "not read"): 1,
        ("second <label> of <box>", "not read"): 1,
        ("score of <part>", "not read"): 1,
    }


@pytest.mark.parametrize(
    ("boxes", "words"),
    [
        ("<box top='2' left='1' width='3'/>", "it has no height"),
        ("<box top='2' left='a' width='3' height='1'/>", "it has 'a', which is not a number, as left"),
        (f"<box {BOX} ignore='maybe'/>", "it has 'maybe' as ignore; 0 or 1"),
        (f"<box {BOX}>{part('0', 1, 1)}{part('0', 1, 1)}</box>", "has the part '0' twice"),
        (f"<box {BOX}><part x='1' y='1'/>{part('0', 1, 1)}</box>", "a <part> without name"),
        (f"<box {BOX}>{part('0', 1, '?')}</box>", "part '0' has '\\?', which is not a number, as y"),
        (f"<box {BOX}><part name='0' x='1'/></box>", "part '0' has no y"),
        (f"<box {BOX}><label>{'n' * 300}</label></box>", "300 characters"),
    ],
)
def test_malformed_boxes_name_file_and_line_or_are_dropped(imglab, boxes, words):
    with pytest.raises(AnnotationError, match=rf"a\.xml:6: .*{words}.*'malformed': "):
        imglab(f"<box {BOX}/>".replace("/>", ">" + part("0", 3, 3) + "</box>") + f"\n{boxes}")
    table = imglab(f"<box {BOX}/>\n{boxes}", malformed="drop")
    assert (table.num_objects, table.report.counts) == (1, {("malformed", "drop"): 1})


def test_images_lie_beside_the_file_or_in_the_folder_named(tmp_path):
    (tmp_path / "sub").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "sub/a.png")
    xml = "<dataset><images><image file='a.png'/><image file='.\\a.png'/></images></dataset>"
    for name, folder in (("sub/a.xml", None), ("a.xml", "sub")):
        (tmp_path / name).write_text(xml)
        table = read_annotations("imglab", tmp_path, name, image_dir=folder, use_cache=False)
        assert list(table.image_paths) == ["sub/a.png"]


@pytest.mark.parametrize("file", ["../b.jpg", "/etc/passwd", "x/../../b.jpg"])
def test_images_outside_of_the_root_are_refused_with_the_line(imglab, file):
    with pytest.raises(UnsafePathError, match=r"a\.xml:4: "):
        imglab("", raw=f"<dataset><images>\n<image file='{file}'/></images></dataset>", missing_image="keep")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("<annotation/>", "root element is <annotation>"),
        ("<dataset>", "not well-formed"),
        ("", "not well-formed"),
        ("<!DOCTYPE dataset><dataset/>", "document types and entities"),
        ("<!DOCTYPE d [<!ENTITY a 'b'>]><dataset>&a;</dataset>", "document types and entities"),
        ("<dataset>&a;</dataset>", "undefined entity"),
        ("<dataset><images><image/></images></dataset>", "<image> has no file"),
        ("<dataset>" + "<a " + "b" * 3_000_000, "a tag of more than"),
    ],
)
def test_a_file_that_is_not_imglab_is_refused_with_its_line(imglab, raw, words):
    begin = time.perf_counter()
    with pytest.raises(AnnotationError, match=rf"a\.xml:\d: .*{words}"):
        imglab("", raw=raw)
    assert time.perf_counter() - begin < 2


def test_an_unknown_encoding_is_an_annotation_error(tmp_path):
    for encoding in ("klingon", "utf-7", "cp037"):
        (tmp_path / "a.xml").write_text(f"<?xml version='1.0' encoding='{encoding}'?><dataset/>")
        with pytest.raises(AnnotationError, match=r"a\.xml"):
            read_annotations("imglab", tmp_path, "a.xml", use_cache=False)


def test_elements_elsewhere_are_no_boxes(imglab):
    raw = (
        f"<dataset><box {BOX}/><images><box {BOX}/><x><image file='b.jpg'/></x><image file='a.jpg'>"
        f"<x><box {BOX}/></x><box {BOX}><box {BOX}/><x><label>no</label></x></box></image></images></dataset>"
    )
    table = imglab("", raw=raw)
    assert (table.num_objects, table.class_names, list(table.image_paths)) == (1, ("face",), ["a.jpg"])


def test_files_larger_than_the_window_are_the_same_image_by_image(imglab, monkeypatch):
    boxes = "".join(f"<box top='{i}' left='{i}' width='3' height='4'/>\n" for i in range(50))
    images = "".join(f"<image file='{i}.jpg'>{boxes}</image>" for i in range(20))
    raw = f"<dataset><images>{images}</images></dataset>"
    table = imglab("", raw=raw, missing_image="keep")
    monkeypatch.setattr("lit_loader.annotations.formats.imglab._CHUNK_BYTES", 7)
    chunked = imglab("", raw=raw, missing_image="keep")
    assert chunked.boxes.tolist() == table.boxes.tolist()
    assert chunked.offsets.tolist() == table.offsets.tolist() == list(range(0, 1001, 50))


def test_an_image_of_too_many_tags_is_refused(imglab, monkeypatch):
    monkeypatch.setattr("lit_loader.annotations.formats.imglab._MAX_TAGS", 500)
    with pytest.raises(AnnotationError, match="more than 500 tags"):
        imglab("<box/>" * 600)


@pytest.mark.parametrize("name", DLIB)
def test_dlib_faces_counts_equal_their_readme(shared_data, name):
    table = read_annotations("imglab", shared_data / "dlib_faces", name, use_cache=False, progress=False)
    images, boxes, points = DLIB[name]
    assert (table.num_images, table.class_counts().tolist(), table.class_names) == (images, [boxes], ("face",))
    assert table.keypoint_names == tuple(f"{i:02}" for i in range(points))
    assert len(table.report) == 0
    if points:
        assert (table.visibility == 2).all()
    assert all(table.image_path(i).is_file() for i in range(images))
