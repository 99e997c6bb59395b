"""The command line; `remora.cli.main.run` is its entry."""
