"""Scripts in an interpreter of their own, with this tree on its path."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = str(Path(__file__).parents[2])


def run_code(code: str, *, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run code to its end, which has to be a success, and return what it printed."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return result


def start_script(path: Path, code: str) -> subprocess.Popen[str]:
    """Write a script that prints "first" when it is ready, start it, and wait until it is."""
    path.write_text(textwrap.dedent(code))
    process = subprocess.Popen(
        [sys.executable, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": ROOT},
        text=True,
        # A job in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout.readline() == "first\n"
    return process
