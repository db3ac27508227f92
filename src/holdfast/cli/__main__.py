"""`python -m holdfast.cli`: what the supervisor starts its children with, wherever the command is installed."""

from holdfast.cli import main

main()
