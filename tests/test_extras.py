"""What an absent extra does: an error that names the command, where the feature is used."""

from __future__ import annotations

import sys

import pytest

from lit_loader.extras import require


def test_require_returns_the_module():
    assert require("json.decoder", "plot") is sys.modules["json.decoder"]


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.part"])
def test_an_absent_module_names_the_command(module):
    with pytest.raises(ImportError, match=r"no_such_package is not .*pip install 'lit-loader\[plot\]'"):
        require(module, "plot")


def test_a_module_that_lacks_another_is_not_blamed_on_the_extra(tmp_path, monkeypatch):
    (tmp_path / "broken_plotting.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_package'"):
        require("broken_plotting", "plot")
