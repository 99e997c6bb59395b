"""What processes log: text, or one JSON object per line with ids in fields of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

START = "import logging\nfrom remora.process_log import *\nlog = logging.getLogger('service.loops.track')\n"


def said(body: str, form: str | None = "json") -> list[str]:
    """The lines that a process logs."""
    variables = {} if form is None else {"REMORA_LOG_FORMAT": form}
    done = subprocess.run(
        [sys.executable, "-c", START + body], env=variables, capture_output=True, check=True, timeout=60
    )
    assert not done.stdout
    return done.stderr.decode("ascii").removesuffix("\n").split("\n")


def line(body: str) -> dict[str, Any]:
    (text,) = said(f"write_log('controller')\n{body}")
    found: dict[str, Any] = json.loads(text)
    return found


class TestJson:
    def test_a_line_has_time_level_logger_process_and_message(self) -> None:
        found = line("log.warning('attempt %s is late', 'att_1')")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", found.pop("time"))
        assert found == {
            "level": "warning",
            "logger": "service.loops.track",
            "process": "controller",
            "message": "attempt att_1 is late",
        }

    def test_ids_are_fields(self) -> None:
        found = line("log.info('x', extra=about(job='job_1', attempt='att_1', node='node_1', project='red'))")
        assert (found["job"], found["attempt"], found["node"], found["project"]) == (
            "job_1",
            "att_1",
            "node_1",
            "red",
        )

    def test_a_trace_is_two_fields_and_what_is_none_is_left_out(self) -> None:
        traced = "traceparent='00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'"
        found = line(f"log.info('x', extra=about(job='job_1', {traced}))")
        assert (found["job"], found["trace_id"], found["span_id"]) == (
            "job_1",
            "0af7651916cd43dd8448eb211c80319c",
            "b7ad6b7169203331",
        )
        found = line(f"request_about.set(about({traced}))\nlog.info('x', extra=about(node='node_1'))")
        assert (found["node"], found["span_id"]) == ("node_1", "b7ad6b7169203331")
        for given in ("None", "''", "'hello'"):
            assert "trace_id" not in line(f"log.info('x', extra=about(job='job_1', traceparent={given}))")

    def test_the_request_that_is_answered_is_a_field_with_the_job_of_its_path(self) -> None:
        found = line("request_id.set('req-1'); request_about.set(about(job='job_1'))\nlog.info('x')")
        assert (found["request"], found["job"]) == ("req-1", "job_1")

    def test_what_a_message_is_about_comes_before_what_the_request_is_about(self) -> None:
        found = line("request_about.set(about(job='job_1'))\nlog.info('x', extra=about(job='job_2'))")
        assert found["job"] == "job_2"

    def test_an_exception_is_a_field_of_the_same_line(self) -> None:
        found = line("try:\n  1 / 0\nexcept ZeroDivisionError:\n  log.exception('it failed')")
        assert found["message"] == "it failed"
        assert found["exception"].startswith("Traceback")
        assert found["exception"].endswith("ZeroDivisionError: division by zero")

    def test_foreign_text_neither_breaks_a_line_nor_reaches_a_terminal(self) -> None:
        text = "a\\nb\\x1b[2Jc\\x7f\\x9b\\u2028\\u202e\\ud800\\0"
        (raw,) = said(f"write_log('api')\nlog.info('%s', '{text}')")
        assert all(" " <= letter <= "~" for letter in raw)
        assert json.loads(raw)["message"] == "a\nb\x1b[2Jc\x7f\x9b\u2028\u202e\ud800\0"

    def test_a_line_has_a_limit(self) -> None:
        (raw,) = said(
            "write_log('api')\ntry:\n  raise ValueError('x' * 10**6)\nexcept ValueError:\n  log.exception('y' * 10**6)"
        )
        assert len(raw) < 16 * 1024

    def test_a_worker_takes_secrets_out_and_says_whose_it_is(self) -> None:
        (raw,) = said(
            "write_worker_log('worker', about(job='job_1', attempt='att_1'),"
            " lambda text: text.replace('hunter22', '[secret KEY]'))\n"
            "log.info('not said')\n"
            "try:\n  raise ValueError('hunter22 is wrong')\nexcept ValueError:\n  log.exception('hunter22')"
        )
        assert "hunter22" not in raw
        found = json.loads(raw)
        assert (found["process"], found["job"], found["attempt"]) == ("worker", "job_1", "att_1")
        assert found["message"] == "[secret KEY]"


class TestText:
    @pytest.mark.parametrize("form", [None, "text", "xml"])
    def test_a_line_is_the_same_whatever_it_is_about(self, form: str | None) -> None:
        (text,) = said("write_log('api')\nlog.info('attempt %s is late', 7, extra=about(job='job_1'))", form)
        assert re.fullmatch(
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    service\.loops\.track: attempt 7 is late", text
        )

    def test_a_worker_logs_as_python_does(self) -> None:
        (text,) = said("write_worker_log('worker', {})\nlog.info('not said')\nlog.warning('late')", "text")
        assert text == "late"

    def test_an_argument_comes_before_the_variable(self) -> None:
        (text,) = said("write_log('api', 'text')\nlog.info('x')", "json")
        assert text.endswith("service.loops.track: x")
