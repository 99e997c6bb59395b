"""Secrets of projects on SQLite and on PostgreSQL: encrypted, bound to their rows, rotated, resolved per attempt."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from remora.states import EndReason, JobState
from service.loops.attempt_secrets import _PAUSE_S, AttemptSecrets
from service.loops.launching import LAUNCH_TIMEOUT_S, Launching
from service.queue.intake import LimitReached
from service.queue.secrets import MAX_SECRETS_OF_PROJECT, SecretPlace, SecretRow, SecretSource
from service.secrets import rotation, storing
from service.secrets.encryption import CannotOpen, Sealed, seal, unseal
from service.secrets.key_file import KeyFile, KeysUnusable
from service.secrets.key_vault import VaultAway, VaultRefused
from service.secrets.resolving import SecretMissing, resolve
from service.secrets.storing import NewSecret, store_secret
from service.settings import Settings
from service.store import secret_rows
from service.store.database import Database
from service.store.tables import secret_versions
from service.store.tables import secrets as table
from tests.contracts.service.owners import Owner, owner_of

pytestmark = pytest.mark.postgresql_in_soak

VALUE = "value-of-a-secret"


@pytest.fixture
def key_file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys" / "secrets.key")


@pytest.fixture
def owner(database: Database, database_url: str, tmp_path: Path) -> Iterator[Owner]:
    with owner_of(database, database_url, tmp_path) as made:
        yield made


class Dies(BaseException):
    """The process ends here."""


def put(
    database: Database, key_file: KeyFile, name: str = "TOKEN", value: str = VALUE, **more: Any
) -> SecretRow:
    new = NewSecret(project="vision", name=name, source=SecretSource.VALUE, content=value)
    return store_secret(database, key_file, replace(new, **more), 1000.0)


def values(database: Database, key_file: KeyFile, *names: str) -> dict[str, str]:
    return dict(resolve(database, key_file, "vision", names or ("TOKEN",)).values)


def rows(database: Database) -> list[SecretRow]:
    return database.query(
        lambda connection: [SecretRow(**row._mapping) for row in connection.execute(sa.select(table))]
    )


class TestTheStore:
    def test_what_is_stored_comes_back_and_does_not_stand_in_the_database(
        self, database: Database, key_file: KeyFile
    ) -> None:
        assert put(database, key_file).version == 1
        assert values(database, key_file) == {"TOKEN": VALUE}
        assert put(database, key_file, value="ä" * 30_000).version == 2
        assert values(database, key_file) == {"TOKEN": "ä" * 30_000}
        assert stat.S_IMODE(key_file.path.stat().st_mode) == 0o600
        (row,) = rows(database)
        assert VALUE.encode() not in row.ciphertext
        assert VALUE not in repr(row)

    def test_equal_values_look_different(self, database: Database, key_file: KeyFile) -> None:
        one, other = put(database, key_file), put(database, key_file, name="OTHER")
        assert one.ciphertext[:12] != other.ciphertext[:12]
        assert one.ciphertext[12:] != other.ciphertext[12:]

    @pytest.mark.parametrize(
        "moved",
        [
            {"name": "OTHER"},
            {"project": "speech"},
            {"version": 2},
            {"source": SecretSource.KEY_VAULT},
            {"ciphertext": b""},
            {"ciphertext": b"x" * 60},
        ],
    )
    def test_a_row_cannot_stand_for_another_one(
        self, database: Database, key_file: KeyFile, moved: dict[str, Any]
    ) -> None:
        row = replace(put(database, key_file), **moved)
        database.transact(lambda connection: secret_rows.put(connection, row))
        with pytest.raises(CannotOpen, match="its row was changed, or moved from another place"):
            resolve(database, key_file, row.project, [row.name])

    def test_one_that_was_deleted_cannot_be_put_back_in_place_of_the_next_one(
        self, database: Database, key_file: KeyFile
    ) -> None:
        old = put(database, key_file, value=f"{VALUE}-old")
        database.transact(lambda connection: secret_rows.delete(connection, "vision", "TOKEN"))
        new = put(database, key_file)
        assert (old.version, new.version) == (1, 2)
        # What an old copy of the database has of it: its content alone, and its whole row.
        for stored in (replace(new, ciphertext=old.ciphertext), old):
            values_of_it = {"version": stored.version, "ciphertext": stored.ciphertext}
            database.transact(lambda c, values=values_of_it: c.execute(sa.update(table).values(values)))
            with pytest.raises(CannotOpen, match="set it again"):
                values(database, key_file)
        assert put(database, key_file, value=f"{VALUE}-3").version == 3
        assert values(database, key_file) == {"TOKEN": f"{VALUE}-3"}

    @pytest.mark.parametrize("is_remembered", [True, False])
    def test_one_of_the_release_before_is_the_newest_one(
        self, database: Database, key_file: KeyFile, *, is_remembered: bool
    ) -> None:
        """During an upgrade a process of that release writes the row alone, and remembers no version."""
        first = put(database, key_file)
        place = SecretPlace("vision", "TOKEN", 2, first.source)
        sealed = seal(key_file.read()[0], place, b"of-before")

        def work(connection: sa.Connection) -> None:
            connection.execute(sa.update(table).values(version=2, ciphertext=sealed.ciphertext))
            if not is_remembered:
                connection.execute(sa.delete(secret_versions))

        database.transact(work)
        assert values(database, key_file) == {"TOKEN": "of-before"}
        assert put(database, key_file, value="next").version == 3
        assert values(database, key_file) == {"TOKEN": "next"}

    def test_a_project_has_its_own_secrets_and_not_more_than_a_hundred(
        self, database: Database, key_file: KeyFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert MAX_SECRETS_OF_PROJECT == 100
        monkeypatch.setattr(storing, "MAX_SECRETS_OF_PROJECT", 2)
        put(database, key_file)
        put(database, key_file, name="OTHER")
        with pytest.raises(LimitReached, match="the project vision has 2 secrets and its limit is 2"):
            put(database, key_file, name="THIRD")
        assert put(database, key_file, name="OTHER").version == 2
        assert put(database, key_file, name="THIRD", project="speech").version == 1
        with pytest.raises(
            SecretMissing, match="the project vision has no secret THIRD; store it with: remora"
        ):
            values(database, key_file, "TOKEN", "THIRD")

    def test_many_clients_at_once_make_one_key_and_one_row_with_all_versions(
        self, database: Database, key_file: KeyFile
    ) -> None:
        with ThreadPoolExecutor(8) as threads:
            made = list(
                threads.map(lambda number: put(database, key_file, value=f"{VALUE}-{number}"), range(8))
            )
        assert sorted(row.version for row in made) == list(range(1, 9))
        assert len(key_file.read()) == 1
        (row,) = rows(database)
        assert row.version == 8


class TestTheKeyFile:
    def test_one_that_is_killed_between_the_key_and_the_row_leaves_a_key_that_the_next_one_uses(
        self, database: Database, key_file: KeyFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def dies(*_: object) -> None:
            raise Dies

        with monkeypatch.context() as patched:
            patched.setattr(storing, "_next", dies)
            with pytest.raises(Dies):
                put(database, key_file)
        (key,) = key_file.read()
        assert rows(database) == []
        assert put(database, key_file).key_id == key.id
        assert values(database, key_file) == {"TOKEN": VALUE}

    def test_a_draft_that_a_killed_process_left_is_no_key_file(
        self, database: Database, key_file: KeyFile
    ) -> None:
        key_file.path.parent.mkdir()
        Path(f"{key_file.path}.draft").write_text('{"keys": [')
        put(database, key_file)
        assert values(database, key_file) == {"TOKEN": VALUE}

    def test_a_lost_file_is_not_replaced_while_rows_need_it(
        self, database: Database, key_file: KeyFile
    ) -> None:
        put(database, key_file)
        kept = key_file.path.read_bytes()
        key_file.path.unlink()
        for act in (lambda: put(database, key_file), lambda: rotation.rotate(database, key_file)):
            with pytest.raises(KeysUnusable, match=r"is gone.*restore it from its copy"):
                act()
        assert not key_file.path.exists()
        with pytest.raises(CannotOpen, match="which the key file does not have"):
            values(database, key_file)
        key_file.path.write_bytes(kept)
        key_file.path.chmod(0o600)
        assert values(database, key_file) == {"TOKEN": VALUE}

    @pytest.mark.parametrize(
        ("content", "mode", "said"),
        [
            (None, 0o644, "other users may read the key file .*; run chmod 600 on it"),
            (b"{", 0o600, "is damaged; restore it from its copy"),
            (b'{"keys": []}', 0o600, "is damaged"),
            (b'{"keys": [{"id": "a", "key": "c2hvcnQ="}]}', 0o600, "is damaged"),
            (b"[]", 0o600, "is damaged"),
        ],
    )
    def test_one_that_cannot_be_used_says_why(
        self, database: Database, key_file: KeyFile, content: bytes | None, mode: int, said: str
    ) -> None:
        put(database, key_file)
        if content is not None:
            key_file.path.write_bytes(content)
        key_file.path.chmod(mode)
        with pytest.raises(KeysUnusable, match=said):
            put(database, key_file)


class TestARotation:
    def test_encrypts_everything_with_a_new_key_and_forgets_the_old_one(
        self, database: Database, key_file: KeyFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rotation, "BATCH", 2)
        for number in range(5):
            put(database, key_file, name=f"S{number}", value=f"{VALUE}-{number}")
        before = {row.name: row for row in rows(database)}
        (old,) = key_file.read()
        done = rotation.rotate(database, key_file)
        (new,) = key_file.read()
        assert (done.key_id, done.rewritten, done.is_resumed, done.unreadable) == (new.id, 5, False, ())
        assert old.id != new.id
        for row in rows(database):
            assert row.key_id == new.id
            assert replace(row, key_id=old.id, ciphertext=before[row.name].ciphertext) == before[row.name]
        assert values(database, key_file, "S3") == {"S3": f"{VALUE}-3"}

    @pytest.mark.parametrize("step", range(5))
    def test_one_that_is_killed_anywhere_loses_nothing_and_the_next_one_ends_it(
        self, database: Database, key_file: KeyFile, monkeypatch: pytest.MonkeyPatch, step: int
    ) -> None:
        monkeypatch.setattr(rotation, "BATCH", 1)
        for name in ("A", "B"):
            put(database, key_file, name=name, value=f"{VALUE}-{name}")
        with monkeypatch.context() as patched:
            left = [step]

            def mortal(call: Any) -> Any:
                def one(*arguments: Any) -> Any:
                    if left[0] == 0:
                        raise Dies
                    left[0] -= 1
                    return call(*arguments)

                return one

            # 1. the new key; 2. and 3. a row each; 4. no row is left; 5. the old key goes.
            for owner, name in ((KeyFile, "write"), (rotation, "_rewrite")):
                patched.setattr(owner, name, mortal(getattr(owner, name)))
            with pytest.raises(Dies):
                rotation.rotate(database, key_file)
        assert values(database, key_file, "A", "B") == {"A": f"{VALUE}-A", "B": f"{VALUE}-B"}
        # A secret that is stored meanwhile has the newest key.
        put(database, key_file, name="C", value=f"{VALUE}-C")
        done = rotation.rotate(database, key_file)
        assert done.is_resumed is (step > 0)
        (key,) = key_file.read()
        assert {row.key_id for row in rows(database)} == {key.id} == {done.key_id}
        assert values(database, key_file, "A", "B", "C")["C"] == f"{VALUE}-C"

    def test_names_what_it_cannot_decrypt_and_rotates_the_rest(
        self, database: Database, key_file: KeyFile
    ) -> None:
        put(database, key_file)
        lost = replace(put(database, key_file, name="LOST"), key_id="key_lost")
        database.transact(lambda connection: secret_rows.put(connection, lost))
        done = rotation.rotate(database, key_file)
        assert (done.rewritten, done.unreadable) == (1, ("vision/LOST",))
        assert values(database, key_file) == {"TOKEN": VALUE}

    def test_what_is_resolved_and_stored_meanwhile_is_never_lost(
        self, database: Database, key_file: KeyFile
    ) -> None:
        put(database, key_file)
        stop = threading.Event()
        seen: list[str] = []

        def reads() -> None:
            while not stop.is_set():
                seen.append(values(database, key_file)["TOKEN"])

        with ThreadPoolExecutor(2) as threads:
            reading = threads.submit(reads)
            for number in range(5):
                rotation.rotate(database, key_file)
                put(database, key_file, value=f"{VALUE}-{number}")
            stop.set()
            reading.result(30.0)
        assert seen[-1].startswith(VALUE)
        assert len(key_file.read()) == 1


def test_encryption_names_no_value_and_takes_the_key_that_the_row_names(
    database: Database, key_file: KeyFile
) -> None:
    row = put(database, key_file)
    key_file.add()
    new, old = key_file.read()
    assert unseal((new, old), row.place, Sealed(row.key_id, row.ciphertext)) == VALUE.encode()
    assert VALUE not in repr(seal(new, row.place, VALUE.encode()))
    assert "content" not in repr(new)


#: Name, body, code of the problem, and what is said.
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("a-b", {"value": VALUE}, "invalid_parameter", "is no name of a secret; use 1 to 63 letters"),
    ("T", {}, "invalid_parameter", "write either `value` or `key_vault`"),
    ("T", {"value": VALUE, "key_vault": "x"}, "invalid_parameter", "write either"),
    ("T", {"value": "short"}, "invalid_secret", "no line of 8 bytes"),
    ("T", {"value": f"{VALUE}\0"}, "invalid_secret", "null character"),
    ("T", {"value": "x" * 65537}, "invalid_secret", "has 65537 bytes, and 65536 are possible"),
    ("T", {"value": [VALUE]}, "invalid_parameter", "value: Input should be a valid string"),
    ("T", {"valu": VALUE}, "invalid_parameter", "valu: Extra inputs are not permitted"),
    ("T", {"key_vault": "https://example.com/secrets/x"}, "invalid_secret", "is no secret of a key vault"),
    ("T", {"key_vault": "http://127.0.0.1:1/secrets/x"}, "invalid_secret", "is no secret of a key vault"),
]


class TestOverHttp:
    def test_a_value_is_stored_replaced_listed_without_it_and_deleted(self, owner: Owner) -> None:
        path = "/v1/projects/vision/secrets"
        made = owner.client.put(f"{path}/HF_TOKEN", json={"value": VALUE, "author": "ann\n"})
        assert (made.status_code, made.headers["location"]) == (201, f"{path}/HF_TOKEN")
        assert made.json() == {
            "project": "vision", "name": "HF_TOKEN", "version": 1, "source": "value", "created_at": 1000.0,
            "updated_at": 1000.0, "updated_by": "ann",
        } | {name: made.json()[name] for name in ("created_at", "updated_at")}  # fmt: skip
        again = owner.client.put(f"{path}/HF_TOKEN", json={"value": f"{VALUE}-2"})
        assert (again.status_code, again.json()["version"]) == (200, 2)
        listed = owner.client.get(path)
        assert [one["name"] for one in listed.json()["items"]] == ["HF_TOKEN"]
        assert VALUE not in listed.text + made.text + again.text
        assert owner.client.get("/v1/projects/speech/secrets").json()["items"] == []
        assert owner.client.delete(f"{path}/HF_TOKEN").status_code == 200
        gone = owner.client.delete(f"{path}/HF_TOKEN")
        assert (gone.status_code, gone.json()["code"]) == (404, "secret_not_found")

    def test_what_cannot_be_a_secret_is_refused_in_words_without_it(self, owner: Owner) -> None:
        for name, body, code, said in REFUSED:
            answer = owner.client.put(f"/v1/projects/vision/secrets/{name}", json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, code)
            assert said in answer.text
            assert VALUE not in answer.text

    def test_a_lone_surrogate_is_no_value(self, owner: Owner) -> None:
        answer = owner.client.put(
            "/v1/projects/vision/secrets/T",
            content=json.dumps({"value": "\udce4" * 20}),
            headers={"Content-Type": "application/json"},
        )
        assert "half a character" in answer.json()["detail"]

    def test_a_rotation(self, owner: Owner) -> None:
        owner.client.put("/v1/projects/vision/secrets/T", json={"value": VALUE})
        done = owner.client.post("/v1/secrets/rotate").json()
        assert (done["rewritten"], done["is_resumed"], done["unreadable"]) == (1, False, [])
        owner.world.settings.secrets_key.unlink()
        refused = owner.client.post("/v1/secrets/rotate")
        assert (refused.status_code, refused.json()["code"]) == (409, "keys_unusable")


SECRET = {"project": "vision", "environment": {"secrets": ["TOKEN"]}}


class TestAnAttempt:
    def put(self, owner: Owner, value: str = VALUE, name: str = "TOKEN") -> None:
        answer = owner.client.put(f"/v1/projects/vision/secrets/{name}", json={"value": value})
        assert answer.is_success, answer.text

    def test_gets_the_secret_as_it_is_when_it_starts(self, owner: Owner) -> None:
        self.put(owner)
        job_id = owner.submit(**SECRET)
        driver = owner.train(job_id)
        assert driver.secrets == {"TOKEN": VALUE}
        assert (driver.plan.secrets, driver.plan.secret_versions) == ({"TOKEN": "TOKEN"}, {"TOKEN": 1})
        assert VALUE not in repr(driver.plan)
        self.put(owner, "another-value")
        owner.end(job_id, "node_lost")
        for _ in owner.world.ticks_until("the next attempt"):
            if len(owner.world.launcher.history) == 2:
                break
        assert owner.world.launcher.history[1].secrets == {"TOKEN": "another-value"}
        assert VALUE not in str(owner.client.get(f"/v1/jobs/{job_id}").text)

    def test_without_its_secret_is_refused_when_it_is_submitted(self, owner: Owner) -> None:
        said = (
            "the project vision has no secret TOKEN; store it with: remora secrets set TOKEN --project vision"
        )
        assert owner.refused(**SECRET) == f"environment.secrets.0: {said}"
        assert owner.refused(**SECRET, schedule="0 * * * *") != ""
        for path, more in (
            ("arrays", {"array": {"grid": {"lr": [1]}}}),
            ("schedules", {"schedule": "0 * * * *"}),
        ):
            answer = owner.client.post(f"/v1/{path}", json={"command": "true", **SECRET, **more})
            assert (answer.status_code, said in answer.text) == (422, True), answer.text
        self.put(owner)
        assert owner.submit(**SECRET)

    def test_whose_secret_is_gone_ends_the_job_with_a_reason(self, owner: Owner) -> None:
        self.put(owner)
        job_id = owner.submit(**SECRET)
        owner.client.delete("/v1/projects/vision/secrets/TOKEN")
        job = owner.run_until(job_id, JobState.FAILED)
        assert (job.reason, job.attempt) == (EndReason.ENVIRONMENT_FAILED, 1)
        assert "the project vision has no secret TOKEN" in str(job.message)
        assert owner.world.launcher.history == []

    def test_waits_for_a_key_file_that_an_operator_puts_right(self, owner: Owner) -> None:
        self.put(owner)
        path = owner.world.settings.secrets_key
        path.chmod(0o644)
        job_id = owner.submit(**SECRET)
        owner.run_until(job_id, JobState.ADMITTED)
        owner.world.tick(3)
        assert owner.world.launcher.history == []
        path.chmod(0o600)
        owner.train(job_id)
        assert owner.world.launcher.driver_of(job_id).secrets == {"TOKEN": VALUE}


class Vaults(Executor):
    """Key vaults, and the threads that ask them: a question is answered when the test has it answered."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.now = 0.0
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def read(self, _: Settings, url: str) -> str:
        self.asked.append(url)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        assert (arguments, named) == ((), {})
        future: Future[Any] = Future()
        self._waiting.append((future, call))
        return future

    def answer(self) -> int:
        """Answer what was asked; returns how many questions there were."""
        waiting, self._waiting = self._waiting, []
        for future, call in waiting:
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)
        return len(waiting)


URL = "https://jobs.vault.azure.net/secrets/token"


class TestASecretInAKeyVault:
    @pytest.fixture
    def vaults(self, owner: Owner) -> Vaults:
        made = Vaults()
        launching = Launching(lambda: made.now, AttemptSecrets(made.read, lambda: made.now, made))
        owner.world.controller._launching = launching
        owner.client.put("/v1/projects/vision/secrets/IN_VAULT", json={"key_vault": URL})
        owner.client.put("/v1/projects/vision/secrets/TOKEN", json={"value": VALUE})
        return made

    def start(self, owner: Owner, vaults: Vaults, *answers: str | Exception) -> str:
        vaults.answers = list(answers)
        job_id = owner.submit(project="vision", environment={"secrets": ["TOKEN", "IN_VAULT"]})
        owner.run_until(job_id, JobState.ADMITTED)
        return job_id

    def test_is_read_for_each_attempt_while_the_controller_goes_on(
        self, owner: Owner, vaults: Vaults
    ) -> None:
        job_id = self.start(owner, vaults, "value-in-the-vault")
        owner.world.tick(3)
        assert owner.world.launcher.history == [], "nothing waits for the vault"
        assert vaults.answer() == 1
        owner.world.tick()
        driver = owner.world.launcher.driver_of(job_id)
        assert driver.secrets == {"TOKEN": VALUE, "IN_VAULT": "value-in-the-vault"}
        assert vaults.asked == [URL]

    def test_is_asked_for_again_after_a_pause_and_not_for_ever(self, owner: Owner, vaults: Vaults) -> None:
        away = VaultAway("the vault is away")
        job_id = self.start(owner, vaults, away, away)
        assert vaults.answer() == 1
        owner.world.tick(5)
        assert vaults.answer() == 0, "it is not asked at every tick"
        vaults.now += _PAUSE_S
        owner.world.tick()
        assert vaults.answer() == 1
        vaults.now += LAUNCH_TIMEOUT_S + 1.0
        owner.world.tick()
        first = owner.world.attempts(job_id)[0]
        assert first.end_reason is EndReason.DRIVER_LOST, "which is tried again, like any loss"
        assert not owner.job(job_id).state.is_terminal
        assert "the vault is away" in str(owner.job(job_id).message)

    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            (VaultRefused("the vault has no secret token"), "the vault has no secret token"),
            (
                "short",
                "the secret IN_VAULT from a key vault cannot be used: the value has no line of 8 bytes",
            ),
        ],
    )
    def test_that_is_refused_or_cannot_be_used_ends_the_job(
        self, owner: Owner, vaults: Vaults, answer: str | Exception, said: str
    ) -> None:
        job_id = self.start(owner, vaults, answer)
        vaults.answer()
        job = owner.run_until(job_id, JobState.FAILED)
        assert job.reason == EndReason.ENVIRONMENT_FAILED
        assert said in str(job.message)
