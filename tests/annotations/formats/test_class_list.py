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
        actions = {key: options.pop(key) for key in list(options) if key in ReadPolicy.__dataclass_fields__}
        options = {"image_dir": "img", "use_cache": False, "progress": False} | options
        return read_annotations("class_list", tmp_path, "list.txt", policy=ReadPolicy(**actions), **options)

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


def test_a_separator_leaves_blanks_in_paths_and_labels(listed):
    table = listed("c d.JPG, polar bear ,cat,\na.jpg,cat\n", separator=",")
    assert names(table) == [("img/c d.JPG", ["polar bear", "cat"]), ("img/a.jpg", ["cat"])]


def test_a_header_is_skipped(listed):
    assert names(listed("path,label\na.jpg,x\n", separator=",", header=True)) == [("img/a.jpg", ["x"])]


def test_lines_of_one_image_are_united_and_a_label_counts_once_a_line(listed):
    assert names(listed("a.jpg x\nb.png y y\na.jpg z\n")) == [("img/a.jpg", ["x", "z"]), ("img/b.png", ["y"])]


def test_a_line_without_label_is_an_image_without_objects(listed):
    table = listed("a.jpg\nb.png x\n")
    assert names(table) == [("img/a.jpg", []), ("img/b.png", ["x"])]
    assert table.report.counts == {("no_label", "keep"): 1}


def test_numbers_mean_the_lines_of_a_file_or_the_names_given(listed):
    (listed.root / "classes.txt").write_text("owl\n\n1\n0\n")
    table = listed("a.jpg 0\nb.png 2 1\n", numbered=True, class_file="classes.txt")
    assert (table.class_names, names(table)[1]) == (("owl", "1", "0"), ("img/b.png", ["0", "1"]))
    other = listed("a.jpg 0\n", numbered=True, class_file="classes.txt", class_names=["0", "1", "owl"])
    assert (other.class_names, names(other)) == (("0", "1", "owl"), [("img/a.jpg", ["owl"])])
    given_names = listed("a.jpg 1\n", numbered=True, class_names=["p", "q"])
    assert names(given_names) == [("img/a.jpg", ["q"])]
    as_words = listed("a.jpg 1\n", class_file="classes.txt")
    assert (as_words.class_names, names(as_words)) == (("owl", "1", "0"), [("img/a.jpg", ["1"])])


@pytest.mark.parametrize("label", ["3", "-1", "1.0", "x", "\u0661", "9" * 50])
def test_a_number_without_a_class_is_an_unknown_class(listed, label):
    with pytest.raises(
        AnnotationError, match=r"list\.txt:2: label .* is not one of the 3 class numbers.*unknown_class="
    ):
        listed(f"a.jpg 0\nb.png {label}\n", numbered=True, class_names=["p", "q", "r"])
    table = listed(f"b.png {label} 2\n", numbered=True, class_names=["p", "q", "r"], unknown_class="drop")
    assert (names(table), table.report.counts) == ([("img/b.png", ["r"])], {("unknown_class", "drop"): 1})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no class names"),
        ("a\nb\na\n", r"classes\.txt:3: 'a' is a duplicate"),
        ("x" * 300, "has more than 256"),
    ],
)
def test_invalid_class_file_is_refused_with_line(listed, text, words):
    (listed.root / "classes.txt").write_text(text)
    with pytest.raises(AnnotationError, match=words):
        listed("a.jpg 0\n", class_file="classes.txt", numbered=True)


@pytest.mark.parametrize("path", ["../list.txt", "/etc/passwd", "x/../../a.jpg"])
def test_images_outside_of_the_root_are_refused_with_the_line(listed, path):
    with pytest.raises(UnsafePathError, match=r"list\.txt:2: "):
        listed(f"a.jpg x\n{path} x\n", image_dir=".", missing_image="keep")


@pytest.mark.parametrize("name", ["image_dir", "class_file"])
def test_folders_and_files_outside_of_the_root_are_refused(listed, name):
    with pytest.raises(UnsafePathError):
        listed("a.jpg x\n", **{name: "../other"})


def test_policy_applies_to_missing_images_and_long_labels(listed):
    with pytest.raises(AnnotationError, match=r"list\.txt:1: there is no image 'img/z\.jpg'"):
        listed("z.jpg x\n")
    assert listed("z.jpg x\na.jpg x\n", missing_image="drop").num_images == 1
    with pytest.raises(AnnotationError, match="300 characters"):
        listed(f"a.jpg {'n' * 300}\n")
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
def test_columns_of_0_and_1_are_the_classes_in_the_header(listed, text, options):
    table = listed(text, **options)
    assert table.class_names == ("cat", "dog", "owl")
    assert names(table) == [("img/a.jpg", ["cat", "owl"]), ("img/b.png", [])]
    recognised = {} if "one_hot" in options else {("one_hot", "recognised"): 1}
    assert table.report.counts == {**recognised, ("no_label", "keep"): 1}


def test_one_hot_tables_are_read_as_asked(listed):
    csv = {"separator": ","}
    few = listed(ONE_HOT, label_columns=["owl", "cat"], header=True, **csv)
    assert (few.class_names, few.report.count("column 'dog'", "not read")) == (("owl", "cat"), 2)
    single = listed("path,cat\na.jpg,1\nb.png,0\n", one_hot=True, **csv)
    assert names(single) == [("img/a.jpg", ["cat"]), ("img/b.png", [])]
    ordered = listed(ONE_HOT, class_names=["owl", "dog", "cat"], **csv)
    assert (ordered.class_names, names(ordered)[0]) == (("owl", "dog", "cat"), ("img/a.jpg", ["cat", "owl"]))
    words = listed("a.jpg 0 1\nb.png 1 0\n", one_hot=False)
    assert words.class_names == ("0", "1")
    numbered = listed("a.jpg 0 1\nb.png 1 0\n", numbered=True, class_names=["p", "q"])
    assert names(numbered)[0] == ("img/a.jpg", ["p", "q"])


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
def test_a_table_whose_labels_are_not_named_is_refused(listed, text, options):
    message = "the table has the columns 'label', 'fold', 'age' .*label_c" if options else ".*pass separator=','"
    with pytest.raises(AnnotationError, match=rf"list\.txt:1: {message}"):
        listed(text, **options)


@pytest.mark.parametrize("separator", [",", None])
def test_a_table_without_a_header_is_refused_where_only_some_columns_are_numbers(listed, separator):
    text = "a.jpg,cat,3,21\nb.png,dog,1,40\n".replace(",", separator or " ")
    with pytest.raises(AnnotationError, match=r"list\.txt:1: only some columns are .*label_columns"):
        listed(text, separator=separator)
    assert listed(text, separator=separator, label_columns=[1, 2]).num_objects == 4


@pytest.mark.parametrize("columns", [["label"], [1]])
def test_columns_that_are_no_labels_are_counted(listed, columns):
    table = listed(TABLE, separator=",", header=True, label_columns=columns)
    assert names(table) == [("img/a.jpg", ["cat"]), ("img/b.png", ["dog"])]
    assert table.report.counts == {("column 'fold'", "not read"): 2, ("column 'age'", "not read"): 2}
    bare = listed(TABLE.partition("\n")[2], separator=",", label_columns=[1])
    assert (names(bare), bare.report.count("column '2'")) == (names(table), 2)


def test_unknown_label_columns_are_refused(listed):
    for columns in (["kind"], [4], [-1]):
        with pytest.raises(AnnotationError, match=r"not one of the 3 columns 'label', 'fold', 'age'"):
            listed(TABLE, separator=",", header=True, label_columns=columns)


def test_labels_in_quotes_are_read_without_them(listed):
    table = listed('"a.jpg","big, ""cat"""\nb.png, "dog"\n', separator=",")
    assert table.class_names == ('big, "cat"', "dog")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"numbered": True}, ValueError, "requires class_file or class_names"),
        ({"numbered": True, "one_hot": True}, ValueError, "exclude each other"),
        ({"label_columns": ["x"]}, ValueError, "names, which require header=True"),
        ({"label_columns": []}, ValueError, "all different"),
        ({"label_columns": [0]}, ValueError, "all different"),
        ({"label_columns": [1, 1]}, ValueError, "all different"),
        ({"separator": ""}, ValueError, "separator=''"),
        ({"separator": "\n"}, ValueError, "separator="),
        ({"class_names": []}, ValueError, "at least one"),
        ({"num_workers": -1}, ValueError, "num_workers=-1"),
    ],
)
def test_wrong_arguments_are_refused(listed, options, error, words):
    with pytest.raises(error, match=words):
        listed("a.jpg x\n", **options)


def test_cache_key_covers_every_argument(listed):
    (listed.root / "classes.txt").write_text("p\nq\n")
    options = {"use_cache": True, "cache_dir": listed.root / "cache"}
    text = "a.jpg 1\nb.png 0\n"
    for _ in range(2):
        assert listed(text, **options).class_names == ("0", "1")
        assert listed(text, **options, class_file="classes.txt", numbered=True).class_names == ("p", "q")
        assert listed(text, **options, header=True).num_images == 1
        assert listed(text, **options, class_names=["1", "0"]).class_names == ("1", "0")
        assert listed("a.jpg,x\n", **options, separator=",").class_names == ("x",)
        assert listed(text, **options, split="s").split == "s"
    (listed.root / "classes.txt").write_text("p\nr r\n")
    assert listed(text, **options, class_file="classes.txt", numbered=True).class_names == ("p", "r r")


def test_mmpretrain_lists_are_read(shared_data):
    root = shared_data / "cls_tree_mmpretrain"
    options = {"use_cache": False, "progress": False}
    table = read_annotations("class_list", root, "ann.txt", numbered=True, class_file="classes.txt", **options)
    assert (table.class_names, table.class_counts().tolist()) == (("bus", "car"), [1, 2])
    bare = read_annotations("class_list", root, "ann_without_labels.txt", **options)
    assert (bare.num_images, bare.num_objects, bare.report.count("no_label")) == (3, 0, 3)


def test_kaggle_and_imagenet_lists_of_datumaro_are_read(shared_data):
    root = shared_data / "formats_datumaro"
    kaggle = {
        "image_txt/ann.txt": {},
        "image_txt/ann_wo_ext.txt": {},
        "image_csv/ann.csv": {"separator": ",", "header": True},
        "image_csv/ann_wo_ext.csv": {"separator": ",", "header": True},
    }
    for name, options in kaggle.items():
        folder = f"kaggle_dataset/{name.partition('/')[0]}/images"
        table = read_annotations(
            "class_list", root, f"kaggle_dataset/{name}", image_dir=folder, use_cache=False, **options
        )
        assert (table.class_names, table.class_counts()[1]) == (("cat", "dog"), 2)
        assert table.num_images == 5
    policy = ReadPolicy(missing_image="keep", unknown_class="drop")
    table = read_annotations(
        "class_list",
        root / "imagenet_txt_dataset/basic",
        "train.txt",
        image_dir="images",
        numbered=True,
        class_file="synsets.txt",
        policy=policy,
        use_cache=False,
    )
    assert table.num_images == 4
    assert table.class_names[:2] == ("label_0", "label_1")
