"""Tables of docs/training list all options of the package, and the configs and apps of its pages work."""

from __future__ import annotations

import re
import runpy
import sys

import pytest
from hydra.utils import instantiate

from lit_loader.app.composition import compose_config
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
        group, option = re.search(r"# conf/(?:(\w+)/)?(\w+)\.yaml", text).groups()
        if group is not None:
            (tmp_path / group).mkdir(exist_ok=True)
            (tmp_path / group / f"{option}.yaml").write_text(text)
            choices.append(f"{group}={option}")
    # All of them in one config: they choose options of different groups.
    assert len(choices) == 4
    assert compose_config(CONF, "train", [f"hydra.searchpath=[file://{tmp_path}]", *choices])


@pytest.fixture
def run_app(tmp_path, monkeypatch, capsys):
    """Return a function that runs an app of a page with some words, and returns its output."""
    monkeypatch.chdir(tmp_path)

    def run(name, *words):
        (code,) = (code for code in blocks(TEXT, "python") if code.startswith(f"# {name}.py"))
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
        runpy.run_path(f"{name}.py", run_name="__main__")
        return capsys.readouterr().out

    return run


def test_app_with_the_data_of_the_package_composes(run_app, tmp_path):
    (config,) = (text for text in blocks(TEXT, "yaml") if "conf/my_app.yaml" in text)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/my_app.yaml").write_text(config)
    assert "ClassBalancedSamplerConfig" in run_app("my_app", "--cfg", "job")
    cfg = compose_config(tmp_path / "conf", "my_app")
    assert instantiate(cfg.datamodule, _convert_="all").batch_size == 8


def test_app_around_the_whole_run_composes(run_app):
    assert "lit_loader.recipes.fcos_small" in run_app("my_train", "--cfg", "job", "experiment=shapes")
