"""Formats by name, shipped and added; options checked by type; suggestions for mistakes."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest

from lit_loader.annotations.formats import (
    Inputs,
    Reader,
    Rows,
    Writer,
    find_reader,
    find_writer,
    read_annotations,
    readers,
    register_format,
    registry,
    write_annotations,
    writers,
)
from lit_loader.annotations.formats.registry import format_options, make_format, takes_option
from tests.support.face_lists import OPTIONS, write_faces
from tests.support.text_sets import write_image

QUIET = {"use_cache": False, "progress": False}
TINY = """
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
from lit_loader.annotations.formats import Reader, Rows

@dataclass(frozen=True, kw_only=True)
class TinyReader(Reader):
    format: ClassVar[str] = "tiny"
    description: ClassVar[str] = "a path and a class a line"
    shout: bool = False

    def read(self, rows: Rows, unit: str) -> None:
        for line, text in self.lines(rows, unit):
            path, class_name = text.split()
            image = rows.image(path, line=line)
            rows.object(image, class_name=class_name.upper() if self.shout else class_name, box=None)

@dataclass(frozen=True, kw_only=True)
class VocNamesake(TinyReader):
    format: ClassVar[str] = "voc"

class Nameless(Reader):
    pass
"""


@pytest.mark.parametrize("kind", [*readers().values(), *writers().values()], ids=lambda kind: kind.__name__)
def test_every_format_of_this_package_is_described_and_found_by_its_name(kind):
    find = find_reader if issubclass(kind, Reader) else find_writer
    assert find(kind.format) is kind
    assert kind.description
    assert "\n" not in kind.description
    shared = {"class_names", "policy", "cache_dir", "use_cache", "num_workers", "progress", "split"}
    assert not shared & set(format_options(kind))
    if issubclass(kind, Writer):
        assert kind.format in readers()
        assert "val" in kind.name_of_split.format("val")


def test_every_argument_reaches_the_reader(tmp_path):
    write_faces(tmp_path, "train.txt", 4)
    with (tmp_path / "train.txt").open("a") as file:
        file.write("none.png" + " 1 2" * 5 + " calm\n")
    cache = tmp_path / "cache"
    table = read_annotations(
        "keypoints_txt",
        tmp_path,
        "train.txt",
        class_names=["sad", "calm", "angry"],
        policy={"missing_image": "keep"},
        cache_dir=cache,
        num_workers=0,
        progress=False,
        split="val",
        one_based=True,
        **OPTIONS,
    )
    assert (table.class_names, table.split, table.num_images) == (("sad", "calm", "angry"), "val", 5)
    assert table.keypoints[0, 0].tolist() == [9, 7]
    assert len(list(cache.rglob("*.arrow"))) == 1
    with pytest.raises(ValueError, match="num_workers=-1"):
        read_annotations("keypoints_txt", tmp_path, "train.txt", num_workers=-1, **OPTIONS)


def test_unknown_names_get_suggestions(tmp_path):
    def read(format="keypoints_txt", **options):
        return read_annotations(format, tmp_path, "x", **options)

    with pytest.raises(ValueError, match=r"'cocoa' cannot be read; did you mean 'coco'\? formats: .*pts"):
        read("cocoa")
    with pytest.raises(ValueError, match=r"has no option 'colums'; did you mean 'columns'\? its options: .*schema"):
        read(colums="path")
    with pytest.raises(ValueError, match=r"'keypoints_txt' needs the option 'columns'"):
        read()
    with pytest.raises(
        ValueError, match=r"has no 'invalid_keypoints'; did you mean 'invalid_keypoint'\? it has: .*malformed"
    ):
        read(policy={"invalid_keypoints": "drop"}, **OPTIONS)
    with pytest.raises(ValueError, match=r"malformed='fix' must be one of"):
        read(policy={"malformed": "fix"}, **OPTIONS)
    with pytest.raises(ValueError, match=r"'wflw' cannot be written; formats: .*keypoints_txt"):
        find_writer("wflw")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("image_dir", 3, "option image_dir=3 of format 'keypoints_txt' must be str"),
        ("normalized", "maybe", "normalized='maybe' of format 'keypoints_txt' must be bool"),
        ("columns", ["path", 3], "must be Sequence[str] or str"),
        ("box_format", "yxyx", "must be 'xyxy' or 'xywh' or 'cxcywh'"),
        ("attribute_values", {0: "no"}, "must be Mapping[str, str] or null"),
    ],
)
def test_a_value_of_another_type_is_refused(tmp_path, option, value, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        read_annotations("keypoints_txt", tmp_path, "x", **{"columns": "path", option: value})


@pytest.mark.parametrize("policy", ["drop", ["drop"], {"drop": "malformed"}])
def test_invalid_policy_is_refused(tiny_set, policy):
    with pytest.raises(ValueError, match=r"the policy has no 'd(rop)?'; .*it has: duplicate_id, "):
        read_annotations("class_list", tiny_set, "list.txt", policy=policy)


@pytest.mark.parametrize(
    ("option", "value", "is_taken"),
    [
        ("path_column", "file", True),
        ("path_column", False, False),
        ("box_columns", ("a", 3, "c", 4), True),
        ("box_columns", "abcd", False),
        ("schema", {"names": ["a"]}, True),
        ("no_such_option", object(), True),
    ],
)
def test_takes_option_checks_the_type_of_known_options(option, value, is_taken):
    assert takes_option(find_reader("keypoints_csv"), option, value) == is_taken


@pytest.fixture
def tiny_set(tmp_path):
    write_image(tmp_path / "a.jpg")
    (tmp_path / "list.txt").write_text("a.jpg cat\n")
    return tmp_path


@pytest.fixture
def tiny_package(tmp_path_factory, monkeypatch):
    """Install a package that makes formats known by entry points; yields a function that names them."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "tiny_formats.py").write_text(TINY)
    (folder / "leaves_at_import.py").write_text("raise SystemExit(3)\n")
    info = folder / "tiny_formats-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-formats\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(folder)

    def declare(*points):
        (info / "entry_points.txt").write_text("[lit_loader.formats]\n" + "\n".join(points) + "\n")

    yield declare
    sys.modules.pop("tiny_formats", None)


def test_entry_point_adds_format(tiny_package, tiny_set):
    tiny_package("tiny = tiny_formats:TinyReader")
    table = read_annotations("tiny", tiny_set, "list.txt", shout=True, **QUIET)
    assert (table.class_names, table.boxes.tolist()) == (("CAT",), [[0, 0, 60, 50]])
    assert list(readers())[-1] == "tiny"
    assert "tiny" not in writers()
    with pytest.raises(ValueError, match=r"has no option 'shot'; did you mean 'shout'\?"):
        read_annotations("tiny", tiny_set, "list.txt", shot=True)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("tiny_formats:dataclass", "is neither a Reader nor a Writer"),
        ("no_such_package:Reader", "ModuleNotFoundError: No module named"),
        ("tiny_formats:VocNamesake", "its format 'voc' is taken by VocReader"),
        ("leaves_at_import:Reader", "SystemExit: 3"),
        ("tiny_formats:Nameless", "AttributeError: .* has no attribute 'format'"),
    ],
)
def test_invalid_entry_point_warns_and_others_work(tiny_package, value, why):
    tiny_package(f"bad = {value}", "tiny = tiny_formats:TinyReader")
    with pytest.warns(UserWarning, match=rf"bad='{value}' .* is ignored: .*{why}"):
        formats = readers()
    assert formats["voc"].__qualname__ == "VocReader"
    assert "tiny" in formats


def test_a_program_registers_formats_of_its_own(tiny_set, monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})

    @register_format
    @dataclass(frozen=True, kw_only=True)
    class OneReader(Reader):
        format: ClassVar[str] = "one"
        description: ClassVar[str] = "every image of a folder"
        class_name: str

        def inputs(self, folder, name):
            return Inputs(files=folder.find_files(name, ending=".jpg"))

        def read(self, rows: Rows, unit: str) -> None:
            rows.object(rows.image(unit), class_name=self.class_name, box=None)

    @register_format
    @dataclass(frozen=True, kw_only=True)
    class OneWriter(Writer):
        format: ClassVar[str] = "one"
        description: ClassVar[str] = "names of images"
        name_of_split: ClassVar[str] = "{}.one"

        def losses(self, table):
            return []

        def write(self, table, root, name, *, progress):
            (root / name).write_text("\n".join(table.image_paths))

    table = read_annotations("one", tiny_set, ".", class_name="x", **QUIET)
    assert (list(table.image_paths), table.class_names) == (["a.jpg"], ("x",))
    assert write_annotations("one", table, tiny_set, "a.one") == []
    assert (tiny_set / "a.one").read_text() == "a.jpg"
    assert (find_reader("one"), find_writer("one")) == (OneReader, OneWriter)
    assert make_format(OneReader, {"class_name": "y"}).class_name == "y"
    assert register_format(OneReader) is OneReader  # once more, as when a module is run again

    class Other(OneReader):
        format: ClassVar[str] = "coco"

    with pytest.raises(ValueError, match=r"format='coco' of .*Other is taken by CocoReader; choose another"):
        register_format(Other)
