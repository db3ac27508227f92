"""YAML and JSON files that commands read: every way in which one is unreadable is an error that names the file."""

from __future__ import annotations

from typing import Any

from holdfast.foundation.exit_codes import CommandError, ExitCode


def read_documents(path: str) -> list[Any]:
    """The documents of a file; of the standard input for `-`. Raises CommandError."""
    import sys

    import yaml

    try:
        if path == "-":
            return list(yaml.safe_load_all(sys.stdin))
        with open(path, encoding="utf-8") as source:
            return list(yaml.safe_load_all(source))
    except FileNotFoundError:
        why = "file not found"
    except RecursionError:
        why = "not readable (nested too deeply)"
    except yaml.YAMLError as wrong:
        why = f"not valid YAML ({' '.join(str(wrong).split())})"
    except (OSError, UnicodeDecodeError) as wrong:
        why = f"not readable ({getattr(wrong, 'strerror', None) or wrong})"
    raise CommandError(f"{path}: {why}", code=ExitCode.USAGE)


def read_document(path: str) -> Any:
    """The one document of a file; None if it is empty. Raises CommandError."""
    found = read_documents(path)
    if len(found) > 1:
        raise CommandError(f"{path}: expected one document, found {len(found)}", code=ExitCode.USAGE)
    return found[0] if found else None
