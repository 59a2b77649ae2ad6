"""Order in which images are needed: the streams of all ranks, and the images to evict for others.

NOTE [Next use]
    The distance of an image in a stream is the number of samples to deliver before it is needed. Over several streams
    the smallest one counts. Evicting the image of the largest distance gives the fewest misses of any policy (Belady
    1966), and the distances follow from the order of the epochs. Each stream has its own clock. A stream that stands
    still (validation during training) has only its nearest images in the cache.
"""

from __future__ import annotations

import heapq
import socket
import time
from collections import deque
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from lit_loader.storage.cache_file import MIN_IMAGES, CacheWriter
from lit_loader.storage.protocol import State
from lit_loader.types import IndexArray

__all__ = ["FAR", "Schedule", "Stream", "StreamKey"]

FAR: Final = 1 << 60
"""Distance of an image that no stream needs."""

_GROWTH: Final = 4
_SCANNED: Final = 256  # positions of a stream that are looked at together
_MIN_VICTIMS: Final = 64
_MAX_DRIFT: Final = 128  # samples; listing again sooner would cost more than a better victim saves
_FULL_DISK_S: Final = 60.0
_REQUEST_S: Final = 5.0  # how long an image that was asked for stays, if no stream needs it

StreamKey = tuple[socket.socket, int]
"""Connection of a client, and the number that it gave the stream."""

_Slots = npt.NDArray[np.int32]


class _Chunk:
    """Consecutive slots of a stream.

    Args:
        first: Position of the first one in the stream.
        slots: int32 ``(num_samples,)``.
    """

    def __init__(self, first: int, slots: _Slots) -> None:
        self.first = first
        self.slots = slots

    @property
    def end(self) -> int:
        return self.first + len(self.slots)

    @cached_property
    def _keys(self) -> IndexArray:
        """Slot and place of each sample in one number, sorted."""
        keys = (self.slots.astype(np.int64) << 32) | np.arange(len(self.slots))
        keys.sort()
        return keys

    def next_uses(self, slots: _Slots, position: int) -> IndexArray:
        """Return where each slot comes first from a position of the stream on, or `FAR`."""
        start = max(0, position - self.first)
        if start >= len(self.slots):
            return np.full(len(slots), FAR, dtype=np.int64)
        places = np.searchsorted(self._keys, (slots.astype(np.int64) << 32) | start)
        keys = self._keys[np.minimum(places, len(self._keys) - 1)]
        is_match = (places < len(self._keys)) & (keys >> 32 == slots)
        return np.where(is_match, self.first + (keys & 0xFFFFFFFF), FAR)


class Stream:
    """The slots that one rank needs from one loader, in order.

    Args:
        reach: How many samples after the delivered ones are fetched ahead.

    Attributes:
        reach: As the argument.
        delivered: Number of samples that were delivered to the consumer.
        issued: Position up to which every image is in the cache, or on its way.
        end: Number of samples that are known.
        listed_at: `delivered` when victims were listed, see `Schedule`.
    """

    def __init__(self, reach: int = 0) -> None:
        self.reach = reach
        self.delivered = 0
        self.listed_at = 0
        self.issued = 0
        self.end = 0
        self._chunks: deque[_Chunk] = deque()

    def extend(self, slots: _Slots) -> None:
        """Append slots to the stream."""
        self._chunks.append(_Chunk(self.end, slots))
        self.end += len(slots)
        # Clients send small blocks. Each lookup takes time for every chunk, so that there are few of them, each
        # larger than the sum of the later ones.
        while len(self._chunks) > 1 and _GROWTH * len(self._chunks[-1].slots) > len(self._chunks[-2].slots):
            last = self._chunks.pop()
            previous = self._chunks.pop()
            self._chunks.append(_Chunk(previous.first, np.concatenate([previous.slots, last.slots])))

    def deliver(self, delivered: int) -> _Slots:
        """Set the number of delivered samples, and return the slots of the new ones."""
        delivered = min(max(delivered, self.delivered), self.end)
        slots = self.between(self.delivered, delivered)
        self.delivered = delivered
        self.issued = max(self.issued, delivered)
        while self._chunks and self._chunks[0].end <= delivered:
            self._chunks.popleft()
        return slots

    def between(self, first: int, end: int) -> _Slots:
        """Return the slots of positions ``first`` to ``end``, which must not be before `delivered`."""
        parts = [
            chunk.slots[max(0, first - chunk.first) : max(0, end - chunk.first)]
            for chunk in self._chunks
            if chunk.first < end and chunk.end > first
        ]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)

    def distances(self, slots: _Slots) -> IndexArray:
        """Return how many samples are delivered before each slot is needed, or `FAR`."""
        uses = np.full(len(slots), FAR, dtype=np.int64)
        for chunk in self._chunks:
            np.minimum(uses, chunk.next_uses(slots, self.delivered), out=uses)
        return np.where(uses == FAR, FAR, uses - self.delivered)


class Schedule:
    """The streams of all clients, and the room for their images in the cache.

    Runs in: the main thread of the fetch process.

    Args:
        cache: The cache of the images.

    Attributes:
        streams: Streams by connection and number.
        budget: Largest number of bytes of the disk; smaller than the cache's after the disk was full.
    """

    def __init__(self, cache: CacheWriter) -> None:
        self.cache = cache
        self.streams: dict[StreamKey, Stream] = {}
        self.budget = cache.budget
        # With a smaller budget, a requested image would never be fetched.
        self._least_budget = min(cache.budget, MIN_IMAGES * int(cache.sizes.max(initial=0)))
        self._shrunk_at = -_FULL_DISK_S
        # Victims: READY images of the largest distance when they were listed, and images whose distance has changed
        # since. A key is `_clock` plus the distance, where the clock is the progress of the fastest stream since the
        # listing; entries whose key is not the image's `_keys` are stale.
        self._listed: deque[tuple[int, int]] | None = None
        self._changed: list[tuple[int, int]] = []
        self._keys = np.full(len(cache.states), -1, dtype=np.int64)
        self._clock = 0
        self._is_partial = False
        self._requested: deque[tuple[float, int]] = deque()
        self._requested_slots: set[int] = set()

    def distances(self, slots: _Slots) -> IndexArray:
        """Return the distance of each image, see NOTE [Next use]."""
        distances = np.full(len(slots), FAR, dtype=np.int64)
        for stream in self.streams.values():
            np.minimum(distances, stream.distances(slots), out=distances)
        return distances

    def begin(self, key: StreamKey, reach: int) -> None:
        """Begin a stream without slots, instead of one of the same key."""
        self.remove(key)
        self.streams[key] = Stream(reach)

    def extend(self, key: StreamKey, slots: _Slots) -> None:
        """Append slots to a stream, which is created if it is new.

        Raises:
            ValueError: If a slot is not in the catalog.
        """
        if len(slots) and not -1 <= int(slots.min()) <= int(slots.max()) < len(self.cache.states):
            raise ValueError(f"slots {slots.min()} to {slots.max()} are not in a catalog of {len(self.cache.states)}")
        self.streams.setdefault(key, Stream()).extend(slots)
        self._listed = None  # some distances are no longer FAR

    def deliver(self, key: StreamKey, delivered: int) -> None:
        """Note how many samples of a stream were delivered."""
        stream = self.streams.get(key)
        if stream is None:
            return
        slots = stream.deliver(delivered)
        slots = np.unique(slots[slots >= 0])
        if self._requested_slots:
            self._requested_slots.difference_update(slots.tolist())
        if self._listed is None:
            return
        self._clock = max(self._clock, stream.delivered - stream.listed_at)
        ready = slots[self.cache.mask(State.READY, slots)]
        for slot, distance in zip(ready.tolist(), self.distances(ready).tolist(), strict=True):
            self._push(slot, distance)

    def remove(self, key: StreamKey) -> None:
        """Forget a stream."""
        if self.streams.pop(key, None) is not None:
            self._listed = None

    def next_absent(self, stream: Stream, reach: int) -> tuple[int, int, int]:
        """Return slot and distance of the next image that a stream lacks, and how many before it were in the cache.

        Args:
            stream: One of the streams; its `issued` moves on to that image.
            reach: How many samples after the delivered ones are looked at. Without an absent image the slot is -1.
        """
        num_hits = 0
        limit = min(stream.end, stream.delivered + reach)
        while stream.issued < limit:
            slots = stream.between(stream.issued, min(limit, stream.issued + _SCANNED))
            is_absent = (slots >= 0) & self.cache.mask(State.ABSENT, slots)
            place = int(is_absent.argmax())
            is_found = bool(is_absent[place])
            passed = slots[:place] if is_found else slots
            num_hits += int((self.cache.mask(State.READY, passed) & (passed >= 0)).sum())
            stream.issued += len(passed)
            if is_found:
                return int(slots[place]), stream.issued - stream.delivered, num_hits
        return -1, 0, num_hits

    def reserve(self, slot: int, distance: int, *, is_requested: bool = False) -> bool:
        """Make an image PENDING, at the cost of READY images that are needed later.

        Args:
            slot: An ABSENT image.
            distance: Its distance.
            is_requested: Whether a reader waits for it: then any READY image may be evicted.

        Returns:
            True if there was room.
        """
        if not self.make_room(int(self.cache.sizes[slot]), -FAR if is_requested else distance):
            return False
        self.cache.reserve(slot)
        self._keys[slot] = self._clock + distance
        if is_requested:
            # Without a stream that needs it, the next request would evict it before its reader has seen it.
            self._requested.append((time.monotonic() + _REQUEST_S, slot))
            self._requested_slots.add(slot)
        return True

    def make_room(self, num_bytes: int, distance: int) -> bool:
        """Evict READY images that are needed later than ``distance`` until a number of bytes is free.

        Args:
            num_bytes: Bytes of the disk.
            distance: A distance, or ``-FAR`` to evict any image.

        Returns:
            False if all other images are needed sooner or PENDING.
        """
        while self.cache.used_bytes + num_bytes > self.budget:
            victim = self._pop_victim(distance)
            if victim is None and distance == -FAR:
                victim = self._pop_requested()
            if victim is None:
                return False
            self._evict(victim)
        return True

    def shrink_by(self, num_bytes: int) -> None:
        """Evict images and lower the budget for some time, because the disk has no room for ``num_bytes`` more."""
        self.budget = max(self._least_budget, self.cache.used_bytes - num_bytes)
        self._shrunk_at = time.monotonic()
        self.make_room(0, -FAR)

    def restore_budget(self) -> None:
        """Use the whole budget again some time after the disk was full."""
        if time.monotonic() - self._shrunk_at > _FULL_DISK_S:
            self.budget = self.cache.budget

    def note_ready(self, slot: int) -> None:
        """Note that an image has become READY."""
        if self._listed is not None and slot not in self._requested_slots:
            heapq.heappush(self._changed, (-int(self._keys[slot]), slot))

    def expire_requests(self) -> None:
        """Allow to evict images that were asked for some time ago."""
        now = time.monotonic()
        while self._requested and self._requested[0][0] < now:
            _, slot = self._requested.popleft()
            if slot in self._requested_slots:
                self._requested_slots.discard(slot)
                if self._listed is not None and self.cache.state(slot) == State.READY:
                    self._push(slot, int(self.distances(np.array([slot], dtype=np.int32))[0]))

    def _push(self, slot: int, distance: int) -> None:
        key = self._clock + distance
        self._keys[slot] = key
        heapq.heappush(self._changed, (-key, slot))

    def _evict(self, slot: int) -> None:
        distance = int(self._keys[slot]) - self._clock
        self._keys[slot] = -1
        self.cache.evict([slot])
        for stream in self.streams.values():
            if distance < stream.issued - stream.delivered:
                # The stream has passed the image, and would otherwise not fetch it again.
                position = stream.delivered + int(stream.distances(np.array([slot], dtype=np.int32))[0])
                stream.issued = min(stream.issued, position)

    def _pop_requested(self) -> int | None:
        """Return the READY image that was asked for first."""
        for slot in [slot for _, slot in self._requested if slot in self._requested_slots]:
            if self.cache.state(slot) == State.READY:
                self._requested_slots.discard(slot)
                return slot
        return None

    def _pop_victim(self, distance: int) -> int | None:
        """Return the READY image that is needed last, and later than ``distance``."""
        self._drop_stale()
        if self._listed is None or (not self._listed and self._is_partial):
            self._list_victims()
        assert self._listed is not None
        changed_key = -self._changed[0][0] if self._changed else -FAR
        listed_key = self._listed[0][0] if self._listed else -FAR
        if max(changed_key, listed_key) > self._clock + distance:
            return heapq.heappop(self._changed)[1] if changed_key > listed_key else self._listed.popleft()[1]
        if len(self.streams) > 1 and self._clock >= _MAX_DRIFT:
            # Streams may have moved at other speeds; distances in a slow one are larger than they seem.
            self._listed = None
            return self._pop_victim(distance)
        return None

    def _drop_stale(self) -> None:
        """Remove entries at the front of both lists whose image is no longer READY, or has another distance."""
        while self._changed and not self._is_current(-self._changed[0][0], self._changed[0][1]):
            heapq.heappop(self._changed)
        while self._listed and not self._is_current(*self._listed[0]):
            self._listed.popleft()

    def _is_current(self, key: int, slot: int) -> bool:
        is_ready = self.cache.state(slot) == State.READY
        return is_ready and int(self._keys[slot]) == key and slot not in self._requested_slots

    def _list_victims(self) -> None:
        """List the READY images of the largest distances."""
        self._clock = 0
        for stream in self.streams.values():
            stream.listed_at = stream.delivered
        pending = np.flatnonzero(self.cache.mask(State.PENDING)).astype(np.int32)
        self._keys[pending] = self.distances(pending)
        ready = np.flatnonzero(self.cache.mask(State.READY)).astype(np.int32)
        if self._requested_slots:
            ready = ready[~np.isin(ready, list(self._requested_slots))]
        distances = self.distances(ready)
        self._keys[ready] = distances
        num_victims = min(len(ready), max(_MIN_VICTIMS, len(ready) // 16))
        self._is_partial = num_victims < len(ready)
        places = np.argpartition(-distances, num_victims - 1)[:num_victims] if num_victims else np.arange(0)
        places = places[np.argsort(-distances[places], kind="stable")]
        self._listed = deque(zip(distances[places].tolist(), ready[places].tolist(), strict=True))
        self._changed = []
