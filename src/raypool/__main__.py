"""`python -m raypool` is `raypool`."""

from raypool.cli.main import main

main(prog_name="raypool")
