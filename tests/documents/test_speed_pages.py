"""The pages on speed and the case studies agree with the code that they describe."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from typing import get_args

import pytest

from lit_loader.app.composition import compose_config, validate
from lit_loader.datamodules import WorkerSettings
from lit_loader.engine.stats import STAGES, LoaderStats
from lit_loader.foundation.host import Resources, decide_num_workers
from lit_loader.images import CacheSettings
from lit_loader.monitoring import Cause
from tests.support.cached_configs import cached_configs  # noqa: F401 # a fixture
from tests.support.documents import PAGES, ROOT, blocks, shell_lines

SPEED = "\n".join(text for page, text in PAGES.items() if page.startswith("speed/"))
MEASURED = [words[1:] for words in shell_lines(SPEED) if words[1:2] in (["tune"], ["profile"])]
OVERRIDES = sorted(set(re.findall(r"`((?:workers|datamodule)\.[\w.]+=\w+)`", SPEED)))


def rows(page, heading):
    """Return the names in the first column of the first table after a heading."""
    section = PAGES[page].partition(f"\n## {heading}\n")[2]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)[0]
    return {name for row in table.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_table_of_causes_is_complete():
    assert rows("speed/monitor", "Causes and remedies") == set(get_args(Cause))


def test_table_of_worker_arguments_is_complete():
    assert rows("speed/workers", "Arguments") == {field.name for field in fields(WorkerSettings)}


def test_table_of_cache_settings_is_complete():
    names = {field.name for field in fields(CacheSettings)} - {"progress"}
    assert rows("speed/decoded-cache", "Settings") == {"cache", *names}


def test_fields_of_statistics_exist():
    names = {name for row in rows("speed/monitor", "Times of a loader") for name in re.findall(r"\w+", row)}
    assert names <= {field.name for field in fields(LoaderStats)}
    assert all(f"`{stage}`" in PAGES["speed/monitor"] for stage in STAGES)


def test_number_of_workers_is_explained_as_documented():
    resources = Resources(num_cores=16, quota_cores=8, ranks_on_host=2, has_accelerator=True)
    assert f"{decide_num_workers(resources)[1]}\n" in blocks(PAGES["speed/workers"], "text")


def test_verdicts_of_tune_are_documented():
    text = (ROOT / "lit_loader/app/tuning/verdicts.py").read_text()
    names = set(re.findall(r'f"([a-zA-Z ]+): ', text)) - {"busy host", "no limit was reached"}
    assert len(names) > 7
    assert names <= rows("speed/fewer-workers", "How to recognise the limit")


@pytest.mark.parametrize("words", MEASURED, ids=" ".join)
def test_measuring_commands_compose(words):
    config = compose_config(ROOT / "conf", "train", [word for word in words if "=" in word])
    validate(config)


def test_documented_overrides_compose():
    assert len(OVERRIDES) > 6
    # The last value of a key counts where pages name several.
    validate(compose_config(ROOT / "conf", "train", ["experiment=shapes", *OVERRIDES]))


def constant(figure, name):
    """Return the value of a constant in the script of a picture."""
    tree = ast.parse((ROOT / f"docs/figures/{figure}.py").read_text())
    return next(ast.literal_eval(node.value) for node in tree.body if ast.unparse(node).startswith(f"{name} = "))


def test_pictures_show_the_figures_of_the_tables():
    for rate, ratio, *_ in constant("photograph_rates", "RATES").values():
        assert f"| {rate:,} | {ratio}" in PAGES["case-studies/photographs"]
    for name in ("BY_IMAGE", "BY_OBJECT"):
        for (disc, square, star), imbalance in constant("class_mix_shares", name).values():
            assert f"| {disc}% | {square}% | {star}% | {imbalance} |" in PAGES["case-studies/class-balance"]
    overhead = PAGES["case-studies/overhead"].replace("\u00a0", " ")
    for first_s, other_s in constant("epoch_gap", "WAITS").values():
        assert re.search(rf"\| {first_s * 1e3:.3g} ms \(.*\| {other_s * 1e3:.1f} ms \|", overhead)
    for microseconds in constant("fewer_workers", "MEASURED").values():
        assert re.search(rf"\| {microseconds:.3g} µs \|", overhead)
