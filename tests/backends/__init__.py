"""What each backend can do, by the tests that show it: `docs/backends.md` is made here (`make backends-table`)."""
