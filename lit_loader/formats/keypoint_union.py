"""Schemas of points put together by the points' names, and mirror images found by them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from lit_loader.annotations.keypoints import KeypointSchema

__all__ = ["mirrored_by_name", "unite_keypoints"]

_LEFT: Final = re.compile(r"(?<![a-zA-Z])left|(?<=[a-z0-9])Left|(?<![a-zA-Z])Left|(?<![a-zA-Z])LEFT")


def unite_keypoints(schemas: Sequence[KeypointSchema]) -> KeypointSchema:
    """Return the points of all schemas, each name once, in order of the first occurrence.

    A flip pair of a later schema is taken unless one of its points is in a pair already; the first
    interocular is taken.

    Args:
        schemas: At least one.
    """
    names = tuple(dict.fromkeys(name for schema in schemas for name in schema.names))
    places = {name: place for place, name in enumerate(names)}
    pairs: list[tuple[int, int]] = []
    paired: set[int] = set()
    interocular = None
    for schema in schemas:
        for a, b in schema.flip_pairs:
            pair = (places[schema.names[a]], places[schema.names[b]])
            if not paired.intersection(pair):
                pairs.append(pair)
                paired.update(pair)
        if interocular is None and schema.interocular is not None:
            a, b = schema.interocular
            interocular = (places[schema.names[a]], places[schema.names[b]])
    return KeypointSchema(names=names, flip_pairs=tuple(pairs), interocular=interocular)


def mirrored_by_name(names: tuple[str, ...]) -> KeypointSchema:
    """Return a schema whose flip pairs are the names that differ in the words left and right alone."""
    places = {name: place for place, name in enumerate(names)}
    pairs: list[tuple[int, int]] = []
    paired: set[int] = set()
    for place, name in enumerate(names):
        match = _LEFT.search(name)
        if match is None:
            continue
        word = {"left": "right", "Left": "Right", "LEFT": "RIGHT"}[match[0]]
        other = places.get(f"{name[: match.start()]}{word}{name[match.end() :]}")
        if other is not None and not paired.intersection((place, other)):
            pairs.append((place, other))
            paired.update((place, other))
    return KeypointSchema(names=names, flip_pairs=tuple(pairs))
