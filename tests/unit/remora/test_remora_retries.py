"""When the client sends again, when it gives up, and which service it talks to."""

from __future__ import annotations

import email.utils
from pathlib import Path

import pytest

from remora.client.requests import cancel_job, create_job, follow_logs, get_health, has_bundle
from remora.client.retries import Following, Patience, may_retry_error, may_retry_status, retry_after_s
from remora.client.shell import (
    DEFAULT_SERVER,
    check_deadline,
    deadline_after,
    find_server,
    home_folder,
    within,
)
from remora.errors import ConfigurationError, WaitTimeout
from remora.spec.spec import JobSpec
from remora.views import LogLine


def test_pauses_double_up_to_a_limit_and_end_with_the_budget() -> None:
    patience = Patience(20)
    now, pauses = 100.0, []
    while (pause := patience.pause_s(now, chance=1.0)) is not None:
        pauses.append(pause)
        now += pause
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5])
    patience.reset()
    assert patience.pause_s(now, chance=0.5) == pytest.approx(0.05)


def test_the_services_own_pause_goes_first_but_not_beyond_the_budget() -> None:
    assert Patience(10).pause_s(0, 1.0, retry_after_s=7) == 7
    assert Patience(10).pause_s(0, 1.0, retry_after_s=11) is None
    assert Patience(0).pause_s(0, 0.5) is None


def test_only_what_is_safe_is_sent_twice() -> None:
    submission = create_job(JobSpec(command="x"), "key")
    for request in (submission, get_health(), has_bundle("sha256:0")):
        assert may_retry_error(request, was_sent=True)
        assert may_retry_status(request, 503)
        assert not may_retry_status(request, 500)
        assert not may_retry_status(request, 409)
    cancel = cancel_job("job_1")
    assert not may_retry_error(cancel, was_sent=True)
    assert may_retry_error(cancel, was_sent=False)
    assert not may_retry_status(cancel, 503)


def test_a_wait_ends_at_its_deadline_and_without_one_never() -> None:
    assert deadline_after(None) is None
    check_deadline(None, "job_1")
    assert within(None, 7.0) == 7.0
    in_a_minute, passed = deadline_after(60.0), deadline_after(0.0)
    check_deadline(in_a_minute, "job_1")
    assert within(in_a_minute, 7.0) == 7.0
    assert 50.0 < within(in_a_minute, 99.0) <= 60.0, "a pause ends with it"
    with pytest.raises(WaitTimeout, match="job_1 has not ended in the time given"):
        check_deadline(passed, "job_1")
    assert within(passed, 7.0) == 0.0


def test_retry_after_has_two_forms() -> None:
    date = email.utils.formatdate(1_000_030, usegmt=True)
    assert retry_after_s({"retry-after": "7"}, 0) == 7
    assert retry_after_s({"retry-after": date}, 1_000_000) == 30
    assert retry_after_s({"retry-after": date}, 2_000_000) == 0
    for nonsense in ("", "soon", "-1", "²", "1.5"):
        assert retry_after_s({"retry-after": nonsense}, 0) is None


def test_the_service_is_found_without_any_configuration(tmp_path: Path) -> None:
    environ = {"REMORA_HOME": str(tmp_path)}
    assert find_server(environ).url == DEFAULT_SERVER
    (tmp_path / "api.url").write_text("http://127.0.0.1:1234/\n")
    found = find_server(environ)
    assert (found.url, found.source) == ("http://127.0.0.1:1234", str(tmp_path / "api.url"))
    assert (
        find_server({**environ, "REMORA_SERVER": "https://gpu.example/remora"}).url
        == "https://gpu.example/remora"
    )
    assert find_server({**environ, "REMORA_SERVER": "http://a"}, "http://b").url == "http://b"
    assert home_folder(environ) == tmp_path
    assert home_folder(environ, Path("here")) == Path("here")


def test_only_this_machine_is_reached_past_a_proxy() -> None:
    local = ("http://127.0.0.1:1", "http://localhost", "http://[::1]:7")
    assert [find_server({}, url).is_local for url in (*local, "http://10.0.0.1", "http://a")] == [
        True
    ] * 3 + [False] * 2


@pytest.mark.parametrize(
    "url", ["x", "ftp://a", "http://", "http://a:b", "http://a?x", "http://a b", "http://[", "http://a:0"]
)
def test_what_is_no_address_is_refused_with_its_origin(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"REMORA_SERVER.* is no address of a service"):
        find_server({"REMORA_SERVER": url})
    (tmp_path / "api.url").write_text(url)
    with pytest.raises(ConfigurationError, match=r"api\.url"):
        find_server({"REMORA_HOME": str(tmp_path)})


def test_a_server_that_repeats_itself_is_heard_once() -> None:
    following = Following(follow_logs("job_1", after=4, rank=1, tail=9))
    assert following.params() == {"rank": "1", "tail": "9", "after": "4"}
    taken = [following.take("log", _line(seq)) for seq in (4, 5, 5, 3, 7)]
    assert [None if line is None else line.seq for line in taken] == [None, 5, None, None, 7]
    assert following.take("news", "of a later version") is None
    assert following.params() == {"rank": "1", "after": "7"}
    assert following.headers()["Last-Event-ID"] == "7"
    assert following.take("end", "{}") is None
    assert following.has_ended


def _line(seq: int) -> str:
    return LogLine(seq=seq, at=1, attempt=1, rank=1, stream="stdout", text="x").model_dump_json()
