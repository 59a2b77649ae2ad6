"""The example of a custom annotation format reads its lines and reports the bad one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples/own_format.py"


def test_custom_format_is_read_and_its_bad_line_reported():
    output = subprocess.check_output([sys.executable, str(SCRIPT)], text=True, timeout=120)
    first_line, *report, class_names = output.splitlines()
    assert first_line == "1 image, 2 boxes: [[2.0, 3.0, 12.0, 11.0], [1.0, 1.0, 7.0, 7.0]]"
    assert any("boxes.txt:3: four numbers expected" in line for line in report)
    assert class_names == "('cat', 'dog')"
