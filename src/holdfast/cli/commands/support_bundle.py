"""`holdfast support-bundle`."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note


@click.command("support-bundle")
@click.option(
    "--to",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("holdfast-support.tar.gz"),
    show_default=True,
    help="Archive to write. An existing file is not replaced.",
)
@state_option
@output_option
def support_bundle(*, target: Path, state: str, output: str) -> int:
    """Collect the facts of a platform in one file, without secrets.

    The archive has versions, the platform's status, objects, events, metrics and audit counts of each cell, what
    `repair list` and `cleanup-check` print, and facts of this machine; beside a platform's directory also the end of
    each process's log and a check of each store. Secrets, keys, tokens, values of environments and the output of tasks
    are left out or replaced. A cell that is down is named and skipped. manifest.json in the archive lists its content,
    and what was left out and why. Read it before you send the archive: names of tenants and workloads are in it.

    \b
    Examples:
      holdfast support-bundle
      holdfast support-bundle --state kubeconfig --to incident-42.tar.gz -o json
    """
    import msgspec

    from holdfast.platform.layout import Layout
    from holdfast.support.collection import BundleCollection

    if target.exists():
        text = f"{target}: exists (expected a new file)"
        raise CommandError(text, next_step="choose another file with --to", code=ExitCode.USAGE)
    try:
        manifest = BundleCollection(Layout(state)).write(target)
    except OSError as error:
        text = f"{target}: cannot be written ({error.strerror or error})"
        raise CommandError(text, next_step="choose another file with --to") from None
    if output == "json":
        print_json({"path": str(target), **msgspec.to_builtins(manifest)})
        return ExitCode.OK
    for cell, why in manifest.unreachable.items():
        print_note(f"cell {cell}: not in the bundle ({why})")
    size = target.stat().st_size
    click.echo(f"{target}: {len(manifest.parts)} parts, {size} bytes, {manifest.redactions} values redacted")
    return ExitCode.OK
