from __future__ import annotations

import time
from xml.etree.ElementTree import tostring

import pytest

from lit_loader.annotations.formats.voc.xml_tree import MAX_ATTRIBUTES, MAX_TAGS, child_lines, parse_xml
from lit_loader.errors import AnnotationError

LAUGHS = b"""<?xml version="1.0"?>
<!DOCTYPE lolz [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;"><!ENTITY d "&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;">]>
<annotation>&d;</annotation>"""


def test_elements_have_text_children_and_attributes():
    root = parse_xml(b'<a k="v">\n<b> one </b>\n<b>two</b>\n<c/></a>', path="x.xml")
    assert (root.tag, root.attrib) == ("a", {"k": "v"})
    assert [b.text for b in root.findall("b")] == [" one ", "two"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_lines_are_of_the_children_that_a_tree_has(encoding):
    data = '<a>\n<b/><c><b/></c>\n<b>\n</b>\n<!-- <b/> --><b xmlns=""/><b xmlns="u"/>\n</a>'.encode(encoding)
    assert child_lines(data, "b") == [2, 3, 5]
    assert len(parse_xml(data, path="x").findall("b")) == 3


def test_bytes_in_other_encodings_are_decoded():
    for encoding in ("utf-8", "utf-8-sig", "latin-1", "utf-16"):
        head = f'<?xml version="1.0" encoding="{encoding}"?>' if encoding == "latin-1" else ""
        assert parse_xml(f"{head}<a>ä</a>".encode(encoding), path="x").text == "ä"


@pytest.mark.parametrize(
    "data",
    [
        LAUGHS,
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        b'<!DOCTYPE a SYSTEM "http://localhost:9/x.dtd"><a/>',
        b"<!DOCTYPE a><a/>",
        b'<!DOCTYPE a [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]><a/>',
    ],
    ids=["billion laughs", "external entity", "external dtd", "plain doctype", "parameter entity"],
)
def test_document_types_and_entities_are_refused_at_once(data):
    begin = time.perf_counter()
    with pytest.raises(AnnotationError, match=r"x\.xml:\d+: DTDForbidden"):
        parse_xml(data, path="x.xml")
    assert time.perf_counter() - begin < 1.0


@pytest.mark.parametrize("data", [b"", b"   ", b"<a>", b"<a></b>", b"<a><b></a>", b"\0\1\2", b"<a>&x;</a>", b"{}"])
def test_malformed_documents_name_the_file(data):
    with pytest.raises(AnnotationError, match=r"^x\.xml"):
        parse_xml(data, path="x.xml")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1", "cp1251", "koi8-r"])
def test_a_document_type_is_refused_in_every_encoding(encoding):
    head = f'<?xml version="1.0" encoding="{encoding.removesuffix("-sig")}"?>'
    text = f'{head}<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>'
    with pytest.raises(AnnotationError, match="DTDForbidden"):
        parse_xml(text.encode(encoding), path="x.xml")


@pytest.mark.parametrize("encoding", ["cp037", "utf-7", "utf-32", "utf-16-be"])
def test_an_encoding_that_hides_ascii_behind_its_declaration_is_not_read(encoding):
    head = f'<?xml version="1.0" encoding="{encoding}"?>'.encode()
    with pytest.raises(AnnotationError):
        parse_xml(head + '<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>'.encode(encoding), path="x.xml")


def test_both_parsers_build_the_same_tree():
    text = "<a k='ä'>\n<b> x &amp; &#228;<!-- c --> y</b>z<c/><![CDATA[<d>]]></a>"
    quick = parse_xml(text.encode(), path="x")
    guarded = parse_xml(text.encode("utf-16"), path="x")
    assert tostring(quick) == tostring(guarded)


def test_the_line_of_a_syntax_error_is_named():
    with pytest.raises(AnnotationError, match=r"x\.xml:3: not well-formed") as caught:
        parse_xml(b"<a>\n<b/>\n</c>", path="x.xml")
    assert caught.value.line == 3


@pytest.mark.parametrize("encoding", ["klingon", "utf-" + "1" * 5_000])
def test_an_unknown_encoding_is_an_annotation_error_of_a_readable_length(encoding):
    with pytest.raises(AnnotationError) as caught:
        parse_xml(f'<?xml version="1.0" encoding="{encoding}"?><a/>'.encode(), path="x.xml")
    assert len(str(caught.value)) < 1_000


def test_documents_with_too_many_tags_are_refused_unparsed():
    begin = time.perf_counter()
    with pytest.raises(AnnotationError, match="MAX_TAGS"):
        parse_xml(b"<a>" + b"<b/>" * MAX_TAGS + b"</a>", path="x.xml")
    assert time.perf_counter() - begin < 0.5


def test_documents_with_too_many_attributes_are_refused_unparsed():
    data = b"<a " + b" ".join(b"b%d=''" % number for number in range(MAX_ATTRIBUTES + 1)) + b"/>"
    with pytest.raises(AnnotationError, match=r"x\.xml: .*MAX_ATTRIBUTES=200000"):
        parse_xml(data, path="x.xml")
    assert len(parse_xml(data[: data.rindex(b" ")] + b"/>", path="x.xml").attrib) == MAX_ATTRIBUTES


@pytest.mark.parametrize(
    "data",
    [b"<a>" * 50_000 + b"</a>" * 50_000, b"<a>" + b"\n" * 4_000_000 + b"</a>", b"<a " + b"b" * 4_000_000 + b"='1'/>"],
    ids=["deep", "blank lines", "long name"],
)
def test_odd_documents_end_quickly(data):
    begin = time.perf_counter()
    assert parse_xml(data, path="x.xml").tag == "a"
    assert time.perf_counter() - begin < 5.0
