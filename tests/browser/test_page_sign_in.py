"""The page of a service that asks for tokens, in Chromium: signing in, what a role sees, and signing out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from examples.openid_issuer import serve
from service import first_operator
from service.openid.issuers import Issuer as IssuerSettings
from service.settings import Settings
from service.store.database import Database
from service.store.migrate import migrate
from tests.browser.api_server import api_server
from tests.browser.chromium import PATIENCE_MS, tab
from tests.openid_pages import PageIssuer

pytestmark = pytest.mark.slow


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Address and first operator's token of a service with authentication."""
    settings = Settings(home=tmp_path / "home", authentication="required")
    settings.home.mkdir()
    database = Database(settings.database)
    migrate(database)
    token = first_operator.ensure(database, settings.home, 1_700_000_000.0).read_text().strip()
    database.close()
    with api_server(settings) as address:
        yield address, token


def submit(base: str, token: str, project: str) -> str:
    spec = {"name": f"of-{project}", "command": ["python", "train.py"], "project": project}
    answer = httpx2.post(f"{base}/v1/jobs", json=spec, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_a_viewer_signs_in_sees_its_project_alone_and_signs_out(
    browser: Any, service: tuple[str, str]
) -> None:
    base, operator = service
    jobs = {project: submit(base, operator, project) for project in ("vision", "speech")}
    made = httpx2.post(
        f"{base}/v1/tokens",
        json={"name": "page", "grants": {"vision": "viewer"}, "expires_in_s": 3600},
        headers={"Authorization": f"Bearer {operator}"},
    ).json()
    with tab(browser, base) as opened:
        opened.open("jobs")
        opened.page.get_by_label("token").fill("remora_wrong")
        opened.page.get_by_role("button", name="Sign in").click()
        opened.page.get_by_role("alert").wait_for(timeout=PATIENCE_MS)
        opened.page.get_by_label("token").fill(made["token"])
        opened.page.get_by_role("button", name="Sign in").click()
        opened.shows("of-vision")
        assert opened.page.get_by_text("of-speech").count() == 0
        assert opened.page.get_by_role("link", name="Policies").count() == 0, "for operators alone"
        assert opened.page.get_by_role("link", name="Costs").count() == 0, "for those who may submit"
        assert opened.page.evaluate("document.cookie") == "", "no script reads the token"
        assert opened.findings() == []
        # What a viewer may not do is refused in the words of the service, and the page stays.
        opened.open(f"jobs/{jobs['vision']}")
        opened.page.get_by_role("button", name="Pause").click()
        opened.page.get_by_role("alert").wait_for(timeout=PATIENCE_MS)
        opened.page.reload()
        opened.page.locator("h1", has_text="of-vision").wait_for(timeout=PATIENCE_MS)
        opened.page.get_by_role("button", name="Sign out").click()
        opened.page.get_by_role("heading", name="Sign in").wait_for(timeout=PATIENCE_MS)
        opened.picture("sign-in")
        # A token that is revoked ends the session while the page is open.
        opened.page.get_by_label("token").fill(made["token"])
        opened.page.get_by_role("button", name="Sign in").click()
        opened.page.locator("h1", has_text="of-vision").wait_for(timeout=PATIENCE_MS)
        revoked = httpx2.delete(
            f"{base}/v1/tokens/{made['id']}", headers={"Authorization": f"Bearer {operator}"}
        )
        assert revoked.status_code < 300, revoked.text
        opened.page.get_by_role("heading", name="Sign in").wait_for(timeout=PATIENCE_MS)
        # A browser reports each answer that is an error on its console: those above were meant.
        opened.complaints[:] = [said for said in opened.complaints if "status of 40" not in said]


def test_a_person_signs_in_with_the_account_of_an_issuer(browser: Any, tmp_path: Path) -> None:
    with serve(PageIssuer) as issuer:
        trusted = IssuerSettings(issuer=issuer.url, audience="remora", client_id="page", pages=True)
        settings = Settings(home=tmp_path / "home", authentication="required", openid={"corp": trusted})
        settings.home.mkdir()
        # To a browser, localhost and 127.0.0.1 are two sites, as a service and its issuer are.
        with (
            api_server(settings) as address,
            tab(browser, address.replace("127.0.0.1", "localhost")) as opened,
        ):
            issuer.person = None
            opened.open("cluster")
            opened.page.get_by_role("link", name="Sign in with corp").click()
            opened.shows("The account was not accepted.")
            assert opened.findings() == []
            issuer.person = "alice"
            opened.open("cluster")
            opened.page.get_by_role("link", name="Sign in with corp").click()
            opened.page.get_by_role("heading", name="Cluster").wait_for(timeout=PATIENCE_MS)
            opened.shows("alice@example.com")
            assert opened.page.url == f"{opened.base}/#/cluster"
            assert opened.page.evaluate("document.cookie") == ""
            opened.page.get_by_role("button", name="Sign out").click()
            opened.page.get_by_role("heading", name="Sign in").wait_for(timeout=PATIENCE_MS)
            opened.complaints[:] = [said for said in opened.complaints if "status of 40" not in said]


def test_the_page_itself_needs_no_token_and_no_other_file_is_served(service: tuple[str, str]) -> None:
    base, _ = service
    page = httpx2.get(f"{base}/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    again = httpx2.get(f"{base}/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    plain = httpx2.get(f"{base}/web/page.js", headers={"Accept-Encoding": "br, gzip;q=0.0"})
    packed = httpx2.get(f"{base}/web/page.js")
    assert [one.headers.get("content-encoding") for one in (plain, packed)] == [None, "gzip"]
    assert plain.content == packed.content
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) / 2
    assert plain.headers["etag"] != packed.headers["etag"]
    for name in ("..%2fapi/app.py", "vendor/htm.LICENSE", "%2e%2e/api/app.py", "index.html/", "page.js%00"):
        assert httpx2.get(f"{base}/web/{name}").status_code == 404, name
    assert httpx2.get(f"{base}/web/page.js?x=1").status_code == 422
    assert httpx2.get(f"{base}/v1/jobs").status_code == 401
