"""``lit-loader index``: reads sets through the cache and prints what they hold."""

from __future__ import annotations

import argparse
import json

from lit_loader.cli.figures import figures_of, print_figures, print_reports
from lit_loader.cli.printing import print_lines
from lit_loader.cli.reading import read_sets, shared_images
from lit_loader.cli.settings import parse_splits

__all__ = ["index"]


def index(arguments: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UsageError: If an argument is wrong.
        AnnotationError: If the annotations cannot be used.
    """
    splits = parse_splits(arguments.names, default=None)
    tables = read_sets(arguments, splits)
    figures = {name: figures_of(table) for name, table in tables.items()}
    shared = shared_images(tables)
    if arguments.json:
        result = {"format": arguments.format, "root": arguments.root, "sets": figures}
        result["shared_images"] = [[a, b, len(paths)] for a, b, paths in shared]
        print_lines(json.dumps(result, indent=1))
        return
    print_figures(figures)
    for a, b, paths in shared:
        print_lines(f"{len(paths)} images are in {a} and in {b}, such as {paths[0]!r}")
    print_reports(tables)
