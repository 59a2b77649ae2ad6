"""Guarantee: bad samples are recorded as batches are delivered, bounded and reported, the same on every backend."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from dataclasses import FrozenInstanceError

import pytest

from lit_loader import BadSample, DataLoader, append_bad_samples
from lit_loader.engine import BadSampleLog, EndOfEpoch
from lit_loader.engine.bad_samples import PartialBatch
from lit_loader.errors import BadSamplesWarning, LitLoaderError, TooManyBadSamplesError
from tests.support.faulty_set import Faulty, FaultyFiles, loader_of, outcomes
from tests.support.outcomes import FEW_BACKENDS

SILENT = pytest.mark.filterwarnings("ignore::lit_loader.errors.BadSamplesWarning")
BAD = {3: ValueError("three"), 4: OSError(5, "broken", "/x/four.jpg"), 17: KeyError("k")}
BACKEND = pytest.mark.parametrize("workers", FEW_BACKENDS.values(), ids=FEW_BACKENDS)


@SILENT
@BACKEND
def test_record_has_place_index_file_and_error(workers):
    loader = loader_of(FaultyFiles(BAD), shuffle=False, rank=1, world_size=2, **workers)
    list(loader)
    common = {"epoch": 0, "rank": 1, "replaced_by": None}
    four = {"index": 4, "file": "/x/four.jpg", "error": "OSError"}
    assert loader.bad_samples == (
        BadSample(batch=0, row=0, position=4, message="[Errno 5] broken: '/x/four.jpg'", **four, **common),
    )
    loader.rank = 0
    list(loader)
    three, seventeen = loader.bad_samples
    assert (three.epoch, three.rank, three.batch, three.row, three.position) == (1, 0, 0, 3, 3)
    assert (three.index, three.file, three.error) == (3, "/pictures/3.jpg", "ValueError")
    assert (seventeen.batch, seventeen.position, seventeen.message) == (2, 17, "'k'")
    with pytest.raises(FrozenInstanceError):
        three.index = 5


@SILENT
@BACKEND
def test_limit_is_exceeded_at_the_same_batch_on_every_backend(workers):
    loader = loader_of(Faulty({i: ValueError(f"no {i}") for i in range(0, 24, 3)}), max_bad_samples=4, **workers)
    counts = []
    iterator = iter(loader)
    with pytest.raises(TooManyBadSamplesError) as caught:
        while True:
            next(iterator)
            counts.append(len(loader.bad_samples))
    inline = loader_of(Faulty({i: ValueError(f"no {i}") for i in range(0, 24, 3)}))
    expected = [record.batch for _ in [list(inline)] for record in inline.bad_samples]
    assert len(counts) == expected[4]  # the batch of the fifth
    last = loader.bad_samples[-1]
    assert f"{len(loader.bad_samples)} bad samples in epoch 0 on rank 0" in str(caught.value)
    assert f"exceed max_bad_samples=4; the last: sample {last.index}: ValueError: no" in str(caught.value)
    assert isinstance(caught.value, LitLoaderError)


@SILENT
@BACKEND
@pytest.mark.parametrize("seed", [None, 3])
def test_as_many_bad_samples_as_the_limit_are_allowed(workers, seed):
    loader = loader_of(Faulty(BAD), seed=seed, max_bad_samples=3, shuffle=False, **workers)
    assert TooManyBadSamplesError not in outcomes(loader)
    assert len(loader.bad_samples) == 3
    loader.max_bad_samples = 2
    assert outcomes(loader).count(TooManyBadSamplesError) == 1
    loader.max_bad_samples = 0
    assert outcomes(loader).count(TooManyBadSamplesError) >= 2


@SILENT
def test_default_limit_is_a_hundred():
    class Half(Faulty):
        def __getitem__(self, index):
            return super().__getitem__(index) if index % 2 else self.bad[0].missing

    for length, raised in ((200, 0), (202, 1)):
        loader = loader_of(Half({0: ValueError()}, length), shuffle=False)
        assert outcomes(loader).count(TooManyBadSamplesError) == raised


@SILENT
@BACKEND
def test_epochs_are_counted_apart_despite_prefetch(workers):
    persistent = {"persistent_workers": True, "prefetch_factor": 4} if workers else {}
    with loader_of(Faulty(BAD), max_bad_samples=3, **workers, **persistent) as loader:
        for epoch in range(3):
            assert TooManyBadSamplesError not in outcomes(loader)
            assert [record.epoch for record in loader.bad_samples] == [epoch] * 3
            assert sorted(record.index for record in loader.bad_samples) == sorted(BAD)


@SILENT
@BACKEND
@pytest.mark.parametrize("seed", [None, 3])
def test_count_restarts_with_each_epoch(workers, seed):
    with loader_of(Faulty(BAD), seed=seed, shuffle=False, **workers) as loader:
        iterator = iter(loader)
        next(iterator)
        assert [(record.epoch, record.index) for record in loader.bad_samples] == [(0, 3)]
        del iterator
        assert len(loader.bad_samples) == 1  # until another epoch begins
        loader.set_epoch(5)
        list(loader)
        assert [(record.epoch, record.index) for record in loader.bad_samples] == [(5, 3), (5, 4), (5, 17)]


@SILENT
def test_undelivered_batches_do_not_count():
    with loader_of(Faulty(BAD), shuffle=False, **FEW_BACKENDS["thread"], prefetch_factor=6) as loader:
        iterator = iter(loader)
        next(iterator)
        iterator._batches.wait_until_idle()
        assert [record.index for record in loader.bad_samples] == [3]
        list(iterator)
        assert [record.index for record in loader.bad_samples] == [3, 4, 17]


@SILENT
def test_loader_shows_records_of_the_later_iterator():
    loader = loader_of(Faulty(BAD), shuffle=False)
    first = iter(loader)
    second = iter(loader)
    next(first)
    next(second)
    next(second)
    assert [(record.epoch, record.index) for record in loader.bad_samples] == [(1, 3), (1, 4)]
    list(first)
    assert [(record.epoch, record.index) for record in loader.bad_samples] == [(1, 3), (1, 4)]


@SILENT
def test_copies_of_a_loader_have_no_records():
    loader = loader_of(Faulty(BAD))
    list(loader)
    assert loader.bad_samples
    assert pickle.loads(pickle.dumps(loader)).bad_samples == copy.copy(loader).bad_samples == ()
    assert DataLoader(Faulty({})).bad_samples == ()


# -- the report -------------------------------------------------------------------------------------------


def warned(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [warning for warning in caught if warning.category is BadSamplesWarning]


@BACKEND
@pytest.mark.parametrize("seed", [None, 3])
def test_one_warning_summarizes_an_epoch(workers, seed):
    loader = loader_of(FaultyFiles(BAD), seed=seed, shuffle=False, **workers)
    (warning,) = warned(lambda: list(loader))
    assert str(warning.message) == (
        "epoch 0, rank 0: 3 bad samples (0 replaced): sample 3, file /pictures/3.jpg: ValueError: three; "
        "sample 4, file /x/four.jpg: OSError: [Errno 5] broken: '/x/four.jpg'; sample 17, file /pictures/17.jpg: "
        "KeyError: 'k'; loader.bad_samples lists them all"
    )
    assert warning.filename == __file__
    (second_warning,) = warned(lambda: list(loader))
    assert str(second_warning.message).startswith("epoch 1, rank 0: 3 bad samples")


def test_last_batch_triggers_the_warning():
    """Lightning knows the length and never asks for the end."""
    loader = loader_of(Faulty(BAD))
    iterator = iter(loader)
    assert len(warned(lambda: [next(iterator) for _ in range(5)])) == 0
    assert len(warned(lambda: next(iterator))) == 1
    assert len(warned(lambda: list(iterator))) == 0


def test_batches_beyond_the_length_are_reported_at_the_end():
    class Longer:
        def __len__(self):
            return 2

        def __iter__(self):
            return iter([[3, 1], [2], [4, 5], [6]])

    iterator = iter(DataLoader(Faulty(BAD), batch_sampler=Longer(), on_bad_sample="skip"))
    (first,) = warned(lambda: [next(iterator) for _ in range(2)])
    (second,) = warned(lambda: list(iterator))
    assert "1 bad sample " in str(first.message)
    assert "2 bad samples " in str(second.message)


def test_no_report_without_bad_samples():
    assert warned(lambda: list(loader_of(Faulty({})))) == []


@SILENT
def test_warning_shows_only_the_first_of_many_bad_samples():
    (warning,) = warned(lambda: outcomes(loader_of(Faulty(dict.fromkeys(range(9), ValueError("no"))))))
    assert "9 bad samples (0 replaced)" in str(warning.message)
    assert str(warning.message).count("ValueError") == 3
    assert "and 6 more" in str(warning.message)


@SILENT
def test_records_are_appended_as_json_lines(tmp_path):
    path = tmp_path / "new" / "bad.jsonl"
    append_bad_samples(path, ())
    assert not path.exists()
    loader = loader_of(FaultyFiles(BAD), on_bad_sample="substitute")
    list(loader)
    append_bad_samples(path, loader.bad_samples, stage="train")
    append_bad_samples(str(path), loader.bad_samples[:1])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == len(loader.bad_samples) + 1
    assert lines[0].pop("stage") == "train"
    assert lines[0] == lines[-1]
    assert BadSample(**lines[0]) == loader.bad_samples[0]


def test_index_without_json_form_is_written_as_text(tmp_path):
    record = BadSample(
        epoch=0,
        rank=0,
        batch=0,
        row=0,
        position=None,
        index={1, 2},
        file=None,
        error="E",
        message="ä\n",
        replaced_by=None,
    )
    append_bad_samples(tmp_path / "bad.jsonl", [record])
    (line,) = (tmp_path / "bad.jsonl").read_text().splitlines()
    assert json.loads(line)["index"] == "{1, 2}"
    assert json.loads(line)["message"] == "ä\n"


# -- in prediction, Lightning's wrapper lists what each batch holds ---------------------------------------


class Batches:
    """An epoch's batches that were made."""

    def __init__(self, batches):
        self.batches = iter(batches)

    def next_batch(self):
        batch = next(self.batches, None)
        if batch is None:
            raise EndOfEpoch
        return batch

    def poll(self):
        return False

    def close(self):
        pass


def bad_sample(batch, row, replaced_by=None):
    return BadSample(
        batch=batch, row=row, position=None, index=99, file=None, error="E", message="", replaced_by=replaced_by
    )


@SILENT
def test_seen_indices_are_corrected_to_the_delivered_ones():
    seen = [[5, 6, 7], [8, 9, 10], [0, 1, 2]]
    batches = [
        "first",
        PartialBatch("second", [bad_sample(1, 0), bad_sample(1, 2)], is_lost=False),
        PartialBatch("third", [bad_sample(2, 1, 4)], is_lost=False),
    ]
    log = BadSampleLog(Batches(batches), epoch=0, rank=0, max_bad_samples=9, num_batches=None, seen=seen)
    assert [log.next_batch() for _ in range(3)] == ["first", "second", "third"]
    assert seen == [[5, 6, 7], [9], [0, 4, 2]]
