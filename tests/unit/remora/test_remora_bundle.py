"""Code bundles: the same tree gives the same digest; nothing a bundle says about itself is trusted."""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import stat
import struct
import subprocess
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.code.bundle import BundleLimits, digest_of, pack, unpack, verify
from remora.errors import BundleError
from tests.needed import is_missing

Tree = dict[str, tuple[bytes, bool]]


def write(folder: Path, tree: Tree) -> None:
    for name, (content, is_executable) in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o700 if is_executable else 0o600)


def read(folder: Path) -> Tree:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in files
    }


_names = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="/\\:"),
    min_size=1,
    max_size=12,
)
_paths = st.lists(_names.filter(lambda name: name not in (".", "..")), min_size=1, max_size=3).map("/".join)
_trees = st.dictionaries(_paths, st.tuples(st.binary(max_size=200), st.booleans()), max_size=6).filter(
    lambda tree: not any(one != two and one.startswith(f"{two}/") for one in tree for two in tree)
)


@settings(max_examples=60, deadline=None)
@given(tree=_trees, seed=st.integers(0, 2**32))
def test_what_is_packed_comes_out_and_the_digest_knows_only_the_tree(
    tmp_path_factory: pytest.TempPathFactory, tree: Tree, seed: int
) -> None:
    tmp = tmp_path_factory.mktemp("tree")
    tree = {name: value for name, value in tree.items() if not _is_special(name)}
    chance = random.Random(seed)
    digests = set()
    for number in range(2):
        folder = tmp / str(number)
        folder.mkdir()
        names = list(tree)
        chance.shuffle(names)
        write(folder, {name: tree[name] for name in names})
        for path in folder.rglob("*"):
            os.utime(path, (chance.randrange(2**31), chance.randrange(2**31)))
        packed = pack(folder, tmp / f"{number}.zip")
        digests.add(packed.digest)
    assert digests == {packed.digest} == {digest_of(tmp / "0.zip")}
    assert unpack(tmp / "1.zip", tmp / "out") == verify(tmp / "1.zip") == packed
    assert read(tmp / "out") == tree


def _is_special(name: str) -> bool:
    from remora.code.folder import DEFAULT_IGNORES, IGNORE_FILES

    parts = name.split("/")
    return any(part in (*DEFAULT_IGNORES, *IGNORE_FILES) or part.endswith(".pyc") for part in parts)


def test_ignore_files_mean_what_they_mean_to_git(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        is_missing("compares with git, which is not installed: apt-get install git")
    lines = {
        ".gitignore": "*.log\n/build/\n!keep.log\ndata/*\n!data/small.csv\n# note\n\\#odd\nfoo/**/bar\n",
        "sub/.gitignore": "!deep.log\nlocal.txt\n/anchored\n",
        "sub/more/.gitignore": "*\n!.gitignore\n",
    }
    names = [
        "train.py", "a.log", "keep.log", "build/x", "sub/build/x", "data/big.bin", "data/small.csv", "#odd",
        "foo/bar", "foo/a/b/bar", "foo/a/c", "sub/deep.log", "sub/other.log", "sub/local.txt", "local.txt",
        "sub/anchored", "sub/x/anchored", "sub/more/hidden", "sub/x/a.log",
    ]  # fmt: skip
    code = tmp_path / "code"
    write(code, {name: (text.encode(), False) for name, text in lines.items()})
    write(code, dict.fromkeys(names, (b"", False)))
    git = ["git", "-c", "safe.directory=*", "-C", str(code)]
    subprocess.run([*git, "init", "-q"], check=True)
    listed = subprocess.run(
        [*git, "-c", "core.quotepath=off", "ls-files", "-co", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    )

    pack(code, tmp_path / "b.zip")

    assert sorted(zipfile.ZipFile(tmp_path / "b.zip").namelist()) == sorted(listed.stdout.split())


def test_defaults_leave_out_what_is_never_code_and_remoraignore_has_the_last_word(tmp_path: Path) -> None:
    code = tmp_path / "code"
    for name in (
        "a.py",
        ".git/config",
        "__pycache__/a.pyc",
        ".venv/x",
        "sub/node_modules/x",
        "weights.bin",
        "secret",
    ):
        write(code, {name: (b"", False)})
    (code / ".gitignore").write_text("weights.bin\n")
    (code / ".remoraignore").write_text("!weights.bin\nsecret\n!node_modules\n")

    pack(code, tmp_path / "b.zip")

    names = zipfile.ZipFile(tmp_path / "b.zip").namelist()
    assert names == [".gitignore", ".remoraignore", "a.py", "sub/node_modules/x", "weights.bin"]


def test_links_inside_become_copies(tmp_path: Path) -> None:
    code = tmp_path / "code"
    write(code, {"lib/a.py": (b"a", True)})
    (code / "file").symlink_to("lib/a.py")
    (code / "folder").symlink_to(code / "lib")

    pack(code, tmp_path / "b.zip")
    unpack(tmp_path / "b.zip", tmp_path / "out")

    assert read(tmp_path / "out") == dict.fromkeys(("lib/a.py", "file", "folder/a.py"), (b"a", True))
    assert not (tmp_path / "out/file").is_symlink()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda code: (code / "x").symlink_to("/etc/hostname"), "x leaves the code folder"),
        (lambda code: (code / "x").symlink_to(".."), "x leaves the code folder"),
        (lambda code: (code / "x").symlink_to("nowhere"), "x leads nowhere"),
        (lambda code: (code / "x").symlink_to("x"), "x leads nowhere"),
        (lambda code: (code / "x").symlink_to("."), "x leads in a circle"),
        (lambda code: os.mkfifo(code / "x"), "x is neither a file nor a folder"),
        (lambda code: (code / "a\\b").touch(), "rename it"),
        (lambda code: (code / "c:x").touch(), "rename it"),
        (lambda code: (code / "a\nb").touch(), "rename it"),
        (lambda code: Path(os.fsdecode(bytes(code) + b"/\xff")).touch(), "not UTF-8"),
        (lambda code: (code / ".gitignore").write_text("a\\"), "bad pattern"),
    ],
)
def test_what_cannot_be_packed_is_named_and_leaves_no_bundle(tmp_path: Path, make: Any, said: str) -> None:
    code = tmp_path / "code"
    code.mkdir()
    make(code)
    with pytest.raises(BundleError, match=said):
        pack(code, tmp_path / "b.zip")
    assert not (tmp_path / "b.zip").exists()


def test_an_ignored_link_may_lead_anywhere(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("/nowhere")
    (tmp_path / ".gitignore").write_text("data\n")
    assert pack(tmp_path, tmp_path / "b.zip").files == 1


def test_folders_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match="does not exist"):
        pack(tmp_path / "nowhere", tmp_path / "b.zip")
    with pytest.raises(BundleError, match="is not a folder"):
        pack(tmp_path / "file", tmp_path / "b.zip")
    with pytest.raises(BundleError, match="cannot pack"):
        pack(tmp_path, tmp_path / "no" / "b.zip")


def test_a_folder_that_is_too_big_names_its_ten_biggest_files(tmp_path: Path) -> None:
    code = tmp_path / "code"
    write(code, {f"f{size:02}": (os.urandom(size * 100), False) for size in range(1, 21)})
    for limits in (BundleLimits(unpacked_bytes=20_000), BundleLimits(packed_bytes=20_000)):
        with pytest.raises(BundleError, match=r"f20 \(2\.0 KiB\), f19 .* f11 \(1\.1 KiB\)$"):
            pack(code, tmp_path / "b.zip", limits)
    with pytest.raises(BundleError, match="more than 19 files"):
        pack(code, tmp_path / "b.zip", BundleLimits(files=19))
    assert not (tmp_path / "b.zip").exists()


def archive(
    entries: list[tuple[str | zipfile.ZipInfo, bytes]], compression: int = zipfile.ZIP_STORED
) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as target, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about names that are there twice
        for entry, content in entries:
            target.writestr(entry, content, compression)
    return buffer.getvalue()


def special(mode: int, name: str = "x") -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = mode << 16
    return info


def patched(content: bytes, offset: int, value: bytes) -> bytes:
    """The archive's first entry in the table of contents, changed."""
    at = content.index(b"PK\x01\x02") + offset
    return content[:at] + value + content[at + len(value) :]


GOOD = archive([("a.py", b"print()" * 50)], zipfile.ZIP_DEFLATED)
BAD_BUNDLES = {
    "empty": (b"", "no zip file"),
    "text": (b"hello" * 100, "no zip file"),
    "cut": (GOOD[:-30], "no zip file"),
    "trailing bytes": (GOOD + b"x", "other bytes"),
    "absolute": (archive([("/etc/passwd", b"")]), "not a plain relative path"),
    "parent": (archive([("a/../../b", b"")]), "not a plain relative path"),
    "dot": (archive([("./a", b"")]), "not a plain relative path"),
    "empty part": (archive([("a//b", b"")]), "not a plain relative path"),
    "no name": (patched(archive([("a", b"")]), 28, b"\0\0\1\0"), "not a plain relative path"),
    "backslash": (archive([("a\\b", b"")]), "backslash"),
    "drive": (archive([("c:/b", b"")]), "drive letter"),
    "null": (archive([("a_b", b"")]).replace(b"a_b", b"a\0b"), "null character"),
    "long": (archive([("a" * 300, b"")]), "too long"),
    "link": (archive([(special(stat.S_IFLNK | 0o777), b"/etc/passwd")]), "link or a device"),
    "device": (archive([(special(stat.S_IFBLK | 0o600), b"")]), "link or a device"),
    "pipe": (archive([(special(stat.S_IFIFO | 0o600), b"")]), "link or a device"),
    "folder as file": (archive([(special(stat.S_IFDIR | 0o700), b"")]), "link or a device"),
    "twice": (archive([("a", b"1"), ("a", b"2")]), "there twice"),
    "file and folder": (archive([("a", b"1"), ("a/b", b"2")]), "file and a folder at once"),
    "file and folder entry": (archive([("a/", b""), ("a", b"2")]), "twice"),
    "encrypted": (patched(GOOD, 8, b"\x01\x00"), "encrypted"),
    "other compression": (archive([("a", b"x")], zipfile.ZIP_BZIP2), "another way than deflate"),
    "wrong checksum": (patched(GOOD, 16, b"\0\0\0\0"), "damaged"),
    "lying size": (patched(GOOD, 24, struct.pack("<I", 10)), "damaged"),
    "bad offset": (patched(GOOD, 42, struct.pack("<I", 7)), "damaged"),
    "too many": (archive([(str(at), b"") for at in range(101)]), "101 files, the limit is 100"),
    "far too many": (archive([(str(at), b"") for at in range(2000)]), "more than 100 files"),
    "bomb": (archive([("a", b"\0" * 2_000_000)], zipfile.ZIP_DEFLATED), "bigger than 1.0 MiB unpacked"),
}  # fmt: skip
LIMITS = BundleLimits(packed_bytes=2**20, unpacked_bytes=2**20, files=100)


@pytest.mark.parametrize("kind", BAD_BUNDLES)
def test_a_bad_bundle_is_refused_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    content, said = BAD_BUNDLES[kind]
    (tmp_path / "b.zip").write_bytes(content)
    with pytest.raises(BundleError, match=said):
        verify(tmp_path / "b.zip", LIMITS)
    with pytest.raises(BundleError, match=said):
        unpack(tmp_path / "b.zip", tmp_path / "out", LIMITS)
    assert [path.name for path in tmp_path.rglob("*")] == ["b.zip"]


def test_a_bomb_that_lies_in_its_header_is_stopped_while_it_unpacks(tmp_path: Path) -> None:
    honest = archive([("a", b"\0" * 2_000_000)], zipfile.ZIP_DEFLATED)
    at = honest.index(b"PK\x01\x02")
    lying = patched(
        honest[:22] + struct.pack("<I", 5) + honest[26:at] + honest[at:], 24, struct.pack("<I", 5)
    )
    (tmp_path / "b.zip").write_bytes(lying)
    with pytest.raises(BundleError):
        unpack(tmp_path / "b.zip", tmp_path / "out", LIMITS)
    assert not (tmp_path / "out").exists()


def test_a_bundle_is_not_unpacked_over_other_files(tmp_path: Path) -> None:
    (tmp_path / "b.zip").write_bytes(GOOD)
    (tmp_path / "out").mkdir()
    unpack(tmp_path / "b.zip", tmp_path / "out")  # an empty folder is fine
    with pytest.raises(BundleError, match="not empty"):
        unpack(tmp_path / "b.zip", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.zip", "out"]


def test_a_missing_bundle_and_one_above_the_packed_limit(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be read"):
        verify(tmp_path / "nowhere.zip")
    (tmp_path / "b.zip").write_bytes(GOOD)
    with pytest.raises(BundleError, match="bigger than 50 B packed"):
        verify(tmp_path / "b.zip", BundleLimits(packed_bytes=50))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_damage_is_a_bundle_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(archive([("a.py", b"print()" * 30), ("d/b", b"x")], zipfile.ZIP_DEFLATED))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    tmp = tmp_path_factory.mktemp("damage")
    (tmp / "b.zip").write_bytes(content)
    with contextlib.suppress(BundleError):
        unpack(tmp / "b.zip", tmp / "in" / "out", LIMITS)
    assert {path.name for path in tmp.iterdir()} <= {"b.zip", "in"}
    assert {path.name for path in (tmp / "in").iterdir()} <= {"out"}
