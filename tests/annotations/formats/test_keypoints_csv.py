from __future__ import annotations

import pytest

from lit_loader.annotations.formats import ReadPolicy, read_annotations
from lit_loader.annotations.formats.keypoints_csv import KeypointsCsvReader
from lit_loader.errors import AnnotationError, UnsafePathError
from tests.support.text_sets import write_image


@pytest.fixture
def read(tmp_path):
    for name in ("a.jpg", "deep/b c.png"):
        write_image(tmp_path / name)

    def read(text, *, policy=None, **options):
        (tmp_path / "t.csv").write_text(text, newline="")
        policy = None if policy is None else ReadPolicy(**policy)
        return read_annotations("keypoints_csv", tmp_path, "t.csv", policy=policy, use_cache=False, **options)

    return read


def test_path_then_points(read):
    table = read(",0,1,2,3\r\na.jpg,1,2,30,40.5\r\n\r\ndeep/b c.png,5,6,7,8\r\n", schema=2)
    assert list(table.image_paths) == ["a.jpg", "deep/b c.png"]
    assert table.keypoints.tolist() == [[[1, 2], [30, 40.5]], [[5, 6], [7, 8]]]
    assert (table.class_names, table.boxes[0].tolist()) == (("object",), [1, 2, 30, 40.5])


def test_columns_go_by_name_in_the_order_asked_for(read):
    text = 'file,kind,xmin,xmax,ymin,ymax,"pose, rough"\na,"big, ""cat""",1,30,2,40,left\na.jpg,dog,5,9,5,9,-\n'
    table = read(
        text,
        path_column="file",
        class_column="kind",
        box_columns=("xmin", "ymin", "xmax", "ymax"),
        attribute_columns={"pose": "pose, rough"},
    )
    assert table.boxes.tolist() == [[1, 2, 30, 40], [5, 5, 9, 9]]
    assert table.class_names == ('big, "cat"', "dog")
    assert table.attributes["pose"].ids.tolist() == [0, -1]
    assert (table.num_images, list(table.image_ids)) == (1, ["a"])


def test_points_are_named_begun_or_left_over(read):
    text = "y1,x1,y0,x0,file\n4,3,2,1,a.jpg\n"
    keep = {"policy": {"degenerate": "keep"}, "path_column": "file"}
    assert read(text, schema=2, point_columns=["x0", "y0", "x1", "y1"], **keep).keypoints.tolist() == [[[1, 2], [3, 4]]]
    first = {"schema": 1, "point_columns": "x1", "ignore_columns": "rest"}
    assert read(text, **first, **keep).keypoints.tolist() == [[[3, 2]]]
    second = {"schema": 1, "point_columns": 2, "ignore_columns": ["y1", 1]}
    assert read(text, **second, **keep).keypoints.tolist() == [[[2, 1]]]
    assert read(text, schema=2, **keep).keypoints.tolist() == [[[4, 3], [2, 1]]]


def test_an_empty_field_is_an_absent_point(read):
    table = read("f,a,b,c,d,e,f2\na.jpg,1,2,,4,15,60\n", schema=3)
    assert table.visibility.tolist() == [[2, 0, 2]]
    assert table.keypoints.tolist() == [[[1, 2], [0, 0], [15, 60]]]
    assert table.boxes.tolist() == [[1, 2, 15, 60]]


def test_options_are_honoured(read):
    box = {"box_columns": (1, 2, 3, 4), "header": False}
    assert read("a.jpg,1,2,3,4", **box).boxes.tolist() == [[1, 2, 3, 4]]
    assert read("a.jpg;1;2;3;4", separator=";", **box).boxes.tolist() == [[1, 2, 3, 4]]
    assert read("a.jpg,1,2,3,4", box_format="xywh", **box).boxes.tolist() == [[1, 2, 4, 6]]
    assert read("a.jpg,5,6,2,4", box_format="cxcywh", **box).boxes.tolist() == [[4, 4, 6, 8]]
    assert read("a.jpg,1,2,3,4", y_up=True, **box).boxes.tolist() == [[1, 46, 3, 48]]
    assert read("a.jpg,1,2,3,4", one_based=True, **box).boxes.tolist() == [[0, 1, 2, 3]]
    assert read("a.jpg,0,0,0.5,1", normalized=True, **box).boxes.tolist() == [[0, 0, 30, 50]]
    assert list(read("b c,1,2,3,4", image_dir="deep", **box).image_paths) == ["deep/b c.png"]
    table = read("a.jpg,1,2,3,4", class_name="cat", class_names=["dog", "cat"], split="val", **box)
    assert (table.labels.tolist(), table.split) == ([1], "val")
    smiles = read("a.jpg,1", header=False, attribute_columns={"smile": 1}, attribute_values={"1": "yes", "0": "no"})
    assert (smiles.attributes["smile"].names, smiles.attributes["smile"].ids.tolist()) == (("no", "yes"), [1])
    assert read("f,smile\na.jpg,1", attribute_columns=["smile"]).attributes["smile"].names == ("1",)


@pytest.mark.parametrize(
    ("names", "values", "options"),
    [
        ("x,y,w,h", "10,20,20,15", {}),
        ("X,Y,Width,Height", "10,20,20,15", {}),
        ("bbox_x,bbox_y,bbox_w,bbox_h", "10,20,20,15", {}),
        ("left,top,width,height", "10,20,20,15", {}),
        ("x_center,y_center,w,h", "20,27.5,20,15", {}),
        ("x1,y1,x2,y2", "10,20,30,35", {}),
        ("x0,y0,x1,y1", "10,20,30,35", {}),
        ("a,b,c,d", "10,20,30,35", {}),
        ("x,y,w,h", "10,20,30,35", {"box_format": "xyxy"}),
    ],
)
def test_names_of_box_columns_say_the_format(read, names, values, options):
    for columns in (names.split(","), [1, 2, 3, 4]):
        table = read(f"file,{names}\na.jpg,{values}\n", box_columns=columns, **options)
        assert table.boxes.tolist() == [[10, 20, 30, 35]]
        assert table.report.counts == {}


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        ("xmin,xmax,ymin,ymax", {}, "not in the order xmin, ymin, xmax, ymax"),
        ("x0,x1,y0,y1", {}, "not in the order xmin, ymin, xmax, ymax"),
        ("w,h,x,y", {}, "not in the order xmin, ymin, width, height"),
        ("x,y,xmax,height", {}, "choose a box_format of 'xyxy', 'xywh' and 'cxcywh'"),
        ("x,y,w,h", {"normalized": True}, "may be a corner or the centre"),
    ],
)
def test_names_of_box_columns_that_fit_no_format_are_refused(read, names, options, words):
    with pytest.raises(AnnotationError, match=rf"t\.csv:1: .*{words}"):
        read(f"file,{names}\na.jpg,0.1,0.2,0.3,0.4\n", box_columns=names.split(","), **options)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("f,x,y\na.jpg,1\n", 2, "2 fields; the first row has 3"),
        ("f,x,y\n\na.jpg,1,z\n", 3, "expected number 2 of 2, got 'z'"),
        ('f,x,y\n"a.jpg,1,2\n\n', 2, "the row is not valid CSV"),
        ('f,x,y\n"a"b,1,2\n', 2, "the row is not valid CSV"),
        ('f,x,y\n"' + "a\n" * 40, 2, "the row has more than 16 lines; is a quote not closed"),
        ("f,x,y\n" + "a" * 140_000 + ",1,2\n", 2, "field larger than field limit"),
        ("f,x,y\n,1,2\n", 2, "the path of the image is empty"),
        ("f,x,y\n\na.jpg,1,2\nnone.jpg,1,2", 4, "there is no image 'none.jpg'"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(read, text, line, words):
    with pytest.raises(AnnotationError, match=rf"t\.csv:{line}: .*({words})"):
        read(text, schema=1, policy={"degenerate": "keep"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path_column": "file"}, "column 'file' occurs 0 times in the header, which has 'f', 'x', 'x'"),
        ({"class_column": "x"}, "column 'x' occurs 2 times"),
        ({"class_column": 3}, "column 3 does not exist; the first row has 3"),
        ({"schema": 2}, "2 points need 4 columns, got 2 unused ones"),
        ({"schema": 2, "point_columns": 1}, "column 3 does not exist; the first row has 3"),
        ({"schema": 1, "point_columns": 1, "class_column": 2}, r"columns \[0, 2, 1, 2\] name one column twice"),
        ({"path_column": 0, "class_column": "f"}, r"columns \[0, 'f'\] name one column twice"),
    ],
)
def test_columns_that_are_not_there_are_named(read, options, words):
    with pytest.raises(AnnotationError, match=rf"t\.csv:1: {words}"):
        read("f,x,x\na.jpg,1,2\n", **options)


def test_columns_that_nothing_reads_are_named_with_their_count(read):
    table = read("file,name,age,kind\na.jpg,Ann,31,cat\na.jpg,Bob,7,dog\n", class_column="kind")
    assert table.report.counts == {("column 'name'", "not read"): 2, ("column 'age'", "not read"): 2}
    assert read("a.jpg,Ann", header=False).report.counts == {("column 1", "not read"): 1}
    ignored = read("file,x,y\na.jpg,1,2\n", ignore_columns=["x", 2])
    assert ignored.report.counts == {("column 'x'", "not read"): 1, ("column 'y'", "not read"): 1}
    assert ignored.num_objects == 0  # nothing is said of an object, so none is made up


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("f,x,y\na.jpg,1,2\n", {}),
        ("f,x,y,kind\na.jpg,,2,cat\na.jpg,1,,cat\n", {"class_column": "kind"}),
        ('f,bbox,kind\na.jpg,"[1, 2, 3, 4]",cat\n', {"class_column": "kind"}),
        ("f," + ",".join(map(str, range(136))) + "\na.jpg" + ",1" * 136 + "\n", {}),
        ("f," + ",".join(map(str, range(136))) + "\na.jpg" + ",1" * 136 + "\n", {"schema": 5}),
        ("f,age,x,y\na.jpg,30,1,2\n", {"schema": 1}),  # age, x would be taken for the point
    ],
)
def test_left_over_coordinates_are_refused_with_the_options_that_settle_it(read, text, options):
    with pytest.raises(AnnotationError, match=r"t\.csv:1: columns .* hold numbers that nothing reads; .*ignore_col"):
        read(text, **options)
    assert read(text, ignore_columns="rest", policy={"degenerate": "keep"}, **options).num_images == 1


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"class_column": 1, "class_name": "x"}, ValueError, "exclude each other"),
        ({"separator": ",,"}, ValueError, "must be one character"),
        ({"separator": '"'}, ValueError, "must be one character"),
        ({"point_columns": 1}, ValueError, "need a schema"),
        ({"point_columns": [1, 2, 3], "schema": 2}, ValueError, "2 points have 4"),
        ({"box_columns": [1, 2, 3]}, ValueError, "must be 4 columns"),
        ({"box_columns": "wxyz"}, ValueError, r"must be Sequence\[str \| int\] or null"),
        ({"attribute_columns": "pose"}, ValueError, r"must be Sequence\[str \| int\]"),
        ({"attribute_columns": {"pose": 1.5}}, ValueError, "column 1.5 occurs 0 times"),
        ({"ignore_columns": "x"}, ValueError, r"must be Sequence\[str \| int\] or 'rest'"),
        ({"path_column": 1.5}, ValueError, "must be str or int"),
        ({"path_column": True}, ValueError, "must be str or int"),
        ({"path_column": -1}, ValueError, "counted from 0"),
        ({"path_column": 1, "class_column": 1}, ValueError, "name one column twice"),
        ({"path_column": "f", "header": False}, ValueError, "a file without a header has numbers"),
        ({"box_format": "xywh"}, ValueError, "needs a box of four numbers"),
        ({"ignore_columns": ["x"], "class_column": "x"}, ValueError, "name one column twice"),
        ({"attribute_values": {"0": "no"}}, ValueError, "need a column of an attribute"),
        ({"one_based": True, "normalized": True}, ValueError, "exclude each other"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(read, options, error, words):
    with pytest.raises(error, match=words):
        read("f,x,y\na.jpg,1,2\n", **options)


def test_paths_out_of_the_root_are_refused(read):
    with pytest.raises(UnsafePathError, match=r"t\.csv:3"):
        read("f\na.jpg\n../a.jpg\n", policy={"malformed": "drop", "missing_image": "drop"})


def test_a_table_is_read_from_the_cache_until_a_setting_changes(read, tmp_path, monkeypatch):
    def again(**options):
        return read_annotations("keypoints_csv", tmp_path, "t.csv", cache_dir=tmp_path / "cache", **options)

    read("f,x\na.jpg,1\n")
    assert again().num_images == 1
    monkeypatch.setattr(KeypointsCsvReader, "read", lambda *_: pytest.fail("again"))
    assert again().num_images == 1
    for changed in (
        {"class_column": 1},
        {"attribute_columns": ["x"]},
        {"separator": ";"},
        {"header": False},
        {"split": "v"},
    ):
        with pytest.raises(pytest.fail.Exception, match="again"):
            again(**changed)


@pytest.mark.parametrize(
    ("name", "options", "images", "objects", "problems"),
    [
        (
            "bccd/test.csv",
            {
                "path_column": "filename",
                "class_column": "cell_type",
                "box_columns": ("xmin", "ymin", "xmax", "ymax"),
                "image_dir": "bccd/BCCD/JPEGImages",
                "policy": ReadPolicy(degenerate="keep"),
            },
            364,
            4888,
            {("degenerate", "keep"): 2},
        ),
        (
            "formats_datumaro/vgg_face2_dataset/bb_landmark/loose_bb_train.csv",
            {
                "path_column": "NAME_ID",
                "box_columns": ("X", "Y", "W", "H"),
                "box_format": "xywh",
                "image_dir": "formats_datumaro/vgg_face2_dataset/train",
            },
            3,
            3,
            {},
        ),
        (
            "formats_datumaro/vgg_face2_dataset/bb_landmark/loose_landmark_train.csv",
            {"schema": "face_5", "image_dir": "formats_datumaro/vgg_face2_dataset/train"},
            3,
            3,
            {},
        ),
        (
            "formats_datumaro/vott_csv_dataset/dataset/train-export.csv",
            {
                "path_column": "image",
                "class_column": "label",
                "box_columns": ("xmin", "ymin", "xmax", "ymax"),
                "image_dir": "formats_datumaro/vott_csv_dataset/dataset",
            },
            2,
            3,
            {("out_of_image", "keep"): 2},
        ),
        (
            "udacity_faces/test_frames_keypoints.csv",
            {"schema": "face_68", "image_dir": "udacity_faces/test"},
            16,
            16,
            {},
        ),
        (
            "udacity_faces/training_frames_keypoints.csv",
            {"schema": "face_68", "image_dir": "udacity_faces/training"},
            79,
            79,
            {("keypoint_outside", "keep"): 3},
        ),
    ],
)
def test_real_tables_have_the_rows_that_they_have(shared_data, name, options, images, objects, problems):
    table = read_annotations("keypoints_csv", shared_data, name, use_cache=False, **options)
    assert (table.num_images, table.num_objects, table.report.counts) == (images, objects, problems)
    assert (table.widths > 0).all()


def test_points_outside_real_images_are_listed(shared_data):
    """Mariana_Ohata_22 has a second point on its lower edge, which belongs to the image here."""
    name, images = "udacity_faces/training_frames_keypoints.csv", "udacity_faces/training"
    options = {"schema": "face_68", "image_dir": images, "use_cache": False}
    table = read_annotations("keypoints_csv", shared_data, name, **options)
    lines = (shared_data / name).read_text().splitlines()
    found = {lines[problem.line - 1].split(",")[0]: problem.message for problem in table.report}
    assert {image: int(message.split()[0]) for image, message in found.items()} == {
        "Mariana_Ohata_22.jpg": 1,
        "Chris_Cooper_42.jpg": 2,
        "Eliza_Dushku_22.jpg": 2,
    }


def test_the_real_boxes_are_those_of_the_xml(shared_data):
    table = read_annotations(
        "keypoints_csv",
        shared_data / "bccd",
        "test.csv",
        class_column="cell_type",
        box_columns=("xmin", "ymin", "xmax", "ymax"),
        image_dir="BCCD/JPEGImages",
        policy=ReadPolicy(degenerate="keep"),
        use_cache=False,
    )
    counts = dict(zip(table.class_names, table.class_counts().tolist(), strict=True))
    assert counts == {"Platelets": 361, "RBC": 4155, "WBC": 372}


TENSORFLOW = "filename,width,height,class,xmin,ymin,xmax,ymax\na.jpg,60,50,dog,1,2,30,40\na.jpg,60,50,cat,5,6,9,9\n"


@pytest.mark.parametrize("separator", [",", ", "])
@pytest.mark.parametrize("format", ["keypoints_csv", "csv"])
def test_a_tensorflow_table_is_read_without_options(tmp_path, separator, format):
    write_image(tmp_path / "a.jpg")
    (tmp_path / "t.csv").write_text(TENSORFLOW.replace(",", separator))
    table = read_annotations(format, tmp_path, "t.csv", use_cache=False)
    assert table.boxes.tolist() == [[1, 2, 30, 40], [5, 6, 9, 9]]
    assert ([table.class_names[label] for label in table.labels], table.num_images) == (["dog", "cat"], 1)
    assert (table.widths.tolist(), table.report.counts) == ([60], {})


def test_usual_names_stay_free_for_options(read):
    table = read(TENSORFLOW, class_name="animal", attribute_columns=["class"])
    assert (table.class_names, table.attributes["class"].names) == (("animal",), ("cat", "dog"))
    assert read(TENSORFLOW, ignore_columns="rest").num_objects == 0
    sized = read(TENSORFLOW, ignore_columns=["width", "height"])
    assert sized.report.counts == {("column 'width'", "not read"): 2, ("column 'height'", "not read"): 2}


def test_width_and_height_of_the_box_are_not_those_of_the_image(read):
    boxes = "filename,class,xmin,ymin,xmax,ymax,width,height\na.jpg,dog,1,2,30,40,29,38\na.jpg,cat,5,6,9,9,4,3\n"
    with pytest.raises(AnnotationError, match="columns 'width', 'height' hold numbers that nothing reads"):
        read(boxes)
    assert read(boxes, ignore_columns=["width", "height"]).widths.tolist() == [60]


def test_missing_images_are_one_problem_with_a_count(read):
    text = "filename,class,xmin,ymin,xmax,ymax\n" + "".join(f"m{i % 127}.jpg,dog,1,2,3,4\n" for i in range(561))
    for action, num_images in (("keep", 127), ("drop", 0)):
        table = read(text, policy={"missing_image": action})
        assert (table.num_images, table.report.counts) == (num_images, {("missing_image", action): 127})
        assert [problem.line for problem in table.report] == [2]
    with pytest.raises(AnnotationError, match=r"t\.csv:2: .*'m0\.jpg', and 127 of 127 images are missing in all"):
        read(text)
