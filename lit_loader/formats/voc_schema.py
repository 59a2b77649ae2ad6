"""The ``<schema>`` of a unified VOC file: what its set's classes, points and attributes are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element, SubElement

from lit_loader.annotations.keypoints import KEYPOINT_SCHEMAS, KeypointSchema
from lit_loader.formats.table_room import MAX_ATTRIBUTE_NAMES, MAX_POINT_NAMES

__all__ = [
    "MAX_NAME_CHARS",
    "VocSchema",
    "add_text",
    "check_characters",
    "check_name",
    "read_schema",
    "schema_element",
]

MAX_NAME_CHARS: Final = 256


@dataclass(frozen=True, kw_only=True)
class VocSchema:
    """What one file says of its whole set; a part that is absent says nothing.

    Attributes:
        class_names: The classes in the order of their ids; empty: those that occur, sorted.
        keypoints: The points in the order of the table's columns, and how they relate.
        attributes: Name and values in the order of their ids, of each attribute in the table's order.
    """

    class_names: tuple[str, ...] = ()
    keypoints: KeypointSchema | None = None
    attributes: tuple[tuple[str, tuple[str, ...]], ...] = ()


def schema_element(schema: VocSchema) -> Element | None:
    """Return the element that ``read_schema`` reads, or None when the schema says nothing.

    Raises:
        ValueError: If a name cannot stand in XML or would not be read back.
    """
    root = Element("schema")
    for name in schema.class_names:
        add_text(root, "class", check_name(name, what="class"))
    if schema.keypoints is not None:
        _add_keypoints(root, schema.keypoints)
    for name, values in schema.attributes:
        attribute = SubElement(root, "attribute")
        add_text(attribute, "name", check_name(name, what="attribute"))
        for value in values:
            add_text(attribute, "value", check_name(value, what=f"value of attribute {name!r}"))
    return root if len(root) else None


def read_schema(element: Element) -> VocSchema:
    """Return what a ``<schema>`` says.

    Raises:
        ValueError: If it says it in another way than ``schema_element``; names what is wrong.
    """
    class_names = tuple(_checked(child.text, "<class>") for child in element.findall("class"))
    attributes = tuple(
        (
            _checked(child.findtext("name"), "<name> of an <attribute>"),
            _different((_checked(value.text, "<value>") for value in child.findall("value")), "<value>"),
        )
        for child in element.findall("attribute")
    )
    _different((name for name, _ in attributes), "<attribute>")
    if len(attributes) > MAX_ATTRIBUTE_NAMES:
        raise ValueError(f"<schema> lists {len(attributes)} attributes; {MAX_ATTRIBUTE_NAMES} are allowed")
    points = element.findall("keypoints")
    if len(points) > 1:
        raise ValueError("<schema> holds <keypoints> more than once")
    return VocSchema(
        class_names=_different(class_names, "<class>"),
        keypoints=_read_keypoints(points[0]) if points else None,
        attributes=attributes,
    )


def check_name(name: str, *, what: str) -> str:
    """Return a name that can be written and read back.

    Raises:
        ValueError: If it is empty, longer than ``MAX_NAME_CHARS``, or begins or ends with a space.
    """
    if not name or name != name.strip() or len(name) > MAX_NAME_CHARS:
        rule = f"a name has 1 to {MAX_NAME_CHARS} characters, without space at its ends"
        raise ValueError(f"{what} {name[:MAX_NAME_CHARS]!r} would not be read back; {rule}")
    return check_characters(name, what=what)


def check_characters(text: str, *, what: str) -> str:
    """Return a text that XML can hold, else raise ValueError."""
    if any(
        not (c in "\t\n" or "\x20" <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff")
        for c in text
    ):
        raise ValueError(f"{what} {text!r} holds a character that XML cannot")
    return text


def add_text(parent: Element, tag: str, text: str) -> None:
    """Add a child that holds nothing but text.

    Raises:
        ValueError: If XML cannot hold the text.
    """
    SubElement(parent, tag).text = check_characters(text, what=f"<{tag}>")


def _add_keypoints(root: Element, schema: KeypointSchema) -> None:
    element = SubElement(root, "keypoints")
    known = [name for name, other in KEYPOINT_SCHEMAS.items() if other == schema]
    if known:
        element.set("schema", known[0])
        return
    for name in schema.names:
        SubElement(element, "point", name=check_name(name, what="point"))
    pairs = [("mirror", pair) for pair in schema.flip_pairs]
    if schema.interocular is not None:
        pairs.append(("interocular", schema.interocular))
    for tag, (first, second) in pairs:
        SubElement(element, tag, first=schema.names[first], second=schema.names[second])


def _read_keypoints(element: Element) -> KeypointSchema:
    known = element.get("schema")
    if known is not None:
        if known not in KEYPOINT_SCHEMAS:
            raise ValueError(
                f"<keypoints schema={known[:100]!r}> is none of {', '.join(sorted(KEYPOINT_SCHEMAS))}; "
                "list its points instead"
            )
        return KEYPOINT_SCHEMAS[known]
    names = _different(
        (_checked(point.get("name"), "name of a <point>") for point in element.findall("point")), "<point>"
    )
    if len(names) > MAX_POINT_NAMES:
        raise ValueError(f"<keypoints> lists {len(names)} points; {MAX_POINT_NAMES} are allowed")
    places = {name: place for place, name in enumerate(names)}
    interocular = [_pair(child, places) for child in element.findall("interocular")]
    if len(interocular) > 1:
        raise ValueError("<keypoints> holds <interocular> more than once")
    return KeypointSchema(
        names=names,
        flip_pairs=tuple(_pair(child, places) for child in element.findall("mirror")),
        interocular=interocular[0] if interocular else None,
    )


def _pair(element: Element, places: dict[str, int]) -> tuple[int, int]:
    first, second = element.get("first", ""), element.get("second", "")
    for name in (first, second):
        if name not in places:
            raise ValueError(f"<{element.tag}> names {name[:100]!r}, which is no <point> of it")
    return places[first], places[second]


def _checked(text: str | None, what: str) -> str:
    name = (text or "").strip()
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise ValueError(f"{what} has {len(name)} characters; 1 to {MAX_NAME_CHARS} expected")
    return name


def _different(names: Iterable[str], what: str) -> tuple[str, ...]:
    values = tuple(names)
    seen: set[str] = set()
    for name in values:
        if name in seen:
            raise ValueError(f"{what} {name!r} stands there twice")
        seen.add(name)
    return values
