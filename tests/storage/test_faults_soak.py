"""Guarantee: two thousand faults of each kind, and a hundred kills, change no batch and hide no sample."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lit_loader import DataLoader, RandomSampler
from lit_loader.collate import DetectionCollate
from lit_loader.datasets import DetectionDataset
from lit_loader.images import ImageReading
from tests.support.drawn_set import draw_set
from tests.support.object_server import Fault, FaultKind
from tests.support.outcomes import outcomes_of
from tests.support.remote_sets import (
    digest,
    end_stores,
    fetch_processes,
    options_with_credentials,
    packed_catalog,
    raw_catalog,
    remote_reading,
)

# Not by importorskip, because obstore must not be imported where tests fork.
pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::lit_loader.errors.BadSamplesWarning"),
    pytest.mark.skipif(find_spec("obstore") is None, reason="the extra storage is not installed"),
]

NUM_FAULTS = 2000
NUM_KILLS = 100
NUM_IMAGES = 400
CATALOGS = {"raw": raw_catalog, "packed": partial(packed_catalog, images_per_shard=60)}
TRANSIENT = (FaultKind.UNAVAILABLE, FaultKind.ERROR, FaultKind.CUT, FaultKind.SHORT)
LASTING = (FaultKind.VANISHED, FaultKind.CHANGED, FaultKind.LONGER, FaultKind.SHORTER)
RAW_AND_PACKED = pytest.mark.parametrize("kind_of_set", CATALOGS)


@pytest.fixture(autouse=True)
def _ended_stores():
    yield
    end_stores()


@pytest.fixture
def table(object_server):
    """A table whose images are noise, so that a body of a reply does not fit into one packet."""
    table = draw_set(object_server.folder / "set", num_images=NUM_IMAGES, objects=2)
    rng = np.random.default_rng(0)
    for path in table.image_paths:
        pixels = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(Path(table.root, path))
    return table


def loader_of(table, reading=None, **arguments):
    dataset = DetectionDataset(table, reading=reading or ImageReading())
    arguments = {"num_workers": 2, "persistent_workers": True, **arguments}
    sampler = RandomSampler(table.num_images)
    return DataLoader(dataset, 4, sampler=sampler, collate_fn=DetectionCollate(), seed=3, **arguments)


def small_cache(table):
    """Return settings under which most images are fetched again in each epoch."""
    sizes = [Path(table.root, path).stat().st_size for path in table.image_paths]
    return {"cache_budget": sum(-(-size // 4096) * 4096 for size in sizes) // 8, "window": 16, "num_connections": 16}


@pytest.mark.parametrize(("kind", "kind_of_set"), [*product(TRANSIENT, CATALOGS), (FaultKind.EXPIRED, "raw")])
def test_thousands_of_transient_faults_lose_no_sample(kind, kind_of_set, object_server, table, tmp_path):
    catalog = CATALOGS[kind_of_set](object_server, table)
    settings = small_cache(table)
    share = 0.4
    if kind is FaultKind.EXPIRED:
        settings["options"] = options_with_credentials(object_server, tmp_path / "credentials.json", "token")
        # A request is repeated five times with new credentials, and then fails.
        share = 0.07
    reading = remote_reading(object_server, table, catalog, tmp_path, **settings)
    object_server.set_faults(Fault(kind, share=share))
    num_epochs = 0
    with loader_of(table) as local, loader_of(table, reading) as remote:
        while object_server.counts[f"fault_{kind}"] < NUM_FAULTS:
            num_epochs += 1
            assert [digest(batch) for batch in remote] == [digest(batch) for batch in local], num_epochs
            assert num_epochs < 300


def test_thousands_of_lasting_faults_are_the_samples_own_errors(object_server, table, tmp_path):
    faults = [Fault(kind, keys=f"{digit}.png$") for digit, kind in enumerate(LASTING)]
    catalog = raw_catalog(object_server, table)
    object_server.set_faults(*faults)
    bad_paths = [path for path in table.image_paths if path[-5] in "0123"]
    folder = tmp_path / "copy"
    shutil.copytree(table.root, folder)
    for path in bad_paths:
        (folder / path).unlink()
    policy = {"on_bad_sample": "skip", "max_bad_samples": NUM_IMAGES}
    reading = remote_reading(object_server, table, catalog, tmp_path, **small_cache(table))
    num_records: Counter[str] = Counter()
    with loader_of(replace(table, root=folder), **policy) as local, loader_of(table, reading, **policy) as remote:
        while min(object_server.counts[f"fault_{kind}"] for kind in LASTING) < NUM_FAULTS:
            expected = [outcome if isinstance(outcome, str) else digest(outcome) for outcome in texts(local)]
            actual = [outcome if isinstance(outcome, str) else digest(outcome) for outcome in texts(remote)]
            assert actual == expected
            records = [(record.position, record.index) for record in remote.bad_samples]
            assert records == [(record.position, record.index) for record in local.bad_samples]
            for record in remote.bad_samples:
                path = table.image_paths[record.index]
                assert object_server.url(f"set/{path}") in record.message
                num_records[LASTING[int(path[-5])]] += 1
    assert min(num_records[kind] for kind in LASTING) >= NUM_IMAGES // 10


def texts(loader):
    """Return the outcomes of an epoch, with the type of an error instead of the error."""
    return [type(item).__name__ if isinstance(item, Exception) else item for item in outcomes_of(loader)]


@RAW_AND_PACKED
def test_fetch_process_that_is_killed_a_hundred_times_loses_no_sample(kind_of_set, object_server, table, tmp_path):
    catalog = CATALOGS[kind_of_set](object_server, table)
    reading = remote_reading(object_server, table, catalog, tmp_path, **small_cache(table))
    object_server.set(delay_ms=2)
    draws = np.random.default_rng(0)
    num_kills = 0
    with loader_of(table) as local, loader_of(table, reading) as remote:
        while num_kills < NUM_KILLS:
            for batch, expected in zip(remote, local, strict=True):
                assert digest(batch) == digest(expected)
                # Some batches after it was started again, in any of its states.
                for process in fetch_processes() if draws.random() < 0.15 else ():
                    process.send_signal(signal.SIGKILL)
                    num_kills += 1
