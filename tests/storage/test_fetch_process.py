"""The fetch process as a process: reading ahead, requests, kills, ends and faults of objects."""

from __future__ import annotations

import random
import shutil
import socket
import stat
import time
from dataclasses import replace
from importlib.util import find_spec

import pytest

from lit_loader.storage.greeting import Answer
from lit_loader.storage.protocol import ALIGNMENT, EXIT_FAILED, EXIT_LOCKED, State, connect
from lit_loader.storage.settings import StorageSettings
from tests.support.fetched_set import TIMEOUT_S, FetchedSet, random_images
from tests.support.object_server import Fault, FaultKind, ObjectServer
from tests.support.object_store import etag_of

# Not by importorskip, because obstore must not be imported where tests fork.
pytestmark = pytest.mark.skipif(find_spec("obstore") is None, reason="the extra storage is not installed")

IMAGES = random_images(60)
# Of 60 images of one block each, or up to three.
SMALL_BUDGET = 40 * ALIGNMENT


def ready_slots(fetched: FetchedSet) -> list[int]:
    return [slot for slot in range(len(fetched.images)) if fetched.cache.state(slot) == State.READY]


def test_images_are_read_ahead_by_one_process_until_no_client_is_left(tmp_path):
    with FetchedSet(tmp_path / "objects", IMAGES, tmp_path / "cache") as fetched:
        process = fetched.start(window=16, prelude="fetch_process._GRACE_S = 0.5")
        control = fetched.connect()
        order = random.Random(0).sample(range(60), 60)
        fetched.extend(control, order)
        for slot in order[:16]:
            fetched.wait_for(slot)
        assert sorted(order[:16]) == ready_slots(fetched)
        second = fetched.start()
        assert second.wait(TIMEOUT_S) == EXIT_LOCKED
        fetched.deliver(control, 10)
        for slot in order[16:26]:
            fetched.wait_for(slot)
        assert sorted(order[:26]) == ready_slots(fetched)
        # Out of order, and twice.
        assert fetched.read(order[50]) == IMAGES[order[50]]
        fetched.request(order[50])
        fetched.deliver(control, 59)
        assert [fetched.read(slot) for slot in order] == [IMAGES[slot] for slot in order]
        stats = fetched.stats(control)
        assert (stats["requests"], stats["fetched_images"]) == (60, 60)
        assert stats["fetched_bytes"] == sum(map(len, IMAGES))
        assert stats["cached_bytes"] == stats["peak_cached_bytes"] >= stats["fetched_bytes"]
        modes = {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in fetched.folder.rglob("*") if path.is_file()}
        assert modes <= {0}
        fetched.disconnect()
        assert process.wait(TIMEOUT_S) == 0
        # The next process has the images of the first one.
        fetched.start()
        control = fetched.connect()
        fetched.extend(control, order)
        assert [fetched.read(slot) for slot in order] == [IMAGES[slot] for slot in order]
        assert fetched.stats(control)["requests"] == 0


def test_killed_process_serves_no_half_image_and_keeps_the_budget(tmp_path):
    with FetchedSet(tmp_path / "objects", IMAGES, tmp_path / "cache") as fetched:
        generator = random.Random(0)
        for _ in range(2):
            process = fetched.start(budget=SMALL_BUDGET, window=8)
            control = fetched.connect()
            order = generator.choices(range(60), k=200)
            fetched.extend(control, order)
            for position, slot in enumerate(order):
                assert fetched.read(slot) == IMAGES[slot]
                fetched.deliver(control, position + 1)
                if position == 150:
                    stats = fetched.stats(control)
            assert stats["peak_cached_bytes"] <= SMALL_BUDGET
            # ext4 has blocks of its own for the holes.
            assert (fetched.folder / "data").stat().st_blocks * 512 <= SMALL_BUDGET + 4 * ALIGNMENT
            # In the middle of the images of this stream.
            fetched.extend(control, [*range(60)] * 3, stream=1)
            fetched.wait_for(generator.randrange(8), State.READY)
            process.kill()
            process.wait()
            for slot in ready_slots(fetched):
                assert fetched.cache.try_read(slot) == IMAGES[slot]
            fetched.disconnect()


def test_images_in_shards_share_requests_and_deleted_folder_ends_the_process(tmp_path):
    with FetchedSet(tmp_path / "objects", IMAGES, tmp_path / "cache", per_object=20) as fetched:
        process = fetched.start(window=60)
        control = fetched.connect()
        order = random.Random(0).sample(range(60), 60)
        fetched.extend(control, order)
        # A reader would request an image before the stream does.
        for slot in order:
            fetched.wait_for(slot)
        assert [fetched.read(slot) for slot in order] == [IMAGES[slot] for slot in order]
        stats = fetched.stats(control)
        assert stats["fetched_bytes"] <= 1.15 * sum(map(len, IMAGES))
        assert stats["requests"] == 3
        shutil.rmtree(fetched.folder)
        assert process.wait(TIMEOUT_S) == 0


def test_process_that_cannot_work_says_why(tmp_path):
    with FetchedSet(tmp_path / "objects", IMAGES[:10], tmp_path / "cache") as fetched:
        process = fetched.start(budget=ALIGNMENT)
        assert process.wait(TIMEOUT_S) == EXIT_FAILED
        assert "cache_budget=4096 bytes is too small" in process.stderr.read().decode()
        # Readers in workers know only the log.
        assert "cache_budget=4096 bytes is too small" in (fetched.folder / "log").read_text()


SLOW_DISK = """
import time
def close(cache):
    while not (cache.folder / "release").exists():
        time.sleep(0.01)
fetch_process.CacheWriter.close = close
"""


def test_only_client_with_other_settings_starts_another_process_and_waits_for_no_ending_one(tmp_path):
    with FetchedSet(tmp_path / "objects", IMAGES[:10], tmp_path / "cache") as fetched:
        process = fetched.start(prelude=SLOW_DISK)
        first = fetched.connect()
        second = fetched.connect()
        settings = StorageSettings(url=fetched.url, cache_budget=1 << 30, num_connections=4, window=99)
        assert fetched.greet(first, settings) == Answer()
        other_settings = replace(settings, cache_budget=1 << 29)
        assert fetched.greet(second, other_settings) == Answer(ignored=("cache_budget",))
        answer = fetched.greet(second, replace(settings, options={"secret_access_kee": "SECRET"}))
        assert "storage.secret_access_kee" in answer.error
        assert "SECRET" not in answer.error
        first.close()
        # The other connection counts until its end was read.
        assert fetched.stats(second)["failed_images"] == 0
        with pytest.raises(ConnectionError):
            while True:
                fetched.greet(second, other_settings)
        with pytest.raises(ConnectionRefusedError):
            for _ in range(500):
                connect(fetched.folder, "control", socket.SOCK_STREAM).close()
                time.sleep(0.01)
        assert process.poll() is None
        (fetched.folder / "release").touch()
        assert process.wait(TIMEOUT_S) == 0


FULL_DISK = """
write = os.pwrite
def write_or_refuse(descriptor, data, offset):
    is_image = os.readlink(f"/proc/self/fd/{descriptor}").endswith("/data")
    limit = int((Path(sys.argv[1]) / "limit").read_text())
    if is_image and os.fstat(descriptor).st_blocks * 512 + len(data) > limit:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return write(descriptor, data, offset)
os.pwrite = write_or_refuse
fetch_process._RETRY_S = 0.01
"""


def test_full_disk_evicts_images_before_any_fails(tmp_path):
    with FetchedSet(tmp_path / "objects", IMAGES, tmp_path / "cache") as fetched:
        (fetched.folder / "limit").write_text("60000")
        process = fetched.start(prelude=FULL_DISK, window=4, num_connections=2)
        control = fetched.connect()
        fetched.extend(control, range(60))
        for slot in range(60):
            assert fetched.read(slot) == IMAGES[slot]
            fetched.deliver(control, slot + 1)
        stats = fetched.stats(control)
        assert stats["retries"] > 0
        assert stats["failed_images"] == 0
        (fetched.folder / "limit").write_text("0")
        slot = next(slot for slot in range(60) if fetched.cache.state(slot) == State.ABSENT)
        assert fetched.wait_for(slot, request=True) == State.FAILED
        url = f"{fetched.url}/set/{slot}.bin"
        reason = f"{url}: cannot write to the cache {fetched.folder} (No space left on device)"
        assert fetched.cache.error_text(slot) == reason
        assert process.poll() is None
        (fetched.folder / "limit").write_text("1000000")
        fetched.request(slot, forget=True)
        fetched.wait_for(slot, State.ABSENT)
        assert fetched.read(slot) == IMAGES[slot]


def test_faults_of_objects_fail_with_reason_and_url(tmp_path):
    with ObjectServer(tmp_path) as server, FetchedSet(server.folder, IMAGES[:20], tmp_path / "cache") as fetched:
        fetched.url = server.url()
        fetched.options = server.options | {"max_retries": "2", "secret_access_key": "HIDDEN", "access_key_id": "ME"}
        fetched.save_versions([etag_of((fetched.root / name).stat()) for name in fetched.catalog.objects])
        server.set_faults(
            Fault(FaultKind.VANISHED, keys="/1.bin"),
            Fault(FaultKind.CHANGED, keys="/2.bin"),
            Fault(FaultKind.LONGER, keys="/3.bin"),
            Fault(FaultKind.SHORTER, keys="/4.bin"),
            Fault(FaultKind.ERROR, keys="/5.bin"),
            Fault(FaultKind.EXPIRED, keys="/6.bin", limit=1),
            Fault(FaultKind.UNAVAILABLE, keys="/7.bin", limit=2),
            Fault(FaultKind.CUT, keys="/8.bin", limit=2),
            Fault(FaultKind.SHORT, keys="/9.bin", limit=2),
        )
        fetched.start()
        control = fetched.connect()
        fetched.extend(control, range(20))
        reasons = {
            1: "does not exist (404)",
            2: "has changed while the run was reading it (its ETag is another one)",
            3: f"has changed while the run was reading it ({len(IMAGES[3]) + 1} instead of {len(IMAGES[3])} bytes)",
            4: f"has changed while the run was reading it ({len(IMAGES[4]) // 2} instead of {len(IMAGES[4])} bytes)",
            5: "500",
            6: "403",
        }
        for slot in range(20):
            fetched.deliver(control, slot)
            state = fetched.wait_for(slot)
            text = fetched.cache.error_text(slot)
            assert (state == State.FAILED) == (slot in reasons), text
            if slot in reasons:
                assert text.startswith(f"s3://bucket/set/{slot}.bin")
                assert reasons[slot] in text
                assert "HIDDEN" not in text
            else:
                assert fetched.cache.try_read(slot) == IMAGES[slot]
        fetched.request(6, forget=True)
        fetched.wait_for(6, State.ABSENT)
        assert fetched.read(6) == IMAGES[6]


@pytest.mark.soak
def test_hundred_kills_serve_no_half_image(tmp_path):
    with FetchedSet(tmp_path / "objects", IMAGES, tmp_path / "cache") as fetched:
        generator = random.Random(0)
        for _ in range(100):
            process = fetched.start(budget=SMALL_BUDGET, window=30)
            control = fetched.connect()
            fetched.extend(control, generator.choices(range(60), k=2000))
            fetched.deliver(control, generator.randrange(1900))
            time.sleep(generator.random() * 0.02)
            process.kill()
            process.wait()
            for slot in ready_slots(fetched):
                assert fetched.cache.try_read(slot) == IMAGES[slot]
            assert (fetched.folder / "data").stat().st_blocks * 512 <= SMALL_BUDGET + 4 * 3 * ALIGNMENT
            fetched.disconnect()
