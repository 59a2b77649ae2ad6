from __future__ import annotations

import pytest

from lit_loader.annotations.formats import read_annotations
from lit_loader.errors import AnnotationError, UnsafePathError
from tests.support.text_sets import write_image


@pytest.fixture
def read(tmp_path):
    for name in ("a.jpg", "deep/b c.png"):
        write_image(tmp_path / name)

    def read(text, **options):
        (tmp_path / "t.csv").write_text(text, newline="")
        return read_annotations("keypoints_csv", tmp_path, "t.csv", use_cache=False, **options)

    return read


def test_first_column_is_the_path_and_the_others_are_points(read):
    table = read(",0,1,2,3\r\na.jpg,1,2,30,40.5\r\n\r\ndeep/b c.png,5,6,7,8\r\n", schema=2)
    assert list(table.image_paths) == ["a.jpg", "deep/b c.png"]
    assert table.keypoints.tolist() == [[[1, 2], [30, 40.5]], [[5, 6], [7, 8]]]
    assert (table.class_names, table.boxes[0].tolist()) == (("object",), [1, 2, 30, 40.5])


def test_columns_are_found_by_name(read):
    text = 'file,kind,xmin,xmax,ymin,ymax,"pose, rough"\na,"big, ""cat""",1,30,2,40,left\na.jpg,dog,5,9,5,9,-\n'
    columns = {"path_column": "file", "class_column": "kind", "box_columns": ("xmin", "ymin", "xmax", "ymax")}
    table = read(text, **columns, attribute_columns={"pose": "pose, rough"})
    assert table.boxes.tolist() == [[1, 2, 30, 40], [5, 5, 9, 9]]
    assert table.class_names == ('big, "cat"', "dog")
    assert table.attributes["pose"].ids.tolist() == [0, -1]
    assert (table.num_images, list(table.image_ids)) == (1, ["a"])


@pytest.mark.parametrize(
    ("options", "points"),
    [
        ({"schema": 2, "point_columns": ["x0", "y0", "x1", "y1"]}, [[1, 2], [3, 4]]),
        ({"schema": 1, "point_columns": "x1", "ignore_columns": "rest"}, [[3, 2]]),
        ({"schema": 1, "point_columns": 2, "ignore_columns": ["y1", 1]}, [[2, 1]]),
        ({"schema": 2}, [[4, 3], [2, 1]]),
    ],
)
def test_points_are_in_named_adjacent_or_unused_columns(read, options, points):
    table = read("y1,x1,y0,x0,file\n4,3,2,1,a.jpg\n", path_column="file", policy={"degenerate": "keep"}, **options)
    assert table.keypoints.tolist() == [points]


@pytest.mark.parametrize(
    ("text", "options", "box"),
    [
        ("a.jpg,1,2,3,4", {}, [1, 2, 3, 4]),
        ("a.jpg;1;2;3;4", {"separator": ";"}, [1, 2, 3, 4]),
        ("a.jpg,1,2,3,4", {"box_format": "xywh"}, [1, 2, 4, 6]),
        ("a.jpg,5,6,2,4", {"box_format": "cxcywh"}, [4, 4, 6, 8]),
        ("a.jpg,1,2,3,4", {"y_up": True}, [1, 46, 3, 48]),
        ("a.jpg,1,2,3,4", {"one_based": True}, [0, 1, 2, 3]),
        ("a.jpg,0,0,0.5,1", {"normalized": True}, [0, 0, 30, 50]),
    ],
)
def test_boxes_follow_options(read, text, options, box):
    assert read(text, box_columns=(1, 2, 3, 4), header=False, **options).boxes.tolist() == [box]


def test_names_and_attributes_follow_options(read):
    assert list(read("b c", image_dir="deep", header=False).image_paths) == ["deep/b c.png"]
    table = read("f,x\na.jpg,n", class_name="cat", class_names=["dog", "cat"], split="val", attribute_columns=["x"])
    assert (table.labels.tolist(), table.split, table.attributes["x"].names) == ([1], "val", ("n",))
    smiles = read("a.jpg,1", header=False, attribute_columns={"smile": 1}, attribute_values={"1": "yes", "0": "no"})
    assert (smiles.attributes["smile"].names, smiles.attributes["smile"].ids.tolist()) == (("no", "yes"), [1])


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
def test_names_of_box_columns_determine_the_format(read, names, values, options):
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
def test_box_columns_of_no_format_are_refused(read, names, options, words):
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
def test_malformed_rows_are_refused_with_line(read, text, line, words):
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
def test_missing_and_repeated_columns_are_refused_by_name(read, options, words):
    with pytest.raises(AnnotationError, match=rf"t\.csv:1: {words}"):
        read("f,x,x\na.jpg,1,2\n", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "column 'cell' or 'source' may be the class; pass class_column='cell'"),
        ({"ignore_columns": ["cell"]}, "column 'source' may be the class; pass class_column='source'"),
        ({"ignore_columns": "rest"}, None),
        ({"class_name": "cell"}, None),
        ({"class_column": "cell"}, None),
    ],
)
def test_an_unread_column_that_may_be_the_class_is_a_warning(read, caplog, options, message):
    text = "file,cell,source,age,xmin,ymin,xmax,ymax\na.jpg,RBC,lab,7,1,2,3,4\na.jpg,WBC,lab,8,1,2,3,4\n"
    table = read(text, **options)
    problems = [(problem.line, problem.message) for problem in table.report if problem.kind == "unread_class"]
    assert problems == ([] if message is None else [(1, message)])
    assert caplog.text.count("may be the class") == len(problems)


def test_unread_columns_are_counted_by_name(read):
    table = read("file,name,age,kind\na.jpg,Ann,31,cat\na.jpg,Bob,7,dog\n", class_column="kind")
    assert table.report.counts == {("column 'name'", "not read"): 2, ("column 'age'", "not read"): 2}
    assert read("a.jpg,31", header=False).report.counts == {("column 1", "not read"): 1}
    ignored = read("file,x,y\na.jpg,1,2\n", ignore_columns=["x", 2])
    assert ignored.report.counts == {("column 'x'", "not read"): 1, ("column 'y'", "not read"): 1}
    assert ignored.num_objects == 0  # no column describes an object


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
def test_unread_coordinates_are_refused_with_the_options_to_set(read, text, options):
    with pytest.raises(AnnotationError, match=r"t\.csv:1: columns .* hold numbers that nothing reads; .*ignore_col"):
        read(text, **options)
    assert read(text, ignore_columns="rest", policy={"degenerate": "keep"}, **options).num_images == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"class_column": 1, "class_name": "x"}, "exclude each other"),
        ({"separator": ",,"}, "must be one character"),
        ({"point_columns": 1}, "need a schema"),
        ({"point_columns": [1, 2, 3], "schema": 2}, "2 points have 4"),
        ({"box_columns": [1, 2, 3]}, "must be 4 columns"),
        ({"box_columns": "wxyz"}, r"must be Sequence\[str \| int\] or null"),
        ({"attribute_columns": "pose"}, r"must be Sequence\[str \| int\]"),
        ({"attribute_columns": {"pose": 1.5}}, "column 1.5 occurs 0 times"),
        ({"ignore_columns": "x"}, r"must be Sequence\[str \| int\] or 'rest'"),
        ({"path_column": True}, "must be str or int"),
        ({"path_column": "f", "header": False}, "a file without a header has numbers"),
        ({"box_format": "xywh"}, "needs a box of four numbers"),
        ({"ignore_columns": ["x"], "class_column": "x"}, "name one column twice"),
        ({"attribute_values": {"0": "no"}}, "need a column of an attribute"),
    ],
)
def test_contradicting_options_are_refused(read, options, words):
    with pytest.raises(ValueError, match=words):
        read("f,x,y\na.jpg,1,2\n", **options)


def test_unsafe_paths_are_refused_with_line(read):
    with pytest.raises(UnsafePathError, match=r"t\.csv:3"):
        read("f\na.jpg\n../a.jpg\n", policy={"malformed": "drop", "missing_image": "drop"})


TENSORFLOW = "filename,width,height,class,xmin,ymin,xmax,ymax\na.jpg,60,50,dog,1,2,30,40\na.jpg,60,50,cat,5,6,9,9\n"


@pytest.mark.parametrize("separator", [",", ", "])
@pytest.mark.parametrize("format", ["keypoints_csv", "csv"])
def test_tensorflow_table_needs_no_options(tmp_path, separator, format):
    write_image(tmp_path / "a.jpg")
    (tmp_path / "t.csv").write_text(TENSORFLOW.replace(",", separator))
    table = read_annotations(format, tmp_path, "t.csv", use_cache=False)
    assert table.boxes.tolist() == [[1, 2, 30, 40], [5, 6, 9, 9]]
    assert ([table.class_names[label] for label in table.labels], table.num_images) == (["dog", "cat"], 1)
    assert (table.widths.tolist(), table.report.counts) == ([60], {})


def test_options_take_usual_columns_first(read):
    table = read(TENSORFLOW, class_name="animal", attribute_columns=["class"])
    assert (table.class_names, table.attributes["class"].names) == (("animal",), ("cat", "dog"))
    assert read(TENSORFLOW, ignore_columns="rest").num_objects == 0
    sized = read(TENSORFLOW, ignore_columns=["width", "height"])
    assert sized.report.counts == {("column 'width'", "not read"): 2, ("column 'height'", "not read"): 2}


def test_width_and_height_of_the_box_are_not_image_sizes(read):
    boxes = "filename,class,xmin,ymin,xmax,ymax,width,height\na.jpg,dog,1,2,30,40,29,38\na.jpg,cat,5,6,9,9,4,3\n"
    with pytest.raises(AnnotationError, match="columns 'width', 'height' hold numbers that nothing reads"):
        read(boxes)
    assert read(boxes, ignore_columns=["width", "height"]).widths.tolist() == [60]


def test_missing_images_are_one_problem_with_a_count(read):
    text = "filename,class,xmin,ymin,xmax,ymax\n" + "".join(f"m{i % 127}.jpg,dog,1,2,3,4\n" for i in range(561))
    table = read(text, policy={"missing_image": "drop"})
    assert (table.num_images, table.report.counts) == (0, {("missing_image", "drop"): 127})
    # The first says how many there are, and the others are named as far as the report has details.
    assert [problem.line for problem in table.report] == list(range(2, 22))
    with pytest.raises(AnnotationError, match=r"t\.csv:2: .*'m0\.jpg', and 127 of 127 images are missing in all"):
        read(text)
