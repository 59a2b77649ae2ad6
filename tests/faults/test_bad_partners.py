"""Guarantee: a partner that cannot be read is raised, skipped or replaced, the same on every backend."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import Subset

from lit_loader import append_bad_samples
from lit_loader.engine import PartnerDraws, plan_order
from lit_loader.errors import BadBatchError, ImageError
from lit_loader.images import open_image
from tests.support.faulty_set import loader_of, outcomes
from tests.support.outcomes import FEW_BACKENDS
from tests.support.partner_sets import Blend, Mixed, Plain

pytestmark = pytest.mark.filterwarnings("ignore::lit_loader.errors.BadSamplesWarning")
BACKEND = pytest.mark.parametrize("workers", FEW_BACKENDS.values(), ids=FEW_BACKENDS)
BAD = (2, 9, 16)
LENGTH = 24


def bad_when_read():
    """Return a dataset with images that fail when they are read."""
    return Mixed(Blend(3, p=0.6), Blend(1, weights=np.ones(LENGTH)), dataset=Plain(LENGTH, bad=errors()))


def bad_when_mixed():
    """Return a dataset with images that are decoded, and fail, only when they are mixed."""
    return Mixed(Blend(3, p=0.6), Blend(1, weights=np.ones(LENGTH)), dataset=Plain(LENGTH), late=errors())


def errors():
    return {index: OSError(5, "broken", f"/pictures/{index}.jpg") for index in BAD}


KIND = pytest.mark.parametrize("make", [bad_when_read, bad_when_mixed], ids=["read", "mixed"])


def epoch(dataset, **arguments):
    """Return the batches of an epoch, and the records of bad samples."""
    with loader_of(dataset, **arguments) as loader:
        return outcomes(loader), loader.bad_samples


def planned(dataset, **arguments):
    """Return the indices of all images of each sample of an epoch, and its partners."""
    spec = loader_of(dataset, **arguments)._spec()
    tasks = list(plan_order(spec, spec.slicing, 0, partner_draws=PartnerDraws(dataset)))
    partners = [sample for task in tasks for sample in task.partners]
    indices = [index for task in tasks for index in task.index]
    plan = [[index, *(p.dataset_index for p in sample)] for index, sample in zip(indices, partners, strict=True)]
    return plan, partners


def raised(dataset, kind, **arguments):
    """Return the lines of the error of an epoch, with its notes."""
    with loader_of(dataset, **{"on_bad_sample": "raise", **arguments}) as loader, pytest.raises(kind) as caught:
        list(loader)
    return [*str(caught.value).splitlines(), *getattr(caught.value, "__notes__", ())]


def members(batches):
    return [[index for index, _ in sample if index >= 0] for batch in batches for sample in batch["members"][2]]


# -- raise -----------------------------------------------------------------------------------------------


@KIND
@BACKEND
def test_raised_error_names_the_partner_and_its_sample(workers, make):
    dataset = make()
    plan, _ = planned(dataset)
    first = next(sample for sample in plan if set(BAD) & set(sample))
    name = next(index for index in first if index in BAD)
    text = f"sample {name}, file /pictures/{name}.jpg"
    if name != first[0]:
        text += f", a partner of sample {first[0]}"
    assert text in raised(dataset, OSError, **workers)


def test_first_bad_image_of_the_plan_is_a_partner():
    """So that the test before sees one."""
    for make in (bad_when_read, bad_when_mixed):
        first = next(sample for sample in planned(make())[0] if set(BAD) & set(sample))
        assert first[0] not in BAD


@pytest.mark.parametrize("policy", ["raise", "skip", "substitute"])
def test_memory_error_of_a_partner_is_raised_and_named(policy):
    dataset = Mixed(Blend(3), dataset=Plain(LENGTH, bad={9: MemoryError("large")}))
    _, note = raised(dataset, MemoryError, on_bad_sample=policy)
    assert note.startswith("sample 9, file /pictures/9.jpg, a partner of sample ")


# -- skip ------------------------------------------------------------------------------------------------


@KIND
@BACKEND
def test_skipping_leaves_out_samples_with_bad_partners(workers, make):
    dataset = make()
    batches, records = epoch(dataset, on_bad_sample="skip", **workers)
    plan, _ = planned(dataset)
    assert members(batches) == [sample for sample in plan if not set(BAD) & set(sample)]
    bad = [sample for sample in plan if set(BAD) & set(sample)]
    first_bad = [next(index for index in sample if index in BAD) for sample in bad]
    assert [record.index for record in records] == first_bad
    assert [record.partner_of for record in records] == [
        None if index == sample[0] else sample[0] for index, sample in zip(first_bad, bad, strict=True)
    ]
    assert [record.file for record in records] == [f"/pictures/{index}.jpg" for index in first_bad]
    assert {record.replaced_by for record in records} == {None}
    assert [plan[record.position] for record in records] == bad


def test_records_of_partners_are_written_with_their_sample(tmp_path):
    _, records = epoch(bad_when_read(), on_bad_sample="skip")
    append_bad_samples(tmp_path / "bad.jsonl", records)
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [line["partner_of"] for line in lines] == [record.partner_of for record in records]
    record = next(record for record in records if record.partner_of is not None)
    name = f"sample {record.index}, file /pictures/{record.index}.jpg, a partner of sample {record.partner_of}: OSError"
    assert str(record).startswith(name)


# -- substitute ------------------------------------------------------------------------------------------


@KIND
@BACKEND
def test_bad_partners_are_replaced_by_their_own_spares(workers, make):
    """The sample, its draws and its other partners are as planned."""
    dataset = make()
    batches, records = epoch(dataset, on_bad_sample="substitute", **workers)
    plan, partners = planned(dataset, on_bad_sample="substitute")
    actual = members(batches)
    for sample, row_partners, delivered in zip(plan, partners, actual, strict=True):
        spares = [[index for index, _ in partner.spares] for partner in row_partners]
        for index, choices, chosen in zip(sample[1:], spares, delivered[1:], strict=True):
            assert chosen == next(choice for choice in (index, *choices) if choice not in BAD)
        assert delivered[0] not in BAD
        assert delivered[0] == sample[0] or sample[0] in BAD
    of_partners = [record for record in records if record.partner_of is not None]
    assert len(of_partners) > 5
    for record in of_partners:
        assert record.index in BAD
        assert record.file == f"/pictures/{record.index}.jpg"
        assert record.partner_of == actual[record.position][0] or plan[record.position][0] in BAD
        assert record.replaced_by in actual[record.position][1:]


@KIND
@BACKEND
def test_replacements_and_records_do_not_depend_on_the_backend(workers, make):
    assert epoch(make(), on_bad_sample="substitute", **workers) == epoch(make(), on_bad_sample="substitute")


def test_replaced_partner_has_the_key_of_the_partner():
    """So the draws of the other parts, of the mix and of the sample do not change."""
    unbroken = Mixed(Blend(3), dataset=Plain(LENGTH))
    expected, _ = epoch(unbroken, on_bad_sample="substitute")
    actual, _ = epoch(Mixed(Blend(3), dataset=Plain(LENGTH, bad=errors())), on_bad_sample="substitute")
    assert members(actual) != members(expected)
    # The toy's draws depend on the key alone, not on the image.
    assert [(batch["read"], batch["finished"]) for batch in actual] == [
        (batch["read"], batch["finished"]) for batch in expected
    ]


@BACKEND
def test_partner_without_a_good_spare_fails_the_batch_and_is_named(workers):
    weights = np.zeros(LENGTH)
    weights[[5, 6]] = 1
    bad = dict.fromkeys((5, 6), ValueError("no"))
    dataset = Mixed(Blend(1, p=0.1, weights=weights), dataset=Plain(LENGTH, bad=bad))
    batches, records = epoch(dataset, on_bad_sample="substitute", **workers)
    assert 0 < batches.count(BadBatchError) < len(batches)
    failed = [record for record in records if record.partner_of is not None]
    assert {record.replaced_by for record in failed} == {None}
    (text,) = raised(dataset, BadBatchError, on_bad_sample="substitute", **workers)
    assert "a partner is bad and so are its 3 replacements" in text
    assert "; ".join(map(str, failed[:4])) in text


def test_subset_names_partners_by_its_own_indices():
    dataset = Subset(Mixed(Blend(3), dataset=Plain(LENGTH, bad=errors())), range(LENGTH - 1, -1, -1))
    _, records = epoch(dataset, on_bad_sample="skip")
    assert {(record.index, record.file) for record in records} <= {
        (LENGTH - 1 - index, f"/pictures/{index}.jpg") for index in BAD
    }
    assert any(record.partner_of is not None for record in records)
    assert [records[0].index] == [int(line.split()[1].rstrip(",")) for line in raised(dataset, OSError)[1:]]


# -- errors of images ------------------------------------------------------------------------------------


def test_damaged_file_is_the_file_of_its_error(tmp_path):
    """Damage inside of a JPEG may only be noticed when its pixels are needed, after other images were opened."""
    path = tmp_path / "half.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ImageError, match=f"^{path}: cannot be decoded") as caught:
        open_image(path).read()
    assert caught.value.filename == str(path)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
