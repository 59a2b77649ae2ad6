"""The ``<schema>`` of a VOC file: reads and writes the classes, points and attributes of the whole set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from xml.etree.ElementTree import Element, SubElement

from lit_loader.annotations.formats.rows import MAX_NAME_CHARS, DeclaredNames
from lit_loader.annotations.keypoints import KEYPOINT_SCHEMAS, KeypointSchema

__all__ = [
    "CORNERS",
    "QUAD_CORNERS",
    "ROTATED_BOX",
    "checked_name",
    "only_child",
    "read_schema",
    "schema_element",
    "written_name",
    "xml_text",
]

CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")
"""Tags of a box, in the order of a table's columns."""

QUAD_CORNERS: Final = tuple(
    f"{axis}_{corner}" for corner in ("left_top", "right_top", "right_bottom", "left_bottom") for axis in "xy"
)
"""Tags of an oriented box with four corners, as in DIOR-R."""

ROTATED_BOX: Final = ("cx", "cy", "w", "h", "angle")
"""Tags of a rotated box, as in roLabelImg."""


def read_schema(element: Element) -> DeclaredNames:
    """Return the names that a ``<schema>`` lists.

    Raises:
        ValueError: If it is not an element that `schema_element` could have made; the message names the defect.
    """
    attributes = tuple(
        (
            checked_name(child.findtext("name"), "<name> of an <attribute>"),
            _distinct((checked_name(value.text, "<value>") for value in child.findall("value")), "<value>"),
        )
        for child in element.findall("attribute")
    )
    # A repeated attribute would lose its first list of values.
    _distinct((name for name, _ in attributes), "<attribute>")
    keypoints = only_child(element, "keypoints")
    class_names = (checked_name(child.text, "<class>") for child in element.findall("class"))
    return DeclaredNames(
        class_names=_distinct(class_names, "<class>"),
        keypoints=None if keypoints is None else _read_keypoints(keypoints),
        attributes=attributes,
    )


def schema_element(declared: DeclaredNames) -> Element | None:
    """Return the element that ``read_schema`` reads, or None if nothing is declared.

    Raises:
        ValueError: If a name cannot be written in XML or would not be read back.
    """
    root = Element("schema")
    for name in declared.class_names:
        SubElement(root, "class").text = written_name(name, "class")
    if declared.keypoints is not None:
        _add_keypoints(root, declared.keypoints)
    for name, values in declared.attributes:
        attribute = SubElement(root, "attribute")
        SubElement(attribute, "name").text = written_name(name, "attribute")
        for value in values:
            SubElement(attribute, "value").text = written_name(value, f"value of attribute {name!r}")
    # Without names the file is plain VOC.
    return root if len(root) else None


def only_child(parent: Element, tag: str) -> Element | None:
    """Return the child with a tag, or None without one; raise ValueError if there are several."""
    children = parent.findall(tag)
    if len(children) > 1:
        raise ValueError(f"<{parent.tag}> holds <{tag}> more than once")
    return children[0] if children else None


def checked_name(text: str | None, subject: str) -> str:
    """Return a name without surrounding space; raise ValueError if it is empty or too long."""
    name = (text or "").strip()
    # Names come from untrusted files, so the limit bounds their memory.
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise ValueError(f"{subject} has {len(name)} characters; 1 to {MAX_NAME_CHARS} expected")
    return name


def written_name(name: str, subject: str) -> str:
    """Return the name; raise ValueError if the reader would change or refuse it, or XML cannot represent it."""
    if name != name.strip() or not 0 < len(name) <= MAX_NAME_CHARS:
        rule = f"a name has 1 to {MAX_NAME_CHARS} characters, without space at its ends"
        raise ValueError(f"{subject} {name[:MAX_NAME_CHARS]!r} would not be read back; {rule}")
    return xml_text(name, subject)


def xml_text(text: str, subject: str) -> str:
    """Return the text; raise ValueError if XML cannot represent it."""
    # XML 1.0 forbids control characters, surrogates, U+FFFE and U+FFFF; a parser would change "\r" to "\n".
    if not all(c in "\t\n" or "\x20" <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff" for c in text):
        raise ValueError(f"{subject} {text!r} has a character that XML cannot represent")
    return text


def _read_keypoints(element: Element) -> KeypointSchema:
    schema_name = element.get("schema")
    # A reference to a known schema, which writers use instead of listing 68 points in every file.
    if schema_name is not None:
        if schema_name not in KEYPOINT_SCHEMAS:
            listed = ", ".join(sorted(KEYPOINT_SCHEMAS))
            raise ValueError(f"<keypoints schema={schema_name[:100]!r}> must be one of {listed}; or list its points")
        return KEYPOINT_SCHEMAS[schema_name]
    points = (checked_name(point.get("name"), "name of a <point>") for point in element.findall("point"))
    names = _distinct(points, "<point>")
    index_by_name = {name: i for i, name in enumerate(names)}
    # An unknown element may be a misspelt <mirror>, without which flips would swap no points.
    for tag in sorted({child.tag for child in element} - {"point", "mirror", "edge", "normalization_pair"}):
        raise ValueError(f"<keypoints> holds <{tag[:100]}>; expected <point>, <mirror>, <edge>, <normalization_pair>")
    normalization_pair = only_child(element, "normalization_pair")
    return KeypointSchema(
        names=names,
        flip_pairs=tuple(_pair(child, index_by_name) for child in element.findall("mirror")),
        normalization_pair=None if normalization_pair is None else _pair(normalization_pair, index_by_name),
        sigmas=_read_sigmas(element),
        skeleton=tuple(_pair(child, index_by_name) for child in element.findall("edge")),
    )


def _read_sigmas(element: Element) -> tuple[float, ...]:
    texts = [text for point in element.findall("point") if (text := point.get("sigma")) is not None]
    try:
        return tuple(map(float, texts))
    except ValueError:
        raise ValueError("the sigma of a <point> must be a number") from None


def _add_keypoints(root: Element, schema: KeypointSchema) -> None:
    element = SubElement(root, "keypoints")
    registered_name = next((name for name, other in KEYPOINT_SCHEMAS.items() if other == schema), None)
    if registered_name is not None:
        element.set("schema", registered_name)
        return
    for position, name in enumerate(schema.names):
        point = SubElement(element, "point", name=written_name(name, "point"))
        if schema.sigmas:
            point.set("sigma", repr(schema.sigmas[position]))
    pairs = [("mirror", pair) for pair in schema.flip_pairs]
    pairs += [("edge", pair) for pair in schema.skeleton]
    if schema.normalization_pair is not None:
        pairs.append(("normalization_pair", schema.normalization_pair))
    for tag, (first, second) in pairs:
        SubElement(element, tag, first=schema.names[first], second=schema.names[second])


def _pair(element: Element, index_by_name: dict[str, int]) -> tuple[int, int]:
    names = element.get("first", ""), element.get("second", "")
    for name in names:
        if name not in index_by_name:
            raise ValueError(f"<{element.tag}> names {name[:100]!r}, which is not a <point> of it")
    return index_by_name[names[0]], index_by_name[names[1]]


def _distinct(names: Iterable[str], subject: str) -> tuple[str, ...]:
    seen: dict[str, None] = {}
    for name in names:
        if name in seen:
            raise ValueError(f"{subject} {name!r} occurs twice")
        seen[name] = None
    return tuple(seen)
