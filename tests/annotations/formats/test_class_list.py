from __future__ import annotations

import pytest
from PIL import Image

from lit_loader.annotations.formats import ReadPolicy, read_annotations
from lit_loader.errors import AnnotationError, UnsafePathError


@pytest.fixture
def listed(tmp_path):
    """Write images a.jpg, b.png, "c d.JPG" and a list, and read it."""
    (tmp_path / "img").mkdir()
    for name in ("a.jpg", "b.png", "c d.JPG"):
        Image.new("RGB", (5, 3)).save(tmp_path / "img" / name)

    def read(text, **options):
        (tmp_path / "list.txt").write_bytes(text.encode())
        policy = {key: options.pop(key) for key in list(options) if key in ReadPolicy.__dataclass_fields__}
        options = {"image_dir": "img", "use_cache": False, "policy": policy} | options
        return read_annotations("class_list", tmp_path, "list.txt", **options)

    read.root = tmp_path
    return read


def names(table):
    object_names = [table.class_names[label] for label in table.labels]
    return [(path, object_names[table.objects(i)]) for i, path in enumerate(table.image_paths)]


def test_a_line_is_a_path_and_its_labels(listed):
    table = listed("\ufeffa.jpg cat\r\n\nb.png\tdog  cat \n")
    assert names(table) == [("img/a.jpg", ["cat"]), ("img/b.png", ["dog", "cat"])]
    assert table.class_names == ("cat", "dog")
    assert table.boxes.tolist() == [[0, 0, 5, 3]] * 3
    assert (table.split, len(table.report)) == (None, 0)


def test_paths_may_hold_blanks_or_lack_their_ending(listed):
    assert names(listed("c d.JPG x\na y\n")) == [("img/c d.JPG", ["x"]), ("img/a.jpg", ["y"])]


@pytest.mark.parametrize("text", ["a.jpg,cat\n", "a.jpg, cat\n"])
def test_a_comma_after_the_path_asks_for_a_separator(listed, text):
    with pytest.raises(AnnotationError, match="is not an image path; pass separator=','"):
        listed(text)
    assert listed(text, separator=",").class_names == ("cat",)


@pytest.mark.parametrize(
    ("text", "options", "labels"),
    [
        ("c d.JPG, polar bear ,cat,\n", {}, [("img/c d.JPG", ["polar bear", "cat"])]),
        ("path,label\na.jpg,x\n", {"header": True}, [("img/a.jpg", ["x"])]),
        ('"a.jpg","big, ""cat"""\n', {}, [("img/a.jpg", ['big, "cat"'])]),
    ],
)
def test_separated_fields_may_have_blanks_and_quotes(listed, text, options, labels):
    assert names(listed(text, separator=",", **options)) == labels


def test_lines_of_one_image_are_united(listed):
    table = listed("a.jpg x\nb.png y y\na.jpg z\n")  # a repeated label is one object
    assert names(table) == [("img/a.jpg", ["x", "z"]), ("img/b.png", ["y"])]


def test_a_line_without_label_is_an_image_without_objects(listed):
    table = listed("a.jpg\nb.png x\n")
    assert names(table) == [("img/a.jpg", []), ("img/b.png", ["x"])]
    assert table.report.counts == {("no_label", "keep"): 1}


@pytest.mark.parametrize(
    ("options", "class_names", "label"),
    [
        ({"numbered": True, "class_file": "classes.txt"}, ("owl", "1", "0"), "1"),
        ({"numbered": True, "class_file": "classes.txt", "class_names": ["0", "1", "owl"]}, ("0", "1", "owl"), "1"),
        ({"numbered": True, "class_names": ["p", "q"]}, ("p", "q"), "q"),
        ({"class_file": "classes.txt"}, ("owl", "1", "0"), "1"),
    ],
)
def test_numbers_refer_to_the_class_file_or_class_names(listed, options, class_names, label):
    (listed.root / "classes.txt").write_text("owl\n\n1\n0\n")
    table = listed("a.jpg 1\n", **options)
    assert (table.class_names, names(table)) == (class_names, [("img/a.jpg", [label])])


@pytest.mark.parametrize("label", ["3", "-1", "1.0", "x", "\u0661", "9" * 50])
def test_a_number_without_a_class_is_an_unknown_class(listed, label):
    words = r"list\.txt:2: label .* is not one of the 3 class numbers.*'unknown_class': "
    with pytest.raises(AnnotationError, match=words):
        listed(f"a.jpg 0\nb.png {label}\n", numbered=True, class_names=["p", "q", "r"])
    table = listed(f"b.png {label} 2\n", numbered=True, class_names=["p", "q", "r"], unknown_class="drop")
    assert (names(table), table.report.counts) == ([("img/b.png", ["r"])], {("unknown_class", "drop"): 1})


@pytest.mark.parametrize(
    ("text", "words"), [("", "has no class names"), ("a\nb\na\n", ":3: .a. is a dup"), ("x" * 300, "more than 256")]
)
def test_invalid_class_file_is_refused_with_line(listed, text, words):
    (listed.root / "classes.txt").write_text(text)
    with pytest.raises(AnnotationError, match=rf"classes\.txt.*{words}"):
        listed("a.jpg 0\n", class_file="classes.txt", numbered=True)


def test_unsafe_paths_are_refused(listed):
    for path in ("../list.txt", "/etc/passwd", "x/../../a.jpg"):
        with pytest.raises(UnsafePathError, match=r"list\.txt:2: "):
            listed(f"a.jpg x\n{path} x\n", image_dir=".", missing_image="keep")
    for option in ("image_dir", "class_file"):
        with pytest.raises(UnsafePathError):
            listed("a.jpg x\n", **{option: "../other"})


def test_line_without_path_is_malformed(listed):
    with pytest.raises(AnnotationError, match=r"list\.txt:1: the line has no path"):
        listed(",x\n", separator=",")


ONE_HOT = "path,cat,dog,owl\na.jpg,1,0,1\nb.png,0,0,0\n"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (ONE_HOT, {"separator": ","}),
        (ONE_HOT, {"separator": ",", "header": True}),
        (ONE_HOT.replace(",", ", "), {"separator": ","}),
        (ONE_HOT.replace(",", " "), {}),
        (ONE_HOT.replace(".jpg", "").replace(".png", ""), {"separator": ","}),
        (ONE_HOT.replace("0", "0.0").replace("1", "1.0"), {"separator": ",", "one_hot": True}),
    ],
)
def test_binary_columns_are_the_classes_in_the_header(listed, text, options):
    table = listed(text, **options)
    assert table.class_names == ("cat", "dog", "owl")
    assert names(table) == [("img/a.jpg", ["cat", "owl"]), ("img/b.png", [])]
    recognised = {} if "one_hot" in options else {("one_hot", "recognised"): 1}
    assert table.report.counts == {**recognised, ("no_label", "keep"): 1}


@pytest.mark.parametrize(
    ("text", "options", "class_names", "labels"),
    [
        (ONE_HOT, {"label_columns": ["owl", "cat"], "header": True}, ("owl", "cat"), ["owl", "cat"]),
        ("path,cat\na.jpg,1\nb.png,0\n", {"one_hot": True}, ("cat",), ["cat"]),
        (ONE_HOT, {"class_names": ["owl", "dog", "cat"]}, ("owl", "dog", "cat"), ["cat", "owl"]),
        ("a.jpg,0,1\nb.png,1,0\n", {"one_hot": False}, ("0", "1"), ["0", "1"]),
        ("a.jpg,0,1\nb.png,1,0\n", {"numbered": True, "class_names": ["p", "q"]}, ("p", "q"), ["p", "q"]),
    ],
)
def test_options_choose_the_classes_of_binary_tables(listed, text, options, class_names, labels):
    table = listed(text, separator=",", **options)
    assert (table.class_names, names(table)[0]) == (class_names, ("img/a.jpg", labels))


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a.jpg,0,1\nb.png,1,0\n", {}, "1: all cells are 0 or 1, and no header names classes.*one_hot=False"),
        ("path,cat,dog\na.jpg,1,2\n", {"one_hot": True}, "2: cell '2' of the class 'dog' is not 0 or 1"),
        ("path,cat,dog\na.jpg,1\n", {"one_hot": True}, "2: 2 fields; the first row has 3"),
        ("path,cat,cat\na.jpg,1,0\n", {"one_hot": True}, "1: the header must name different classes"),
        ("path,cat,\na.jpg,1,0\n", {"header": True}, "1: the header must name different classes"),
    ],
)
def test_invalid_one_hot_tables_are_refused_with_line(listed, text, options, words):
    with pytest.raises(AnnotationError, match=rf"list\.txt:{words}"):
        listed(text, separator=",", **options)


def test_one_hot_is_checked_on_every_line(listed):
    text = "path,cat,dog\n" + "a.jpg,1,0\n" * 200 + "a.jpg,1,7\n"
    with pytest.raises(AnnotationError, match=r"list\.txt:202: cell '7' of the class 'dog'.*label_columns"):
        listed(text, separator=",")


TABLE = "path,label,fold,age\na.jpg,cat,3,21\nb.png,dog,1,40\n"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (TABLE, {"separator": ",", "header": True}),
        (TABLE, {"separator": ",", "header": True, "one_hot": False}),
        (TABLE, {"separator": ","}),
        (TABLE.replace(",", " "), {"header": True}),
        (TABLE, {}),
    ],
)
def test_table_without_label_columns_is_refused(listed, text, options):
    message = "the table has the columns 'label', 'fold', 'age' .*label_c" if options else ".*pass separator=','"
    with pytest.raises(AnnotationError, match=rf"list\.txt:1: {message}"):
        listed(text, **options)


@pytest.mark.parametrize("separator", [",", None])
def test_table_of_names_and_numbers_without_header_is_refused(listed, separator):
    text = "a.jpg,cat,3,21\nb.png,dog,1,40\n".replace(",", separator or " ")
    with pytest.raises(AnnotationError, match=r"list\.txt:1: only some columns are .*label_columns"):
        listed(text, separator=separator)
    assert listed(text, separator=separator, label_columns=[1, 2]).num_objects == 4


@pytest.mark.parametrize("columns", [["label"], [1]])
def test_other_columns_are_counted_by_name(listed, columns):
    table = listed(TABLE, separator=",", header=True, label_columns=columns)
    assert names(table) == [("img/a.jpg", ["cat"]), ("img/b.png", ["dog"])]
    assert table.report.counts == {("column 'fold'", "not read"): 2, ("column 'age'", "not read"): 2}
    bare = listed(TABLE.partition("\n")[2], separator=",", label_columns=[1])
    assert (names(bare), bare.report.count("column '2'")) == (names(table), 2)


def test_unknown_label_columns_are_refused(listed):
    for columns in (["kind"], [4], [-1]):
        with pytest.raises(AnnotationError, match=r"not one of the 3 columns 'label', 'fold', 'age'"):
            listed(TABLE, separator=",", header=True, label_columns=columns)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"numbered": True}, "requires class_file or class_names"),
        ({"numbered": True, "one_hot": True}, "exclude each other"),
        ({"label_columns": ["x"]}, "names, which require header=True"),
        ({"label_columns": []}, "all different"),
        ({"label_columns": [0]}, "all different"),
        ({"label_columns": [1, 1]}, "all different"),
        ({"separator": ""}, "separator=''"),
        ({"class_names": []}, "at least one"),
    ],
)
def test_contradicting_options_are_refused(listed, options, words):
    with pytest.raises(ValueError, match=words):
        listed("a.jpg x\n", **options)


def test_numbered_list_of_imagenet_is_read(shared_data):
    root = shared_data / "formats_datumaro/imagenet_txt_dataset/basic"
    options = {"image_dir": "images", "numbered": True, "class_file": "synsets.txt", "use_cache": False}
    policy = {"missing_image": "keep", "unknown_class": "drop"}
    table = read_annotations("class_list", root, "train.txt", policy=policy, **options)
    assert table.num_images == 4
    assert table.class_names[:2] == ("label_0", "label_1")
