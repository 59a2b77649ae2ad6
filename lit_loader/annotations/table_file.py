"""Store an annotation table as one Arrow file, and map it back without trusting it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lit_loader.annotations.columns import Attribute, ColumnSpec
from lit_loader.annotations.problems import ReadReport
from lit_loader.foundation.array_file import read_arrays, write_arrays

__all__ = ["read_table", "write_table"]

_FORMAT: Final = 9
_ATTRIBUTE: Final = "attribute:"


def write_table(path: Path, parts: Mapping[str, Any], specs: Mapping[str, ColumnSpec], *, key: str) -> None:
    """Write the constructor arguments of a table.

    Args:
        path: The file; its folder is created if missing.
        parts: The arguments.
        specs: Declarations of the arguments that are columns.
        key: Identifier of the sources that the table was made from.

    Raises:
        OSError: If the folder cannot be written.
    """
    attributes: Mapping[str, Attribute] = parts["attributes"]
    arrays = {"offsets": parts["offsets"]} | {f"{_ATTRIBUTE}{name}": a.ids for name, a in attributes.items()}
    for name, spec in specs.items():
        arrays |= spec.to_arrays(name, parts[name])
    # The remaining arguments are plain values, which JSON can store.
    header = {name: part for name, part in parts.items() if name not in specs and name != "offsets"} | {
        "format": _FORMAT,
        "key": key,
        "root": str(parts["root"]),
        "attributes": {name: a.names for name, a in attributes.items()},
        "report": parts["report"].to_dict(),
    }
    write_arrays(path, arrays, header)


def read_table(path: Path, specs: Mapping[str, ColumnSpec], *, key: str) -> dict[str, Any]:
    """Map a file of `write_table` and return the constructor arguments; the columns are views of the mapping.

    Raises:
        CacheError: If the file is missing, damaged, or has another key.
        AttributeError, KeyError, TypeError, ValueError: If a value has a wrong type.
    """
    arrays, header = read_arrays(path, format=_FORMAT, key=key)
    # The table checks all other names.
    if not isinstance(header["split"], str | None):
        raise TypeError(f"expected split as a string or null, got {header['split']!r}")
    num_points = len(header["keypoint_names"])
    columns = {name: spec.from_arrays(name, arrays, num_points=num_points) for name, spec in specs.items()}
    decoded = {
        "offsets": arrays["offsets"],
        "attributes": {
            name: Attribute(ids=arrays[f"{_ATTRIBUTE}{name}"], names=values)
            for name, values in header["attributes"].items()
        },
        "report": ReadReport.from_dict(header["report"]),
    }
    return {name: part for name, part in header.items() if name not in ("format", "key")} | columns | decoded
