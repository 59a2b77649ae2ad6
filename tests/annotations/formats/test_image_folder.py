from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from lit_loader.annotations.formats import ReadPolicy, read_annotations
from lit_loader.errors import AnnotationError, UnsafePathError


def add(root, *paths, size=(6, 4)):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size).save(root / path)


def read(root, name=".", **options):
    actions = {key: options.pop(key) for key in list(options) if key in ReadPolicy.__dataclass_fields__}
    options.setdefault("use_cache", False)
    return read_annotations("image_folder", root, name, policy=ReadPolicy(**actions), progress=False, **options)


def test_each_folder_is_a_class_and_each_image_an_object_of_its_size(tmp_path):
    add(tmp_path, "dog/b.png", "dog/a.JPG", "cat/z.jpeg")
    add(tmp_path, "dog/c.bmp", size=(9, 3))
    table = read(tmp_path)
    assert list(table.image_paths) == ["cat/z.jpeg", "dog/a.JPG", "dog/b.png", "dog/c.bmp"]
    assert list(table.image_ids) == list(table.image_paths)
    assert (table.class_names, table.labels.tolist()) == (("cat", "dog"), [0, 1, 1, 1])
    assert table.boxes.tolist() == [[0, 0, 6, 4]] * 3 + [[0, 0, 9, 3]]
    assert table.widths.tolist() == [6, 6, 6, 9]
    assert (len(table.report), table.split) == (0, None)


def test_images_of_nested_folders_belong_to_the_first_level(tmp_path):
    add(tmp_path, "cat/dog/a.png", "cat/dog/deep/b.png", "dog/cat.png")
    table = read(tmp_path)
    assert (table.class_names, table.class_counts().tolist()) == (("cat", "dog"), [2, 1])


def test_a_split_is_a_folder_and_takes_the_classes_of_another(tmp_path):
    add(tmp_path, "train/a/1.png", "train/b/1.png", "val/b/1.png")
    train = read(tmp_path, "train", split="train")
    val = read(tmp_path, "val/", class_names=train.class_names, split="val")
    assert (list(val.image_paths), val.labels.tolist(), val.split) == (["val/b/1.png"], [1], "val")
    with pytest.raises(
        AnnotationError, match=r"class 'a' is not in class_names.*pass policy={'unknown_class': 'drop'}$"
    ):
        read(tmp_path, "train", class_names=["b"])
    assert read(tmp_path, "train", class_names=["b"], unknown_class="drop").labels.tolist() == [0]


def test_other_files_are_counted_by_extension_and_hidden_ones_ignored(tmp_path):
    add(tmp_path, "a/1.png", "a/.2.png", ".git/3.png")
    for name in ("a/list.txt", "a/deep.TXT", "README.md", "a/png", "a/4.heic"):
        (tmp_path / name).write_text("x")
    (tmp_path / "a/b.png").mkdir()
    table = read(tmp_path)
    assert list(table.image_paths) == ["a/1.png"]
    assert table.report.counts == {
        ("files without an extension", "not read"): 1,
        ("files *.heic", "not read"): 1,
        ("files *.md", "not read"): 1,
        ("files *.txt", "not read"): 2,
    }


def test_an_image_in_no_class_folder_is_malformed(tmp_path):
    add(tmp_path, "a/1.png", "stray.JPG")
    with pytest.raises(AnnotationError, match=r"image 'stray\.JPG' is not in a class folder.*'malformed': "):
        read(tmp_path)
    table = read(tmp_path, malformed="drop")
    assert (table.num_images, table.report.counts) == (1, {("malformed", "drop"): 1})


def test_a_folder_without_images_is_a_class_and_reported(tmp_path):
    add(tmp_path, "b/1.png")
    (tmp_path / "a").mkdir()
    table = read(tmp_path)
    assert (table.class_names, table.report.counts) == (("a", "b"), {("empty_class", "keep"): 1})


def test_links_to_images_and_folders_are_followed_wherever_they_lead(tmp_path):
    root = tmp_path / "root"
    add(root, "a/1.png", "b/1.png")
    add(tmp_path, "elsewhere/1.png", "elsewhere/2.png")
    (root / "a/2.png").symlink_to(root / "b/1.png")
    (root / "a/more").symlink_to(tmp_path / "elsewhere")
    (root / "a/again").symlink_to(tmp_path / "elsewhere")  # entered once
    (root / "a/up").symlink_to(root)  # a circle
    (root / "c").symlink_to(tmp_path / "elsewhere")
    table = read(root)
    assert (table.class_names, table.class_counts().tolist()) == (("a", "b", "c"), [4, 1, 2])
    assert "a/again/1.png" in table.image_paths
    assert len(table.report) == 0


def test_broken_links_are_missing_images(tmp_path):
    add(tmp_path, "a/1.png")
    (tmp_path / "a/2.png").symlink_to("none.png")
    (tmp_path / "a/3.png").symlink_to("3.png")
    with pytest.raises(AnnotationError, match=r"there is no image 'a/2\.png'"):
        read(tmp_path)
    table = read(tmp_path, missing_image="drop")
    assert (table.num_images, table.report.counts) == (1, {("missing_image", "drop"): 2})


@pytest.mark.parametrize("name", ["..", "../other", "/etc"])
def test_folders_outside_of_the_root_are_refused(tmp_path, name):
    root = tmp_path / "root"
    add(root, "a/1.png")
    add(tmp_path, "other/a/1.png")
    with pytest.raises(UnsafePathError):
        read(root, name)
    (root / "out").symlink_to(tmp_path / "other")
    assert list(read(root, "out").image_paths) == ["out/a/1.png"]


def test_a_folder_one_level_too_high_is_refused_with_the_remedy(tmp_path):
    add(tmp_path, "train/a/1.png", "train/b/1.png", "val/b/deep/1.png", "val/a/1.png")
    with pytest.raises(AnnotationError, match=r"'train' has no images but 2 folders.*\(a, b\).*nested=True"):
        read(tmp_path)
    table = read(tmp_path, nested=True)
    assert (table.class_names, table.class_counts().tolist()) == (("train", "val"), [2, 2])
    assert read(tmp_path, "train").class_names == ("a", "b")
    add(tmp_path, "one/only/1.png")  # a single folder inside is accepted
    assert read(tmp_path, "one").class_names == ("only",)
    (tmp_path / "sets").mkdir()
    (tmp_path / "train").rename(tmp_path / "sets/train")
    assert read(tmp_path / "sets", nested=True).class_names == ("train",)


def test_missing_folder_is_refused(tmp_path):
    add(tmp_path, "a/1.png")
    for name in ("b", "a/1.png"):
        with pytest.raises(AnnotationError, match="the folder does not exist"):
            read(tmp_path, name)


def test_cache_notices_new_images_classes_and_arguments(tmp_path):
    root = tmp_path / "root"
    add(root, "a/1.png", "b/1.png", "a/deep/1.png")
    options = {"use_cache": True, "cache_dir": tmp_path / "cache"}
    for _ in range(2):
        assert read(root, **options).class_names == ("a", "b")
        assert read(root, **options, class_names=["b", "a"]).class_names == ("b", "a")
        assert read(root, **options, split="s").split == "s"
    (root / "c").mkdir()
    assert read(root, **options).class_names == ("a", "b", "c")
    add(root, "c/1.png")
    np.testing.assert_array_equal(read(root, **options).class_counts(), [2, 1, 1])
    add(root, "a/deep/2.png")
    np.testing.assert_array_equal(read(root, **options).class_counts(), [3, 1, 1])
    (root / "b/1.png").unlink()
    np.testing.assert_array_equal(read(root, **options).class_counts(), [3, 0, 1])


def test_sign_digits_counts_equal_their_readme_and_sizes_are_upright(shared_data):
    table = read(shared_data / "sign_digits_cls", "Dataset")
    assert table.class_names == tuple("0123456789")
    assert table.class_counts().tolist() == [60, 45, 34, 26, 20, 15, 11, 9, 5, 3]
    phone = list(table.image_paths).index("Dataset/7/IMG_5874.JPG")
    assert (table.widths[phone], table.heights[phone]) == (3024, 3024)
    assert (np.delete(table.widths, phone) == 100).all()
