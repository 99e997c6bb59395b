"""Bodies are taken up to their limit, whatever their length is said to be, and in whatever chunks they come."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from service.api.bodies import read_json, save
from service.api.problem_documents import ApiProblem

LIMIT = 1000
chunks = st.lists(st.integers(0, 700), max_size=6)


class Sender:
    """A client that sends a body in chunks of these sizes, and what of it was asked for."""

    def __init__(self, sizes: list[int], length: str | None = None) -> None:
        self.chunks = [bytes([at % 251]) * size for at, size in enumerate(sizes)]
        self.asked = 0
        headers = [(b"content-type", b"application/json")]
        if length is not None:
            headers.append((b"content-length", length.encode()))
        self.request = Request({"type": "http", "method": "PUT", "headers": headers}, self._receive)

    async def _receive(self) -> dict[str, Any]:
        self.asked += 1
        body = self.chunks[self.asked - 1] if self.asked <= len(self.chunks) else b""
        return {"type": "http.request", "body": body, "more_body": self.asked < len(self.chunks)}

    @property
    def whole(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def fits(self) -> bool:
        return len(self.whole) <= LIMIT

    @property
    def needed(self) -> int:
        """Chunks after which it is known whether it fits."""
        sizes = [len(chunk) for chunk in self.chunks]
        return next((at + 1 for at in range(len(sizes)) if sum(sizes[: at + 1]) > LIMIT), max(1, len(sizes)))


def refusal(error: pytest.ExceptionInfo[ApiProblem]) -> tuple[int, str]:
    return error.value.status, error.value.code


@settings(derandomize=True)
@given(chunks)
def test_a_file_without_a_length_is_measured_as_it_comes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    sender, path = Sender(sizes), tmp_path_factory.mktemp("upload") / "file"
    if sender.fits:
        digest = asyncio.run(save(sender.request, path, LIMIT))
        assert (digest, path.read_bytes()) == (hashlib.sha256(sender.whole).hexdigest(), sender.whole)
    else:
        with pytest.raises(ApiProblem) as error:
            asyncio.run(save(sender.request, path, LIMIT))
        assert refusal(error) == (413, "too_large")
        assert path.stat().st_size <= LIMIT, "what is too much is not written"
    assert sender.asked == sender.needed, "nor read"


@settings(derandomize=True)
@given(chunks)
def test_json_without_a_length_is_measured_as_it_comes(sizes: list[int]) -> None:
    sender = Sender(sizes)
    if sender.fits:
        assert asyncio.run(read_json(sender.request, LIMIT)) == sender.whole
    else:
        with pytest.raises(ApiProblem) as error:
            asyncio.run(read_json(sender.request, LIMIT))
        assert refusal(error) == (413, "too_large")
    assert sender.asked == sender.needed


@pytest.mark.parametrize("length", ["1001", "9" * 40])
def test_what_is_said_to_be_too_large_is_not_even_begun(length: str, tmp_path: Path) -> None:
    for take in (lambda request: save(request, tmp_path / "file", LIMIT), lambda one: read_json(one, LIMIT)):
        sender = Sender([1], length)
        with pytest.raises(ApiProblem) as error:
            asyncio.run(take(sender.request))
        assert (refusal(error), sender.asked) == ((413, "too_large"), 0)
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("length", ["0", "1000", "many"])
def test_a_length_that_is_a_lie_is_not_believed(length: str, tmp_path: Path) -> None:
    with pytest.raises(ApiProblem) as error:
        asyncio.run(save(Sender([600, 600], length).request, tmp_path / "file", LIMIT))
    assert refusal(error) == (413, "too_large")
