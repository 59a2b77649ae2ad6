"""Headers of tar files: the ranges of their files, and refusal of whatever a forged header claims."""

from __future__ import annotations

import gzip
import io
import tarfile

import pytest

from lit_loader.errors import AnnotationError, CacheError
from lit_loader.storage.tar_index import open_tar, tar_members, windowed
from lit_loader.storage.tar_samples import TarSamples, read_samples

FILES = {"a.jpg": b"jpeg" * 300, "a.json": b"{}", f"{'deep/' * 40}b.png": b"png", "c.cls": b"", "ä.jpg": b"x" * 512}


def tar_of(format, files=FILES):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def reader(data):
    return lambda offset, length: data[offset : offset + length]


def members_of(data, window=False):
    read_at = reader(data)
    return list(tar_members(windowed(read_at) if window else read_at, len(data), name="x.tar"))


def header(name="a.jpg", size=0, kind=tarfile.REGTYPE, **changes):
    """Return the header of a member with a right checksum, whose size field may hold any bytes."""
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = changes.get("linkname", "")
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = size if isinstance(size, bytes) else b"%011o\0" % size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("window", [False, True])
def test_ranges_of_every_tar_format_hold_the_bytes_of_the_files(format, window):
    files = {name: data for name, data in FILES.items() if format != tarfile.USTAR_FORMAT or len(name) < 100}
    data = tar_of(format, files)
    members = members_of(data, window)
    assert [member.name for member in members] == list(files)
    assert [data[start : start + length] for _, start, length in members] == list(files.values())


def test_only_headers_of_a_local_file_are_read(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_of(tarfile.GNU_FORMAT, {"a.jpg": bytes(1 << 20), "b.jpg": bytes(1 << 20)}))
    num_read = 0
    with open_tar(tmp_path / "a.tar") as (read_at, num_bytes):

        def counted(offset, length):
            nonlocal num_read
            num_read += length
            return read_at(offset, length)

        assert len(list(tar_members(counted, num_bytes, name="a.tar"))) == 2
    assert num_read < 4096


def padded(data):
    return data.ljust(512, b"\0")


PAX_SIZE = b"19 size=9999999999\n"
EXTENDED = header(kind=tarfile.XHDTYPE, size=len(PAX_SIZE)) + padded(PAX_SIZE)
ZEROS = bytes(1024)
LARGE_EXTENDED = header(kind=tarfile.XGLTYPE, size=512 << 10) + bytes(512 << 10)
FORGED = {  # bytes after the first member, position of the header at fault there, message
    "size beyond the end": (header(size=10**9) + ZEROS, 0, "1000000000 bytes begins there, but only 1024"),
    "negative size": (header(size=b"\xff" * 12) + ZEROS, 0, "truncated or damaged"),
    "size of 2**88 bytes": (header(size=b"\x80" + b"\x7f" * 11) + ZEROS, 0, "truncated or damaged"),
    "size of letters": (header(size=b"12x456789012") + ZEROS, 0, "no header of a member"),
    "extended size": (EXTENDED + header() + ZEROS, 1024, "9999999999 bytes begins"),
    "extended header of a wrong length": (
        header(kind=tarfile.XHDTYPE, size=20) + padded(b"99 path=x\n") + header() + ZEROS,
        0,
        "extended header is damaged",
    ),
    "extended header of 2 MiB": (
        header(kind=tarfile.GNUTYPE_LONGNAME, size=2 << 20) + bytes(2 << 20) + ZEROS,
        0,
        "exceed the limit of 1048576",
    ),
    "many extended headers without a member": (LARGE_EXTENDED * 3 + ZEROS, len(LARGE_EXTENDED) * 2, "exceed the limit"),
    "symbolic link": (header(kind=tarfile.SYMTYPE, linkname="/etc/passwd") + ZEROS, 0, "symbolic link.*--dereference"),
    "hard link": (header(kind=tarfile.LNKTYPE, linkname="a.jpg") + ZEROS, 0, "hard link"),
    "sparse member": (header(kind=tarfile.GNUTYPE_SPARSE) + ZEROS, 0, "sparse"),
    "wrong checksum": (header()[:100] + b"?" + header()[101:] + ZEROS, 0, "no header of a member"),
    "end without zeros": (header(), 512, "truncated"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_header_is_an_error_with_file_and_offset(name):
    data, offset, message = FORGED[name]
    first = header("first.jpg", size=3) + padded(b"abc")
    with pytest.raises(AnnotationError, match=message) as info:
        members_of(first + data)
    assert str(info.value).startswith(f"x.tar: byte {len(first) + offset}: ")


def test_compressed_tar_is_an_error_with_the_remedy():
    with pytest.raises(AnnotationError, match=r"compressed.*decompress it"):
        members_of(gzip.compress(tar_of(tarfile.GNU_FORMAT)))


@pytest.mark.parametrize("length", [0, 100, 512, 700, 1500, 2000])
def test_truncated_tar_is_an_error(length):
    data = tar_of(tarfile.GNU_FORMAT, {"a.jpg": bytes(1000), "b.jpg": bytes(10)})
    with pytest.raises(AnnotationError, match=r"truncated|no header"):
        members_of(data[:length])


def test_sample_has_the_first_image_and_the_annotation_of_its_members(tmp_path):
    files = {
        "x/1.txt": b"caption",
        "x/1.JPG": b"first",
        "x/1.png": b"second",
        "x/1.json": b'{"caption": "none"}',
        "x/1.cls": b"3",
        "2.txt": b"caption",
        "3.json": b'{"boxes": []}',
        "3.cls": b"1",
        "3.jpeg": b"third",
        "4.webp": b"fourth",
    }
    data = tar_of(tarfile.GNU_FORMAT, files)
    read_at = reader(data)
    extensions = {"jpg", "jpeg", "png", "webp"}
    samples = read_samples(read_at, len(data), name="x.tar", image_extensions=extensions)
    joined = TarSamples.joined([samples, samples])
    joined.save(tmp_path / "samples.arrow", key="k")
    loaded = TarSamples.load(tmp_path / "samples.arrow", key="k")
    assert loaded.names == ["x/1.JPG", "3.jpeg", "4.webp"] * 2
    assert loaded.object_of.tolist() == [0, 0, 0, 1, 1, 1]
    assert loaded.extensions == ["cls", "json", ""] * 2
    assert loaded.annotations == [b"3", b'{"boxes": []}', b""] * 2
    assert [read_at(start, length) for start, length in zip(loaded.starts[:3], loaded.lengths[:3], strict=True)] == [
        b"first",
        b"third",
        b"fourth",
    ]
    assert loaded.num_without_image == 2
    assert len(TarSamples.joined([loaded, loaded])) == 12


def test_upper_case_and_the_ends_of_extensions_count():
    files = {
        "1.JPG": b"image",
        "1.CLS": b"7",
        "2.Json": b'{"boxes": []}',
        "2.left.PNG": b"left",
        "2.right.PNG": b"right",
        "3.mask.png": b"mask",
        "3.meta.json": b"{}",
        "3.jpg": b"image",
        "3.json": b'{"boxes": [1]}',
        "4.v2.jpg": b"image",
        "4.v2.cls": b"9",
    }
    data = tar_of(tarfile.GNU_FORMAT, files)
    samples = read_samples(reader(data), len(data), name="x.tar", image_extensions={"jpg", "png"})
    assert samples.names == ["1.JPG", "2.left.PNG", "3.jpg", "4.v2.jpg"]
    assert samples.annotations == [b"7", b'{"boxes": []}', b'{"boxes": [1]}', b"9"]
    assert samples.num_without_image == 0


def test_ranges_are_loaded_without_annotations(tmp_path):
    data = tar_of(tarfile.GNU_FORMAT, {"1.jpg": b"image", "1.cls": b"7"})
    samples = read_samples(reader(data), len(data), name="x.tar", image_extensions={"jpg"})
    path = tmp_path / "samples.arrow"
    samples.save(path, key="k")
    (tmp_path / "samples.texts.arrow").unlink()
    loaded = TarSamples.load(path, key="k", with_annotations=False)
    assert (loaded.names, loaded.lengths.tolist(), loaded.annotations) == (["1.jpg"], [5], [])
    with pytest.raises(CacheError, match="does not exist"):
        TarSamples.load(path, key="k")


def test_annotation_of_a_huge_size_is_refused():
    data = tar_of(tarfile.GNU_FORMAT, {"1.jpg": b"", "1.json": bytes((16 << 20) + 1)})
    with pytest.raises(AnnotationError, match="exceeds the limit"):
        read_samples(reader(data), len(data), name="x.tar", image_extensions={"jpg"})
