"""A mounted input has the files of a downloaded one, is only read, fetches what is read, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from azure.storage.blob import BlobServiceClient

from service.storage_broker import StorageBroker
from tests.azurite import CONTAINER, Azurite
from tests.counting_proxy import CountingProxy
from tests.e2e.processes import until
from tests.needed import is_missing
from tests.unit.trainers.test_inputs import Log, contents
from trainers.input_source import InputSource
from trainers.inputs.download import InputMissing, fetched
from trainers.inputs.mounts.mountable import is_mounted, unmount, why_no_mounts
from trainers.inputs.mounts.mounting import sweep_mounts
from trainers.job_storage import granted_storage
from trainers.storage import Storage
from trainers.storage_grants import Scope, StorageAnswer, StorageRequest

BIG_BYTES = 32 * 2**20


class Store:
    """A store in Azurite, with the inputs of one node."""

    def __init__(self, server: Azurite, folder: Path) -> None:
        self.url, self.root = server.url(), folder / "inputs"
        #: What the store sends to nodes comes through it.
        self.proxy = CountingProxy(server.port)
        through = replace(server, endpoint=server.endpoint.replace(f":{server.port}", f":{self.proxy.port}"))
        self._broker = StorageBroker(through.credentials(folder))
        self._scopes = {self.url: Scope(reads=("images",))}
        self.client = BlobServiceClient.from_connection_string(server.connection_string)
        self.put("images/a/1.txt", b"one")
        self.put("images/2.txt", b"two")
        self.put("images/empty", b"")

    def put(self, name: str, content: bytes) -> None:
        self.client.get_blob_client(CONTAINER, f"{self.url.rpartition('/')[2]}/{name}").upload_blob(
            content, overwrite=True
        )

    def delete(self, name: str) -> None:
        self.client.get_blob_client(CONTAINER, f"{self.url.rpartition('/')[2]}/{name}").delete_blob()

    def ask(self, request: StorageRequest) -> StorageAnswer:
        return self._broker.answer(self._scopes, request)

    def opened(self, url: str) -> Storage:
        return granted_storage(url, self._scopes[url], self.ask)

    def use(
        self, log: Log, path: str = "images", mode: str = "mount"
    ) -> contextlib.AbstractContextManager[dict[str, Path]]:
        source = InputSource(url=self.url, path=path, is_mounted=mode == "mount")
        return fetched({"data": source}, log, root=self.root, opened=self.opened, ask=self.ask)

    @property
    def mounts(self) -> list[Path]:
        """Folders of mounts that are left on the node."""
        return [one for one in (self.root.parent / "mounts").iterdir() if one.is_dir()]

    def process(self) -> psutil.Process:
        """The one that serves the only mount."""
        (folder,) = self.mounts
        (found,) = (
            one for one in psutil.process_iter() if str(folder) in _command(one) and "-m" in _command(one)
        )
        return found


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


@pytest.fixture
def store(azurite_server: Azurite, tmp_path: Path) -> Iterator[Store]:
    if shutil.which("fusermount3") is None or why_no_mounts() is not None:
        is_missing(
            "NO INPUT IS MOUNTED, as fusermount3, libfuse3 or /dev/fuse is missing: apt-get install fuse3"
        )
    found = Store(azurite_server, tmp_path)
    yield found
    found.client.close()
    found.proxy.close()
    for folder in tmp_path.glob("mounts/*/tree"):
        unmount(folder)


@pytest.mark.parametrize("mode", ["download", "mount"])
def test_an_input_has_the_same_files_in_both_modes_and_none_is_written_to(store: Store, mode: str) -> None:
    with store.use(Log(), mode=mode) as found:
        data = found["data"]
        assert contents(data) == {"a/1.txt": "one", "2.txt": "two", "empty": ""}
        assert not (data / "a/1.txt").stat().st_mode & 0o222
        assert not (data / "absent").exists()
    with store.use(Log(), "images/2.txt", mode) as found:
        assert found["data"].read_text() == "two"
        assert found["data"].name == "2.txt"
    with (
        pytest.raises(InputMissing, match=r"^inputs.data: there is no file at 'images/absent'"),
        store.use(Log(), "images/absent", mode),
    ):
        pytest.fail("it was there")


def test_whatever_would_be_written_to_a_mount_is_refused(store: Store) -> None:
    with store.use(Log()) as found:
        data = found["data"]
        for attack in (
            lambda: (data / "new").write_text("x"),
            lambda: (data / "2.txt").write_text("x"),
            lambda: (data / "2.txt").unlink(),
            lambda: (data / "a").rmdir(),
            lambda: (data / "b").mkdir(),
            lambda: (data / "2.txt").rename(data / "3.txt"),
            lambda: (data / "2.txt").chmod(0o666),
        ):
            with pytest.raises(OSError, match=r"Errno") as refused:
                attack()
            assert refused.value.errno == errno.EROFS


def test_a_part_of_a_large_file_costs_that_part(store: Store) -> None:
    content = os.urandom(BIG_BYTES)
    store.put("images/big", content)
    with store.use(Log()) as found, (found["data"] / "big").open("rb", buffering=0) as file:
        before = store.proxy.received
        assert os.pread(file.fileno(), 1000, BIG_BYTES // 2) == content[BIG_BYTES // 2 :][:1000]
        assert store.proxy.received - before < BIG_BYTES / 4
        assert file.readall() == content
        assert BIG_BYTES <= store.proxy.received - before < 1.2 * BIG_BYTES, "all of it once"
        file.seek(0)
        assert file.readall() == content
        assert store.proxy.received - before < 1.2 * BIG_BYTES, "the kernel keeps what was read"


def test_workers_of_a_node_share_one_mount_which_ends_with_the_last(store: Store) -> None:
    log = Log()
    with store.use(log) as first:
        with store.use(log) as second:
            assert first == second
        assert contents(first["data"])["2.txt"] == "two"
        server = store.process()
    assert sum("are mounted" in line for line in log.lines) == 1
    server.wait(30)
    until(lambda: not store.mounts, "nothing is left of it", 10.0)
    assert not [line for line in log.lines if "has ended" in line]


def test_other_users_may_read_it(store: Store) -> None:
    if os.geteuid() != 0:
        is_missing("only root can be another user")
    with store.use(Log()) as found:
        descriptor = os.open(found["data"], os.O_RDONLY)
        os.seteuid(65534)
        try:
            opened = os.open("2.txt", os.O_RDONLY, dir_fd=descriptor)
            assert os.read(opened, 10) == b"two"
            os.close(opened)
        finally:
            os.seteuid(0)
            os.close(descriptor)


def test_a_file_that_the_storage_does_not_have_any_more_is_an_io_error_and_a_line(store: Store) -> None:
    log = Log()
    with store.use(log) as found:
        store.delete("images/2.txt")
        with pytest.raises(OSError, match=r"Errno") as failed:
            (found["data"] / "2.txt").read_bytes()
        assert failed.value.errno == errno.EIO
        until(
            lambda: any("'2.txt' failed with EIO" in line for line in log.lines),
            "the job's log says so",
            10.0,
        )
        store.put("images/a/1.txt", b"eno")
        with pytest.raises(OSError, match=r"Errno") as changed:
            (found["data"] / "a/1.txt").read_bytes()
        assert changed.value.errno == errno.EIO, "a file that was written to is not the input"


@pytest.mark.soak
def test_a_mount_whose_process_is_killed_fails_its_readers_and_is_swept(store: Store) -> None:
    log = Log()
    with store.use(log) as found:
        data = found["data"]
        file = os.open(data / "2.txt", os.O_RDONLY)
        server = store.process()
        server.send_signal(signal.SIGKILL)
        server.wait(30)
        with pytest.raises(OSError, match=r"Errno") as failed:
            os.pread(file, 1, 0)
        assert failed.value.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)
        with contextlib.suppress(OSError):
            os.close(file)
        until(
            lambda: any("the process of its mount has ended" in line for line in log.lines),
            "the log says so",
            10.0,
        )
        with store.use(log) as again:
            assert again["data"] != data
            assert contents(again["data"])["2.txt"] == "two", "who comes later gets a mount of its own"
    until(lambda: not store.mounts, "nothing is left of either", 10.0)


def test_a_mount_that_died_with_all_that_could_end_it_is_swept(store: Store) -> None:
    """As when a whole node is killed: no process is left that unmounts it."""
    with store.use(Log()) as found:
        tree = found["data"]
        helpers = [
            one
            for one in psutil.process_iter()
            if "fusermount3" in _command(one)[:1] and str(tree) in _command(one)
        ]
        assert helpers
        server = store.process()
        for one in (*helpers, server):
            one.kill()
        server.wait(30)
        assert is_mounted(tree)
    assert sweep_mounts(store.root.parent / "mounts") == [tree.parent.name]
    assert not is_mounted(tree)
    assert not store.mounts


@pytest.mark.soak
def test_many_readers_of_one_file_get_what_they_ask_for(store: Store) -> None:
    content = os.urandom(8 * 2**20)
    store.put("images/many", content)
    wrong, together = list[int](), threading.Barrier(8)

    def read(number: int) -> None:
        together.wait()
        with (found["data"] / "many").open("rb") as file:
            for step in range(16):
                begin = (number * 7 + step * 13) * 50_000 % len(content)
                file.seek(begin)
                if file.read(70_000) != content[begin : begin + 70_000]:
                    wrong.append(begin)

    with store.use(Log()) as found:
        threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not wrong
