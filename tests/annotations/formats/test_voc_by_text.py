"""Files read object by object, by their text, give the same rows as files parsed as a whole."""

from __future__ import annotations

import random

import pytest

from lit_loader.annotations.formats import ReadPolicy, Rows
from lit_loader.annotations.formats.voc import VocReader
from lit_loader.errors import AnnotationError

BOX = "<bndbox><xmin>1</xmin><ymin> 2 </ymin><xmax>3.5</xmax><ymax>4e1</ymax></bndbox>"
PART = f"<part><name>head</name>{BOX}</part>"
PLAIN = f"<object><name>dog</name><pose>Left</pose><difficult>1</difficult>{BOX}</object>"
RICH = (
    f"<object>{BOX}<name>Hündin &amp; co</name><attributes><attribute><name>n</name><value>v</value></attribute>"
    '</attributes><keypoints><point name="q" x="1" y="2" visibility="1"/></keypoints></object>'
)
HEAD = "<filename>a.jpg</filename><size><width>9</width><height>9</height></size>"
SCHEMA = '<schema><keypoints><point name="q"/></keypoints></schema>'


def document(*parts, head=HEAD, start=""):
    return f"{start}<annotation>{head}\n{''.join(parts)}\n</annotation>\n".encode()


def read_everything(root, data, *, in_pieces, **options):
    """Everything that a file adds, or the error."""
    (root / "a.xml").write_bytes(data)
    reader = VocReader(**options)
    if not in_pieces:
        object.__setattr__(reader, "_parse_pieces", lambda data: None)
    rows = Rows(root, ReadPolicy(malformed="drop"))
    try:
        reader.read(rows, ("a", "a.xml", None))
    except AnnotationError as error:
        return str(error), error.line
    names = (rows.class_names, rows.layouts, rows.attribute_values, rows.declared)
    return rows.objects, rows.images, list(map(list, names)), rows.report.to_dict()


def assert_the_same(root, data, **options):
    rows = read_everything(root, data, in_pieces=True, **options)
    assert rows == read_everything(root, data, in_pieces=False, **options), data


@pytest.mark.parametrize(
    "data",
    [
        document(PLAIN, PLAIN, RICH, "<!-- <object> -->"),
        document(PLAIN, RICH, head=HEAD + SCHEMA, start='\ufeff<?xml version="1.0" encoding="utf-8"?>'),
        document(RICH, start='<?xml version="1.0"?>').decode().encode("utf-8"),
        document(RICH, start='<?xml version="1.0" encoding="latin-1"?>').decode().encode("latin-1"),
        document(PLAIN, RICH).decode().encode("utf-16"),
        document(PLAIN.replace(BOX, PART + BOX), PLAIN.replace(BOX, BOX + PART), PLAIN.replace(BOX, PART)),
        document(PLAIN.replace(BOX, BOX + BOX), PLAIN.replace(BOX, "<bndbox/>" + BOX)),
        document(PLAIN, '<object id="1"><name>cat</name></object>', "<object/>"),
        document("<folder>", PLAIN, "</folder>"),
        document(f"<object id='1'>{PART}<name>x</name></object><a>", PLAIN, "</a>"),
        document("<![CDATA[", PLAIN, "]]>"),
        document("<!--", PLAIN, "-->", PLAIN),
        document(PLAIN.replace("<name>", "<name><!-- </name> -->"), PLAIN.replace("dog", "<![CDATA[<object>]]>")),
        document(PLAIN.replace("3.5", "\f3.5"), PLAIN.replace("3.5", "3,5")),
        document(PLAIN.replace("3.5", "nan"), PLAIN.replace("3.5", "1e"), PLAIN.replace("3.5", "1_0")),
        document(PLAIN, head=HEAD.replace("a.jpg", " a&amp;b.jpg ")),
        document(PLAIN, head=HEAD.replace("a.jpg", "ä.jpg") + "<filename>b</filename>"),
        document(PLAIN, head="<folder>x</folder>"),
        document(PLAIN, head=f"<source>{HEAD}</source>"),
        document(PLAIN).replace(b"<annotation>", b'<annotation xmlns="u">'),
        document(PLAIN, '\n<object xmlns="u"/>\n', RICH),
        document(PLAIN.replace("<pose>", "<p:pose>").replace("</pose>", "</p:pose>")).replace(
            b"<annotation>", b'<annotation xmlns:p="u">'
        ),
        document(PLAIN.replace("dog", "&dog;"), start='<!DOCTYPE a [<!ENTITY dog "x">]>'),
        document(PLAIN)[:-20],
        document(PLAIN) + b"<object>",
        document(PLAIN.replace("dog", "d\0g")),
        document(PLAIN.replace("1", "2"), PLAIN.replace("<name>", "<crowd>?</crowd><name>")),
        document(PLAIN.replace("dog", "d" * 3_000)),
    ],
)
@pytest.mark.parametrize("options", [{}, {"keypoints": False, "attributes": False, "one_based": True}])
def test_odd_files_are_read_as_if_parsed_as_a_whole(tmp_path, data, options):
    assert_the_same(tmp_path, data, **options)


def test_plain_files_are_read_by_their_text_and_known_objects_are_not_parsed_again(tmp_path, monkeypatch):
    (tmp_path / "a.xml").write_bytes(document(PLAIN, RICH))
    rows = Rows(tmp_path, ReadPolicy())
    VocReader().read(rows, ("a", "a.xml", None))
    monkeypatch.setattr("lit_loader.annotations.formats.voc.reader.parse_xml", None)
    VocReader().read(rows, ("b", "a.xml", None))
    assert len(rows.objects) == 4


def test_files_with_random_damage_are_read_as_if_parsed_as_a_whole(tmp_path):
    rng = random.Random(0)
    pieces = [*"<>&/ \0\f\xff", "<object>", "</object>", BOX, PART, "<!--", "-->", "<![CDATA[", "]]>", "</annotation>"]
    pieces += [
        "<bndbox>",
        "</bndbox>",
        "<filename/>",
        "<name>b</name>",
        "<object/>",
        "<a>",
        "</a>",
        "encoding",
        HEAD,
        "\n",
    ]
    sound = [document(PLAIN, RICH), document(PLAIN, PLAIN, head=HEAD + SCHEMA), document(PLAIN.replace("1", "0"))]
    for _ in range(1_500):
        data = rng.choice(sound)
        for _ in range(rng.randint(1, 2)):
            place = rng.randrange(len(data))
            piece = rng.choice(pieces).encode("latin-1")
            data = data[:place] + piece + data[place + rng.choice((0, 0, 1, 9)) :]
        assert_the_same(tmp_path, data)
