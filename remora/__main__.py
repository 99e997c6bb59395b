"""`python -m remora` is the command `remora`, for an environment whose programs are not in the PATH."""

from remora.cli.main import run

run()
