"""`holdfast up`."""

from __future__ import annotations

import click

from holdfast.cli.options import directory_option, output_option, quiet_option


@click.command()
@click.option(
    "--regions",
    default="us-east,eu-central,eu-west",
    show_default=True,
    metavar="NAME,…",
    help="Regions to run. The part before the first dash is the region's residency tag.",
)
@click.option(
    "--agents",
    type=click.IntRange(1, 50),
    default=2,
    show_default=True,
    help="Agents per region, spread over two zones. The first agent has two simulated GPUs.",
)
@click.option("--detach", is_flag=True, help="Return when everything serves; `holdfast down` stops the platform.")
@directory_option
@click.option(
    "--port-base",
    type=int,
    default=7400,
    show_default=True,
    help="Port of the global cell. Regions and agents use the ports after it: 100, and 50 per agent (500 by default). "
    "Give two platforms bases that are 1000 apart.",
)
@click.option(
    "--store",
    default="sqlite",
    show_default=True,
    metavar="sqlite|etcd|CELL=STORE,…",
    help="Store of the cells. `etcd` starts a local cluster of three members.",
)
@click.option("--no-samples", is_flag=True, help="Do not apply the sample tenants and workloads.")
@click.option(
    "--example",
    type=click.Choice(("shop",)),
    help="Apply an example application. A new platform gets it instead of the samples.",
)
@click.option(
    "--no-provider",
    is_flag=True,
    help="Do not run the node provider, which also pushes CPU metrics (`holdfast pool provide`).",
)
@click.option(
    "--proxy",
    default="",
    metavar="all|REGION,…",
    help="Run an entry proxy (HAProxy) in these regions. A stopped platform can get further ones.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1, 3600),
    default=120.0,
    show_default=True,
    help="Seconds to wait until everything serves.",
)
@quiet_option
@output_option
def up(
    *,
    regions: str,
    agents: int,
    detach: bool,
    state: str,
    port_base: int,
    store: str,
    no_samples: bool,
    example: str | None,
    no_provider: bool,
    proxy: str,
    timeout_s: float,
    quiet: bool,
    output: str,
) -> int:
    """Start a whole platform on this machine.

    Starts real processes: a global cell, one cell per region, agents, and sample workloads. Prints progress until
    everything serves, then the API's URL, the kubeconfig and three commands to try. Ctrl-C stops the platform; with
    --detach it keeps running. A second `up` on the same directory continues the platform, and does not wait for
    workloads that report why they cannot serve. If --timeout expires, the command exits with 5 and the platform keeps
    running.

    \b
    Examples:
      holdfast up
      holdfast up --detach
      holdfast up --store etcd
      holdfast up --detach --example shop
      holdfast up --detach --proxy all
      holdfast up --state /tmp/two --port-base 9400 --regions us-east,eu-west
    """
    from holdfast.platform import launch, local_etcd

    names = launch.parse_regions(regions)
    spec = launch.PlatformSpec(
        regions=names,
        agents=agents,
        port_base=port_base,
        samples=not no_samples,
        etcd_cells=local_etcd.parse_store(store, ("global", *names)),
        provider=not no_provider,
        example=example or "",
        proxies=launch.parse_proxies(proxy, names),
    )
    if spec.etcd_cells:
        local_etcd.etcd_binary()
    explicit = {
        name
        for name in ("regions", "agents", "port_base", "no_samples", "no_provider", "store")
        if click.get_current_context().get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    }
    return launch.bring_up(
        state, spec, explicit=explicit, detach=detach, timeout_s=timeout_s, quiet=quiet, as_json=output == "json"
    )
