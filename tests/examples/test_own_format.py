"""The example of a format of one's own runs, and is as short as its description says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples/own_format.py"


def test_a_format_of_ones_own_is_read_and_its_bad_line_reported():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == "1 image, 2 boxes: [[2.0, 3.0, 12.0, 11.0], [1.0, 1.0, 7.0, 7.0]]"
    assert any("boxes.txt:3: four numbers expected" in line for line in rest)
    assert rest[-1] == "('cat', 'dog')"


def test_its_reader_takes_fewer_than_sixty_lines():
    lines = SCRIPT.read_text().splitlines()
    reader = lines[lines.index("@register_format") : lines.index('if __name__ == "__main__":')]
    assert len(reader) < 60
