"""Tables of docs/training name what the package has, and the configs and apps of its pages work."""

from __future__ import annotations

import importlib
import re
import sys

import pytest
from hydra.utils import instantiate

from lit_loader.app.composition import compose_config, validate
from tests.support.cached_configs import cached_configs  # noqa: F401 # a fixture
from tests.support.documents import PAGES, ROOT, blocks

TEXT = "\n".join(text for page, text in PAGES.items() if page.startswith("training/"))
CONF = ROOT / "conf"


def named_in(page):
    return set(re.findall(r"`(\w+)`", PAGES[f"training/{page}"]))


def options_of(group):
    return {path.stem for path in (CONF / group).glob("*.yaml")}


def test_table_of_groups_is_complete():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGES["training/hydra"], re.MULTILINE))
    for group in ("dataset", "sampler", "batching", "mixing", "workers", "datamodule", "trainer", "logger", "debug"):
        assert set(re.findall(r"`(\w+)`", rows[group])) == options_of(group) - {"base"}, group
    for group, page in {"model": "models", "callbacks": "callbacks", "experiment": "experiments"}.items():
        assert options_of(group) - {"default", "none"} <= named_in(page), group
    groups = {path.name for path in CONF.iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert groups <= named_in("hydra")


def test_configs_of_the_pages_compose(tmp_path):
    choices = []
    for text in blocks(TEXT, "yaml"):
        group, option = re.match(r"# conf/(?:(\w+)/)?(\w+)\.yaml", text).groups()
        if group is not None:
            (tmp_path / group).mkdir(exist_ok=True)
            (tmp_path / group / f"{option}.yaml").write_text(text)
            choices.append(f"{group}={option}")
    assert len(choices) == 4
    for choice in choices:
        data = [] if choice.startswith("experiment") else ["dataset=shapes"]
        assert compose_config(CONF, "train", [f"hydra.searchpath=[file://{tmp_path}]", *data, choice])


@pytest.fixture
def user_app(tmp_path, monkeypatch):
    """Return a function that writes an app of a page, with its config, and imports it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def load(name):
        (code,) = (code for code in blocks(TEXT, "python") if code.startswith(f"# {name}.py"))
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--cfg", "job"])
        return importlib.import_module(name)

    return load


def test_app_with_the_data_of_the_package_composes(user_app, tmp_path, capsys):
    (config,) = (text for text in blocks(TEXT, "yaml") if text.startswith("# conf/my_app.yaml"))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/my_app.yaml").write_text(config)
    app = user_app("my_app")
    app.run_with_hints(app.main)
    assert "ClassBalancedSamplerConfig" in capsys.readouterr().out
    cfg = compose_config(tmp_path / "conf", "my_app")
    validate(cfg)
    assert instantiate(cfg.datamodule, _convert_="all").batch_size == 8


def test_app_around_the_whole_run_composes(user_app, capsys):
    app = user_app("my_train")
    sys.argv.append("experiment=shapes")
    app.run(app.main)
    assert "FCOS" in (output := capsys.readouterr().out) or "fcos_small" in output
