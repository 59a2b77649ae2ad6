"""Help and the printed config are fast."""

from __future__ import annotations

import subprocess
import sys

SHOW = """
import sys
from lit_loader.app.commands import main
assert main(["train", "--help"]) == 0
assert main(["train", "--cfg", "job", "experiment=shapes"]) == 0
slow = {"torch", "torchvision", "lightning", "torchmetrics", "matplotlib", "pandas", "scipy"} & set(sys.modules)
assert not slow, slow
"""


def test_help_and_the_printed_config_import_no_slow_module(tmp_path):
    result = subprocess.run([sys.executable, "-c", SHOW], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "--cfg job prints the config" in result.stdout
    assert "task_name: train" in result.stdout
    assert list(tmp_path.iterdir()) == []
