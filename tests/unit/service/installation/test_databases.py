"""How pg_dump and psql reach the database: by all that its URL says, and with no password on their command lines."""

from __future__ import annotations

import psycopg.conninfo
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from service.installation.databases import connection_of
from service.installation.layout import InstallationProblem

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


def test_programs_of_postgresql_are_given_all_that_the_url_says() -> None:
    url = sa.make_url(
        "postgresql://remora:s%40crt@db.internal:6432/remora?sslmode=verify-full&sslrootcert=/etc/ca.pem"
        "&options=-c%20search_path%3Dremora&connect_timeout=7"
    )
    connection, variables = connection_of(url)
    assert psycopg.conninfo.conninfo_to_dict(connection) == {
        "user": "remora",
        "host": "db.internal",
        "port": "6432",
        "dbname": "remora",
        "sslmode": "verify-full",
        "sslrootcert": "/etc/ca.pem",
        "options": "-c search_path=remora",
        "connect_timeout": "7",
    }
    assert variables == {"PGPASSWORD": "s@crt"}
    assert "s@crt" not in connection


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("postgresql:///remora?host=/run/postgresql", "/run/postgresql"),
        ("postgresql://u@/remora?host=one:1&host=two:2", "one,two"),
        ("postgresql+psycopg://u@[::1]/remora", "::1"),
    ],
)
def test_the_host_is_found_in_each_form(url: str, host: str) -> None:
    connection, variables = connection_of(sa.make_url(url))
    assert psycopg.conninfo.conninfo_to_dict(connection)["host"] == host
    assert variables == {}


@given(TEXTS, TEXTS)
def test_no_text_of_a_url_becomes_another_parameter(user: str, password: str) -> None:
    url = sa.URL.create("postgresql", user, password, "h", 5432, "d", {"application_name": user})
    connection, variables = connection_of(url)
    found = psycopg.conninfo.conninfo_to_dict(connection)
    assert found == {"user": user, "host": "h", "port": "5432", "dbname": "d", "application_name": user}
    assert variables == {"PGPASSWORD": password}


def test_a_password_of_a_key_is_refused_and_a_password_of_the_query_hidden() -> None:
    with pytest.raises(InstallationProblem, match="use a key without a password"):
        connection_of(sa.make_url("postgresql://h/d?sslpassword=x"))
    connection, variables = connection_of(sa.make_url("postgresql://h/d?password=hidden"))
    assert (variables, "hidden" in connection) == ({"PGPASSWORD": "hidden"}, False)
