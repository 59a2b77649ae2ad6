"""What stands in each column of a list of objects, one line an object: the names that users write, parsed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lit_loader.annotations.keypoints import KeypointSchema

__all__ = ["CORNERS", "ListColumns", "NO_VALUE", "parse_columns"]

CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")
NO_VALUE: Final = "-"
_ATTRIBUTE: Final = "attribute:"


@dataclass(frozen=True, kw_only=True)
class ListColumns:
    """Positions in a line's fields.

    Attributes:
        names: What each column, or group of columns, was called; none where a header says it.
        count: Number of fields of a line.
        path: Position of the image's path.
        class_name: Position of the class, or None.
        points: Positions of the points' fields, or None.
        has_visibility: Whether each point has a third field.
        box: Positions of the box's four numbers, or None.
        attributes: Name and position of each attribute.
    """

    names: tuple[str, ...]
    count: int
    path: int
    class_name: int | None
    points: Sequence[int] | None
    has_visibility: bool
    box: tuple[int, int, int, int] | None
    attributes: tuple[tuple[str, int], ...]

    @property
    def has_objects(self) -> bool:
        """Whether a line says anything of an object, beyond its image's path."""
        said = (self.class_name, self.points, self.box)
        return bool(self.attributes) or any(place is not None for place in said)


def parse_columns(columns: Sequence[str] | str, *, schema: KeypointSchema | None) -> ListColumns:
    """Return where the named columns stand.

    Args:
        columns: Names, or one string of names with blanks between them: ``path``, ``class``, ``points``
            (x, y of each point), ``points_v`` (x, y and a flag of each), ``box`` (four numbers) or ``xmin``,
            ``ymin``, ``xmax``, ``ymax``, ``attribute:NAME``, and ``skip``.
        schema: Says how many points there are.

    Raises:
        ValueError: If a name is unknown or occurs twice, ``path`` or a corner is missing, or points and
            schema do not go together.
    """
    names = tuple(columns.split() if isinstance(columns, str) else columns)
    num_points = 0 if schema is None else len(schema.names)
    widths = {"path": 1, "class": 1, "skip": 1, "box": 4, **dict.fromkeys(CORNERS, 1)}
    widths |= {"points": 2 * num_points, "points_v": 3 * num_points}
    places: dict[str, int] = {}
    position = 0
    for name in names:
        attribute = name.startswith(_ATTRIBUTE) and len(name) > len(_ATTRIBUTE)
        if not attribute and name not in widths:
            known = ", ".join([*widths, f"{_ATTRIBUTE}NAME"])
            raise ValueError(f"columns={names} hold {name!r}; each must be one of {known}")
        if name in places and name != "skip":
            raise ValueError(f"columns={names} hold {name!r} twice")
        places[name] = position
        position += 1 if attribute else widths[name]
    if "path" not in places:
        raise ValueError(f"columns={names} have no 'path'; every line names its image")
    points = [name for name in ("points", "points_v") if name in places]
    if len(points) > 1 or bool(points) != (schema is not None):
        have = "no schema" if schema is None else f"a schema of {num_points} points"
        raise ValueError(f"columns={names} and {have} do not go together; give one column of points, or none")
    corners = [corner for corner in CORNERS if corner in places]
    if corners and (len(corners) < 4 or "box" in places):
        raise ValueError(f"columns={names} must hold all of {CORNERS}, or 'box', or no box")
    box = None
    if "box" in places:
        first = places["box"]
        box = (first, first + 1, first + 2, first + 3)
    elif corners:
        box = (places["xmin"], places["ymin"], places["xmax"], places["ymax"])
    return ListColumns(
        names=names,
        count=position,
        path=places["path"],
        class_name=places.get("class"),
        points=range(places[points[0]], places[points[0]] + widths[points[0]]) if points else None,
        has_visibility="points_v" in places,
        box=box,
        attributes=tuple(
            (name.removeprefix(_ATTRIBUTE), place)
            for name, place in places.items()
            if name.startswith(_ATTRIBUTE)
        ),
    )
