"""What `make bench-service` measures of the controller and of the store."""

from __future__ import annotations

from benchmarks import service


def test_a_tick_is_measured_with_the_jobs_that_were_asked_for() -> None:
    found = service.tick(4, 2, 3)
    assert found["jobs"] == {"running": 4, "reporting": 2, "queued": 3}
    assert 0 < found["statements"] < 60
    assert found["cpu_ms"] > 0.0


def test_a_scrape_is_measured() -> None:
    assert service.scrape_ms(50) > 0.0
