"""What a task gets from its references, and the bounds of references."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from holdfast.model.config_references import ConfigFile, ConfigObject, EnvSource, EnvValue, OnChange, restarting_objects
from holdfast.model.config_values import ENV_VALUE_BYTES_MAX, resolve
from holdfast.model.template import DriverName, Template, template_hash, validate_template

CONTENT = {ConfigObject("Secret", "db"): {"user": b"u", "pw": b"p"}, ConfigObject("ConfigMap", "app"): {"mode": b"x"}}


def find(wanted: ConfigObject) -> Mapping[str, bytes] | None:
    return CONTENT.get(wanted)


def test_references_resolve_in_order_and_optional_ones_may_be_missing() -> None:
    template = Template(
        env_from=(EnvSource(secret="db", prefix="DB_"), EnvSource(config_map="none", optional=True)),
        env_values=(
            EnvValue(name="DB_pw", config_map="app", key="mode"),
            EnvValue(name="GONE", secret="db", key="none", optional=True),
        ),
        files=(ConfigFile(path="c", config_map="app", key="mode", mode=0o444, on_change=OnChange.IGNORE),),
    )
    values = resolve(template, find)
    assert values.env == {"DB_user": b"u", "DB_pw": b"x"} and not values.reason
    assert [(f.path, f.mode, f.content, f.updates) for f in values.files] == [("c", 0o444, b"x", False)]


@pytest.mark.parametrize(
    ("reference", "reason", "named"),
    [
        (EnvValue(name="A", secret="none", key="k"), "SecretMissing", "Secret none"),
        (EnvValue(name="A", secret="db", key="none"), "SecretMissing", 'Secret db: has no key "none"'),
        (EnvValue(name="A", config_map="app", key="none"), "ConfigMissing", "ConfigMap app"),
    ],
)
def test_missing_object_or_key_is_named(reference: EnvValue, reason: str, named: str) -> None:
    values = resolve(Template(env_values=(reference,)), find)
    assert values.reason == reason and values.message.startswith(named) and values.env == {}


@pytest.mark.parametrize("value", [b"a\0b", b"x" * ENV_VALUE_BYTES_MAX])
def test_value_that_no_process_can_get_is_refused_without_it(value: bytes) -> None:
    template = Template(env_values=(EnvValue(name="A", secret="db", key="k"),))
    values = resolve(template, lambda wanted: {"k": value})
    assert values.reason == "ConfigUnusable" and "A" in values.message and value.decode() not in values.message


@pytest.mark.parametrize(
    "template",
    [
        Template(env_from=(EnvSource(),)),
        Template(env_from=(EnvSource(secret="a", config_map="b"),)),
        Template(env_from=(EnvSource(secret="Not/A/Name"),)),
        Template(env_from=tuple(EnvSource(secret=f"s{n}") for n in range(65))),
        Template(env_values=(EnvValue(name="A=B", secret="db", key="k"),)),
        Template(env_values=(EnvValue(name="A", secret="db", key=""),)),
        Template(env={"A": "x"}, env_values=(EnvValue(name="A", secret="db", key="k"),)),
        Template(files=(ConfigFile(path="/etc/x", secret="db"),)),
        Template(files=(ConfigFile(path="a/../b", secret="db"),)),
        Template(files=(ConfigFile(path="a", secret="db"), ConfigFile(path="a/b", secret="db"))),
        Template(files=(ConfigFile(path="a", secret="db", mode=0o2400),)),
        Template(driver=DriverName.OCI, bundle="/b", files=(ConfigFile(path="/proc/x", secret="db"),)),
        Template(driver=DriverName.OCI, bundle="/b", files=(ConfigFile(path="/", secret="db"),)),
        Template(driver=DriverName.OCI, bundle="/b", files=(ConfigFile(path="/etc/../x", secret="db"),)),
    ],
)
def test_invalid_reference_is_refused(template: Template) -> None:
    whole = Template(command=("x",)) if template.driver is DriverName.PROCESS else template
    fields = {name: getattr(template, name) for name in ("env", "env_from", "env_values", "files")}
    checked = Template(command=("x",), **fields) if whole is not template else template
    assert list(validate_template("spec.template", checked))


def test_templates_without_references_keep_their_hash() -> None:
    """Replicas would restart at an upgrade otherwise."""
    assert template_hash(Template(command=("x",))) == template_hash(Template(command=("x",), env_from=(), files=()))
    on_restart = Template(env_from=(EnvSource(secret="db", on_change=OnChange.RESTART), EnvSource(secret="other")))
    assert restarting_objects(on_restart) == (ConfigObject("Secret", "db"),)
