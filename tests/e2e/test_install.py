"""The commands of docs/operations/install.md, on machines of their own, from nothing to a workload that serves."""

from __future__ import annotations

import json
import os
import shlex
import tomllib
from collections.abc import Iterator

import pytest
from tests.e2e.installed import CONTROL, NODE, REGION, install, operator, page_scripts, serving, wait_serving
from tests.machines import Fleet, has_namespaces, running_fleet

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("install")) as made:
        yield made


@pytest.fixture(scope="module")
def installed(fleet: Fleet) -> Fleet:
    """One global cell, one region, one node, by the page's commands."""
    install(fleet, {"us-east": 1})
    return fleet


def test_page_installs_a_fleet_that_serves(installed: Fleet) -> None:
    addresses = serving(installed)
    assert len(addresses) == 6
    for address in addresses:
        assert "hello from hello-us-east-" in installed.machines["control"].run(f"curl -sf http://{address}/")


def test_commands_run_again_change_nothing(installed: Fleet) -> None:
    page = page_scripts()
    control, region, node = (installed.machines[name] for name in ("control", "us-east", "us-east-1"))
    before = control.run("holdfast ca show -o json")
    control.run(page[CONTROL][0].replace("holdfast doctor", ": holdfast doctor"))
    assert control.run("holdfast ca show -o json") == before
    assert "already runs" in region.run(page[REGION][0], region="us-east")
    assert "is Ready" in node.run(page[NODE][0], region="us-east")


def test_machine_that_holds_a_cell_refuses_another(installed: Fleet) -> None:
    refused = operator(
        installed,
        "holdfast region add other > other.token 2>/dev/null\nholdfast region add us-east > again.token 2>/dev/null",
    )
    assert refused == ""
    region = installed.machines["us-east"]
    answer = region.run("holdfast init region --join - --advertise $ADDRESS < other.token 2>&1 || echo exit $?")
    assert "this machine already holds us-east" in answer
    assert "exit 6" in answer
    operator(installed, "kubectl --kubeconfig operator.kubeconfig delete region other")


def test_tokens_are_made_listed_and_revoked_from_another_machine(installed: Fleet) -> None:
    """By the page's commands, with an operator's kubeconfig alone."""
    shown = installed.machines["us-east-1"].run(page_scripts()["the operator's machine: tokens"][0], region="us-east")
    assert "rack-7" in shown
    assert "region us-east" in shown
    left = operator(installed, "holdfast token list --join us-east -o json")
    assert "rack-7" not in left


def test_doctor_finds_nothing_wrong(installed: Fleet) -> None:
    for machine in installed.machines.values():
        found = json.loads(machine.run("holdfast doctor -o json"))["roles"]
        wrong = [each for findings in found.values() for each in findings if each["status"] == "fail"]
        assert found and not wrong, f"{machine.name}: {wrong}"


def test_private_keys_stay_on_their_machine(installed: Fleet) -> None:
    """No key of the CA on a region or node, and no private key on two machines."""
    owners: dict[bytes, str] = {}
    for machine in installed.machines.values():
        for path in sorted(machine.folder.rglob("*")):
            if path.suffix not in (".key", ".pem") or not path.is_file():
                continue
            content = path.read_bytes()
            if b"PRIVATE" not in content:
                continue
            assert path.stat().st_mode & 0o077 == 0, f"{path}: readable by others"
            key = content[content.rindex(b"-----BEGIN ") :]
            assert owners.setdefault(key, machine.name) == machine.name, f"{path}: also on {owners[key]}"
    assert {"control", "us-east", "us-east-1"} == set(owners.values())


def test_used_token_is_refused_on_another_machine(installed: Fleet) -> None:
    """The token of the page was used once by the region; with other keys it is refused, and nothing is left of it."""
    control = installed.machines["control"]
    answer = control.run(
        "holdfast init region --join - --advertise 127.0.0.1:28490 --state stolen --skip-checks < us-east.token 2>&1"
        " || echo exit $?"
    )
    assert "no uses left" in answer
    assert "next: on an operator's machine: holdfast region token us-east" in answer
    assert "exit 7" in answer
    assert control.run("find stolen -type f") == "", "the machine could not join as another region"


def test_settings_written_are_valid_and_strict(installed: Fleet) -> None:
    region = installed.machines["us-east"]
    config = "${XDG_CONFIG_HOME:-/etc}/holdfast/region.toml"
    assert "valid" in region.run(f"holdfast serve --config {config} --check-config 2>&1")
    answer = region.run(
        f"sed 's/^node_ca /nod_ca /' {config} > broken.toml\n"
        "holdfast serve --config broken.toml --check-config 2>&1 || echo exit $?"
    )
    assert "unknown key nod_ca; did you mean node_ca?" in answer
    assert tomllib.loads(region.run(f"cat {config}"))["cell"] == "us-east"


def test_reboot_starts_the_units_and_serves_again(installed: Fleet) -> None:
    """Every process ends at once; what the units start brings the workload back."""
    for machine in installed.machines.values():
        machine.kill_all()
    for machine in installed.machines.values():
        for unit in machine.run("ls ${XDG_CONFIG_HOME:-/etc}/holdfast/*.service").split():
            line = next(x for x in machine.run(f"cat {unit}").splitlines() if x.startswith("ExecStart="))
            machine.start(shlex.split(line.removeprefix("ExecStart=")))
    wait_serving(installed, 6)
    for machine in installed.machines.values():
        machine.kill_all()
    for name, command in (("control", CONTROL), ("us-east", REGION), ("us-east-1", NODE)):
        script = page_scripts()[command][0].replace("holdfast doctor", ": holdfast doctor")
        installed.machines[name].run(script, region="us-east")
    wait_serving(installed, 6)


def test_removed_node_is_revoked_and_its_name_can_be_joined_again(installed: Fleet) -> None:
    """A second agent, on the region's machine."""
    page, machine = page_scripts(), installed.machines["us-east"]
    join = "holdfast node join - --name spare --ports 21000-21049 < spare.nodes 2>&1"
    drain, remove = (page[f"the operator's machine: {what} a node"][0] for what in ("drain", "remove"))
    files = "ls -A ${STATE:-/var/lib/holdfast} ${XDG_CONFIG_HOME:-/etc}/holdfast"
    operator(installed, "holdfast node token --region us-east --uses 3 > spare.nodes")
    before = machine.run(files)
    assert "is Ready" in machine.run(join)
    operator(installed, f"NODE=spare\n{drain}")
    machine.run(page["each node: remove"][0])
    assert machine.run(files) == before

    refused = machine.run(f"{join} || echo exit $?")
    assert "the name spare has an identity that is not revoked" in refused
    assert "holdfast node token --region us-east --node spare, then here: holdfast node join -" in refused
    assert "exit 1" in refused and "started (pid" not in refused
    assert machine.run(files) == before, "nothing is left of it"

    operator(installed, f"NODE=spare REGION=us-east\n{remove}")
    assert "is Ready" in machine.run(join)
    delete = next(line for line in remove.splitlines() if line.startswith("kubectl"))
    server = next(line for line in remove.splitlines() if line.startswith("SERVER="))
    operator(installed, f"export NODE=spare REGION=us-east KUBECONFIG=operator.kubeconfig\n{server}\n{delete}")
    assert "node spare revoked" in operator(installed, "holdfast node revoke spare 2>&1")
    again = machine.run(join)
    assert "does not accept the node's certificate any more" in again and "is Ready" in again
    machine.run(page["each node: remove"][0])
    operator(installed, f"NODE=spare REGION=us-east\n{remove}")


def test_removal_leaves_no_process_and_no_file(installed: Fleet) -> None:
    """Runs last: it removes what the page says how to remove."""
    page = page_scripts()
    installed.machines["us-east-1"].run(page["each node: remove"][0])
    installed.machines["us-east"].run(page["the machine of the region: remove"][0])
    installed.machines["control"].run(page["the machine of the global cell: remove"][0])
    for machine in installed.machines.values():
        left = machine.run("ls -A ${STATE:-/var/lib/holdfast} ${XDG_CONFIG_HOME:-/etc}/holdfast")
        assert not any(word in left.split() for word in ("global", "region", "agent", "global.toml", "agent.toml"))


def test_namespaces_are_available_where_they_should_be() -> None:
    """The form with namespaces is the proof; without root the same commands run on loopback."""
    if os.geteuid() != 0:
        pytest.skip("not root: the commands are run on loopback")
    assert has_namespaces()
