"""``lit-loader check``: report the defects of a data set on the terminal, as JSON and as an HTML page."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, get_args

from lit_loader.annotations import AnnotationTable
from lit_loader.app.commands.packed_sets import read_with_images
from lit_loader.app.commands.printing import print_lines, print_table
from lit_loader.app.commands.reading import named_splits, read_broken_sets
from lit_loader.app.commands.settings import UsageError, as_option, parse_actions
from lit_loader.errors import SettingError, message_of
from lit_loader.images import ImageReading
from lit_loader.inspection import CheckSettings, Finding, Findings, Page, Severity, check_tables
from lit_loader.inspection.drawing import draw_image
from lit_loader.inspection.gallery import encode_picture
from lit_loader.inspection.kinds import kind_of

__all__ = ["check"]

_SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
_PICTURE_SIDE: Final = 420
_MAX_PICTURES: Final = 8


def check(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0 without errors, 1 with errors; under ``--strict`` warnings are errors.

    Raises:
        UsageError: If an argument is wrong.
        AnnotationError: If the annotations cannot be read at all.
    """
    # JSON is for programs, which need no page unless they ask for it.
    default_page = None if arguments.json else "check.html"
    page = (arguments.page or default_page) if arguments.write_page else None
    # Wrong arguments are refused before the data is read, which may take hours.
    if page is not None:
        _check_target(Path(page))
    splits = named_splits(arguments)
    try:
        settings = CheckSettings(
            decode=arguments.decode,
            min_side=arguments.min_side,
            duplicate_iou=arguments.duplicate_iou,
            min_images=arguments.min_images,
            max_details=arguments.max_details,
            ignored_kinds=arguments.ignored_kinds,
            accepted_kinds=parse_actions(arguments.policy),
        )
        tables, reading = read_with_images(arguments, splits, read_broken_sets)
        findings = check_tables(
            tables, settings=settings, reading=reading, num_workers=arguments.num_workers, progress=arguments.progress
        )
    except SettingError as error:
        raise UsageError(message_of(error, as_option)) from error
    if arguments.json:
        print_lines(json.dumps(_report(arguments, tables, findings), indent=1))
    else:
        _print_findings(findings)
        _print_summary(tables, findings)
    # After the result, which a full disk must not take with it.
    if page is not None:
        _page(tables, findings, reading, title=f"Check of {arguments.root}").save(page)
        if not arguments.json:
            print_lines(f"page: {page}")
    return int(_has_failed(arguments, findings))


def _has_failed(arguments: argparse.Namespace, findings: Findings) -> bool:
    return findings.count("error") > 0 or (arguments.strict and findings.count("warning") > 0)


def _check_target(path: Path) -> None:
    """Refuse a page that cannot be written, or whose name ends like a file of another kind, which it would replace.

    Raises:
        UsageError: If the page is refused.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--page {str(path)!r} must end in .html; give a name such as check.html")
    folder = next((parent for parent in path.absolute().parents if os.path.lexists(parent)), path.parent)
    if path.is_dir() or not os.access(folder, os.W_OK | os.X_OK) or not folder.is_dir():
        raise UsageError(f"the page {str(path)!r} cannot be written; give another one by --page, or --no-page")


def _report(arguments: argparse.Namespace, tables: Mapping[str, AnnotationTable], findings: Findings) -> dict[str, Any]:
    """Return the report as JSON data; docs/data/check.md describes it."""
    return {
        "version": 1,
        "format": arguments.format,
        "root": arguments.root,
        "sets": {name: {"images": table.num_images, "objects": table.num_objects} for name, table in tables.items()},
        "errors": findings.count("error"),
        "warnings": findings.count("warning"),
        "notes": findings.count("note"),
        "failed": _has_failed(arguments, findings),
        **findings.to_dict(),
    }


def _print_findings(findings: Findings) -> None:
    """Print a table with a row for each kind and set, the errors first."""
    rows: list[tuple[str, ...]] = []
    for (kind, severity), keys in groupby(_sorted_keys(findings), key=lambda key: key[:2]):
        for key in keys:
            worst = findings.details[key][0]
            rows.append((kind, severity, key[2], f"{findings.counts[key]:,}", _example(worst)))
        rows.append(("", "", "", "", f"remedy: {worst.remedy}"))
    if rows:
        columns = ("finding", "severity", "set", "count", "worst example")
        print_table("findings", columns, rows, text_columns=("severity", "set", "worst example"))


def _sorted_keys(findings: Findings) -> list[tuple[str, Severity, str]]:
    """Return kind, severity and set of all findings: errors first, then by kind in the order of their discovery."""
    keys = list(findings.details)
    first_position: dict[str, int] = {}
    for position, (kind, _, _) in enumerate(keys):
        first_position.setdefault(kind, position)
    return sorted(keys, key=lambda key: (_SEVERITIES.index(key[1]), first_position[key[0]]))


def _example(finding: Finding, *, with_image: bool = False) -> str:
    """Return the message of a finding with its place, and its image if ``with_image`` or if the place is unknown."""
    place = "" if finding.place is None else f"{finding.place}: "
    # Messages about images begin with the image.
    is_named = finding.object_row is None or not (with_image or finding.place is None)
    image = "" if is_named else f"{finding.image}: "
    return f"{place}{image}{finding.message}"


def _print_summary(tables: Mapping[str, AnnotationTable], findings: Findings) -> None:
    num_images = sum(table.num_images for table in tables.values())
    num_objects = sum(table.num_objects for table in tables.values())
    counts = [
        f"{count:,} {severity}{'' if count == 1 else 's'}"
        for severity in _SEVERITIES
        for count in [findings.count(severity)]
    ]
    print_lines(f"{num_images:,} images, {num_objects:,} objects in {', '.join(tables)}: {', '.join(counts)}")


def _page(tables: Mapping[str, AnnotationTable], findings: Findings, reading: ImageReading, *, title: str) -> Page:
    """Return a page with all findings that have details, and pictures of the worst."""
    page = Page(title)
    sets = [(name, table.num_images, table.num_objects) for name, table in tables.items()]
    page.add_table(("set", "images", "objects"), sets)
    if not findings.counts:
        page.add_text("No findings.")
        return page
    counts: Counter[tuple[str, Severity]] = Counter()
    for (kind, severity, _), count in findings.counts.items():
        counts[kind, severity] += count
    keys = _sorted_keys(findings)
    kinds = list(dict.fromkeys((kind, severity) for kind, severity, _ in keys))
    rows = [(kind, severity, counts[kind, severity], kind_of(kind).rule) for kind, severity in kinds]
    page.add_table(("finding", "severity", "count", "rule"), rows)
    for kind, severity in kinds:
        details = [findings.details[key] for key in keys if key[:2] == (kind, severity)]
        worst = sorted((finding for group in details for finding in group), key=lambda finding: -finding.score)
        page.add_heading(f"{severity}: {kind}")
        page.add_text(f"{kind_of(kind).rule}: {counts[kind, severity]:,}. Remedy: {worst[0].remedy}.")
        page.add_pictures([_picture(tables, finding, reading) for finding in _with_images(worst)])
        cells = [(finding.split, str(finding.place or finding.image or ""), finding.message) for finding in worst]
        page.add_table(("set", "place", "finding"), cells)
    return page


def _with_images(findings: Sequence[Finding]) -> list[Finding]:
    """Return the worst findings that a picture can show."""
    kinds_without_pixels = ("missing_image", "unreadable_image")
    # An image that the reader dropped has no row to draw.
    pictured = [finding for finding in findings if finding.image_row is not None]
    return [finding for finding in pictured if finding.kind not in kinds_without_pixels][:_MAX_PICTURES]


def _picture(tables: Mapping[str, AnnotationTable], finding: Finding, reading: ImageReading) -> tuple[bytes, str]:
    assert finding.image_row is not None
    highlighted = [row for row in (finding.object_row, finding.partner_row) if row is not None]
    options: dict[str, Any] = {"highlighted": highlighted, "longer_side": _PICTURE_SIDE, "reading": reading}
    image = draw_image(tables[finding.split], finding.image_row, **options)
    return encode_picture(image), f"{finding.split}, {_example(finding, with_image=True)}"
