"""`python -m holdfast.cli`: the supervisor starts its child processes with it, independent of PATH."""

from holdfast.cli import main

main()
