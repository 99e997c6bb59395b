"""Every storage keeps the same promises: a folder, fsspec's memory, and Azure's blobs, with a key and by grants."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from service.settings import Settings
from service.storage_broker import StorageBroker
from service.storage_locations import open_storage
from tests.azurite import Azurite
from trainers.job_storage import granted_storage
from trainers.storage import NotReadable, Storage, StorageError
from trainers.storage_grants import Scope


@pytest.fixture(params=["path", "file url", "memory", "azure", "granted"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    match request.param:
        case "path":
            yield Storage(tmp_path / "storage")
        case "file url":
            yield Storage(f"file://{tmp_path}/storage")
        case "azure" | "granted" as how:
            server: Azurite = request.getfixturevalue("azurite_server")
            url, file = server.url(), server.credentials(tmp_path)
            if how == "azure":
                yield open_storage(Settings(home=tmp_path, storage_credentials=file), url)
                return
            broker, scopes = StorageBroker(file), {url: Scope(writes=("",))}
            yield granted_storage(url, scopes[url], lambda asked: broker.answer(scopes, asked))
        case _:
            yield Storage(f"memory://{tmp_path}")
            MemoryFileSystem.store.clear()
            MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"content")
    return path


def test_what_was_written_is_read(storage: Storage, tmp_path: Path) -> None:
    storage.write_bytes("a/b/c", b"one")
    storage.write_bytes("a/b/c", b"two!")
    assert storage.read_bytes("a/b/c") == b"two!"
    assert storage.size("a/b/c") == 4
    with storage.open_read("a/b/c") as stream:
        assert stream.read() == b"two!"
    storage.read_file("a/b/c", tmp_path / "deep" / "copy")
    assert (tmp_path / "deep" / "copy").read_bytes() == b"two!"
    assert storage.exists("a/b/c")
    assert storage.exists("a/b")


def test_nothing_is_an_empty_file_too(storage: Storage) -> None:
    storage.write_bytes("empty", b"")
    assert (storage.read_bytes("empty"), storage.size("empty")) == (b"", 0)


def test_of_many_who_create_a_file_one_is_first(storage: Storage) -> None:
    together, first = threading.Barrier(8), list[str]()

    def create(name: str) -> None:
        together.wait()
        if storage.create_bytes("claims/one", name.encode()):
            first.append(name)

    writers = [threading.Thread(target=create, args=(str(number),)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [storage.read_bytes("claims/one").decode()] == first
    assert storage.names("claims") == ["one"]
    assert not storage.create_bytes("claims/one", b"later")


@pytest.mark.parametrize("move", [True, False])
def test_files_are_put(storage: Storage, source: Path, move: bool) -> None:
    storage.write_bytes("x/file", b"older and longer content")
    storage.write_file("x/file", source, move=move)
    assert storage.read_bytes("x/file") == b"content"
    assert source.exists() is not move


@pytest.mark.parametrize("share", [True, False])
def test_an_open_file_is_put_whatever_has_its_name_by_now(
    storage: Storage, source: Path, share: bool
) -> None:
    storage.write_bytes("x/file", b"older and longer content")
    with source.open("rb") as opened:
        source.rename(source.with_name("elsewhere"))
        source.symlink_to("/dev/null")
        storage.write_open("x/file", opened, share=share)

        assert storage.read_bytes("x/file") == b"content"
        assert storage.names("x") == ["file"]
        if storage.local_root is not None:
            stored = Path(storage.path("x/file")).lstat()
            assert (stored.st_ino == os.fstat(opened.fileno()).st_ino) is share


@pytest.mark.parametrize("share", [True, False])
def test_an_open_file_that_has_no_name_any_more_is_put(storage: Storage, source: Path, share: bool) -> None:
    with source.open("rb") as opened:
        source.unlink()
        storage.write_open("x/file", opened, share=share)
    assert storage.read_bytes("x/file") == b"content"


def test_names_are_those_directly_below(storage: Storage) -> None:
    for name in ("f/b", "f/a", "f/c/d", "fa/x"):
        storage.write_bytes(name, b"")
    assert storage.names("f") == ["a", "b", "c"]
    assert storage.names("nothing/there") == []
    storage.write_bytes("f/later", b"")
    assert "later" in storage.names("f"), "no list is remembered"


def test_sizes_of_a_folder_are_those_of_all_files_below(storage: Storage) -> None:
    assert storage.sizes("f") == {}
    storage.write_bytes("f/a", b"x")
    storage.write_bytes("f/deep/er/b", b"")
    storage.write_bytes("fa/c", b"xx")
    assert storage.sizes("f") == {"a": 1, "deep/er/b": 0}


def test_nothing_half_written_is_ever_seen(storage: Storage) -> None:
    """A reader sees the old or the new content while a writer is at work, and the writer leaves nothing else."""
    contents = {b"a" * 300_000, b"b" * 200_000}
    storage.write_bytes("f/file", b"a" * 300_000)
    done = threading.Event()

    def write() -> None:
        for _ in range(20):
            for content in contents:
                storage.write_bytes("f/file", content)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert storage.read_bytes("f/file") in contents
    writer.join()
    assert storage.names("f") == ["file"]


def test_a_failed_write_leaves_the_old_content(storage: Storage, tmp_path: Path) -> None:
    storage.write_bytes("f/file", b"old")
    with pytest.raises((StorageError, FileNotFoundError)):
        storage.write_file("f/file", tmp_path / "absent")
    assert storage.read_bytes("f/file") == b"old"


def test_deleted_is_gone_and_may_be_deleted_again(storage: Storage) -> None:
    storage.write_bytes("f/a/b", b"")
    storage.write_bytes("f/c", b"")
    storage.delete("f/a")
    assert storage.names("f") == ["c"]
    storage.delete("f/a")
    storage.delete("f")
    storage.delete("never/was")
    assert not storage.exists("f/c")


@pytest.mark.parametrize("missing", ["read_bytes", "size", "open_read"])
def test_a_missing_name_is_a_file_not_found_error(storage: Storage, missing: str) -> None:
    with pytest.raises(FileNotFoundError):
        getattr(storage, missing)("not/there")


@pytest.mark.parametrize("what", ["folder", "too large"])
def test_what_is_no_file_that_can_be_read_is_distinguished_from_a_storage_that_fails(
    storage: Storage, what: str
) -> None:
    if what == "folder":
        storage.write_bytes("f/inside", b"x")
        with pytest.raises(NotReadable, match="'f' is a folder"):
            storage.open_read("f")
        with pytest.raises(NotReadable, match="'f' is a folder"):
            storage.read_bytes("f")
    else:
        storage.write_bytes("f", b"12345")
        assert storage.read_bytes("f", most_bytes=5) == b"12345"
        with pytest.raises(NotReadable, match="'f' has 5 bytes, more than 4"):
            storage.read_bytes("f", most_bytes=4)


@pytest.mark.parametrize("disk", ["the same", "memory"])
def test_a_file_is_had_on_the_local_disk_without_a_copy_where_that_is_possible(
    storage: Storage, tmp_path: Path, disk: str
) -> None:
    storage.write_bytes("f/file", b"content")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if disk == "memory" else tmp_path) as folder:
        target = Path(folder) / "deep/file"
        for _ in range(2):
            storage.link_file("f/file", target)
            assert target.read_bytes() == b"content"
        if storage.local_root is not None:
            assert target.samefile(storage.path("f/file")) is (disk == "the same")
        with pytest.raises(FileNotFoundError):
            storage.link_file("f/absent", target)


def test_parts_of_a_file_are_read(storage: Storage) -> None:
    storage.write_bytes("f/file", bytes(range(100)))
    (size, tag) = storage.entries("f")["file"]
    assert size == 100
    assert storage.read_range("f/file", 0, 100, tag) == bytes(range(100))
    assert storage.read_range("f/file", 10, 20, tag) == bytes(range(10, 20))
    assert storage.read_range("f/file", 90, 200) == bytes(range(90, 100))
    with pytest.raises(FileNotFoundError):
        storage.read_range("f/absent", 0, 1)


def test_a_file_of_many_blocks_is_stored_and_read_whole(storage: Storage, tmp_path: Path) -> None:
    content = os.urandom(20 * 2**20)
    (tmp_path / "large").write_bytes(content)
    storage.write_file("f/large", tmp_path / "large")
    storage.read_file("f/large", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    assert storage.size("f/large") == len(content)
    assert storage.read_range("f/large", 17 * 2**20 - 3, 17 * 2**20 + 3) == content[17 * 2**20 - 3 :][:6]


@contextlib.contextmanager
def as_user_nobody() -> Iterator[None]:
    """Rights of files count for this process."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user reaches."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("what", ["link", "pipe", "socket", "device", "closed"])
def test_a_local_disk_is_read_only_where_real_files_are(open_folder: Path, what: str) -> None:
    place, storage = open_folder / "f", Storage(open_folder)
    match what:
        case "link":
            (open_folder / "target").write_text("elsewhere")
            place.symlink_to(open_folder / "target")
        case "pipe":
            os.mkfifo(place)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(place))
        case "device":
            place.symlink_to("/dev/zero")
        case _:
            place.write_text("secret")
            place.chmod(0)
    with as_user_nobody():
        with pytest.raises(NotReadable, match="'f' "):
            storage.read_bytes("f")
        with pytest.raises(NotReadable, match="'f' "):
            storage.open_read("f")


@pytest.mark.parametrize("what", ["file", "folder", "missing"])
def test_a_name_is_changed_whatever_has_it(storage: Storage, what: str) -> None:
    if what == "missing":
        with pytest.raises(FileNotFoundError):
            storage.rename("a", "b")
        return
    storage.write_bytes("a" if what == "file" else "a/deep/c", b"x")
    storage.rename("a", "b")
    assert not storage.exists("a")
    assert storage.read_bytes("b" if what == "file" else "b/deep/c") == b"x"


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "..", ".", ""])
def test_names_that_leave_the_storage_are_refused(storage: Storage, name: str) -> None:
    for attempt in (storage.path, storage.read_bytes, storage.exists, storage.names, storage.delete):
        with pytest.raises(StorageError, match="is not a relative name"):
            attempt(name)
    with pytest.raises(StorageError, match="is not a relative name"):
        storage.write_bytes(name, b"")


def test_a_location_is_what_a_person_can_use(storage: Storage) -> None:
    storage.write_bytes("a", b"x")
    location = storage.location("a")
    if storage.local_root is not None:
        assert Path(location).read_bytes() == b"x"
    else:
        assert location == f"{storage.url}/a"


@pytest.mark.parametrize("url", ["nosuch://bucket", "file+nothing://x"])
def test_a_storage_that_cannot_be_opened_says_which(url: str) -> None:
    with pytest.raises(StorageError, match="cannot open the storage"):
        Storage(url)


def test_what_the_disk_refuses_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    blocked = Storage(tmp_path / "file" / "storage")
    with pytest.raises(StorageError, match="failed at 'x'"):
        blocked.write_bytes("x", b"")
