"""Text lists of faces with five points and a mood, and their images, to train landmarks."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

COLUMNS = "path points class"
OPTIONS = {"columns": COLUMNS, "schema": "face_5"}
READ = [word for key, value in OPTIONS.items() for word in ("--option", f"{key}={value}")]
"""Words of a command that reads these lists."""


def write_faces(
    root: Path, name: str, count: int, *, folder="images", start=0, rare_every=5, size=(40, 30), with_boxes=False
):
    """Write ``count`` images below ``folder`` and the list ``name`` of them, a face a line.

    With boxes a line is ``path box points class``, and paths are relative to ``folder``.
    """
    lines = []
    for i in range(start, start + count):
        path = root / folder / f"person{i // 2}_{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (i % 256, 10, 20)).save(path)
        points = [(10 + i % 5, 8), (25.5, 9), (17, 14.25), (12, 20), (24, 21 + i % 3)]
        mood = "angry" if i % rare_every == 0 else "calm"
        numbers = " ".join(f"{x} {y}" for x, y in points)
        name_in_list = path.name if with_boxes else path.relative_to(root)
        box = "6 4 30 26 " if with_boxes else ""
        lines.append(f"{name_in_list} {box}{numbers} {mood}\n")
    (root / name).write_text("".join(lines))
    return root
