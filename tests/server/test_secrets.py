"""Secrets and ConfigMaps over the API: form, rules of Kubernetes, and who can read what by which path."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from holdfast.model.assignment import Assignment, AssignmentSpec
from holdfast.model.binding import Binding, BindingSpec, DesiredRunState, Intent
from holdfast.model.config_references import ConfigFile, EnvSource, EnvValue
from holdfast.model.config_values import ConfigVersions, TaskValues
from holdfast.model.kinds import kind_of
from holdfast.model.meta import ObjectMeta
from holdfast.model.secret import ConfigMap, Secret
from holdfast.model.template import Template
from holdfast.model.writes import Create
from holdfast.store.contract import Put, Txn

from .conftest import Api, World, workload

SECRETS = "/api/v1/namespaces/shop/secrets"
OTHERS = "/api/v1/namespaces/other/secrets"
VALUE = "canary-7f3a91"
ENCODED = base64.b64encode(VALUE.encode()).decode()


def secret(name: str = "db", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"token": VALUE}, **fields}


def has_value(text: bytes) -> bool:
    return VALUE.encode() in text or ENCODED.encode() in text


async def test_secret_is_stored_sealed_and_read_opened(world: World, api: Api) -> None:
    made = await api.post(SECRETS, secret(metadata={"name": "db", "annotations": {"note": VALUE}}))
    assert made.code == 201 and made.json["data"] == {"token": ENCODED} and "stringData" not in made.json
    assert made.json["type"] == "Opaque" and made.json["metadata"]["annotations"] == {"note": VALUE}
    assert "sealed" not in made.json
    entry = world.objects.entry(kind_of(Secret), "shop", "db")
    assert entry is not None and not has_value(entry.value)
    cached = world.objects.get(kind_of(Secret), "shop", "db")
    assert isinstance(cached, Secret) and not has_value(msgspec.json.encode(cached))
    opened = world.gate.sealer.open(cached)
    assert opened.data == {"token": VALUE.encode()} and repr(opened) == "Secret(shop/db)"
    listed = await api.get(SECRETS)
    assert listed.json["items"][0]["data"] == {"token": ENCODED}


async def test_update_without_a_change_writes_nothing(api: Api) -> None:
    made = (await api.post(SECRETS, secret())).json
    same = await api.put(f"{SECRETS}/db", made)
    assert same.json["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    labelled = await api.merge(f"{SECRETS}/db", {"metadata": {"labels": {"a": "b"}}})
    assert labelled.json["data"] == {"token": ENCODED} and labelled.json["metadata"]["generation"] == 1
    changed = await api.merge(f"{SECRETS}/db", {"stringData": {"token": "x", "more": "y"}})
    assert changed.json["metadata"]["generation"] == 2 and sorted(changed.json["data"]) == ["more", "token"]
    managed = json.dumps(changed.json["metadata"]["managedFields"])
    assert "f:token" in managed and not has_value(managed.encode())


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"stringData": {"a/b": VALUE}}, "data[a/b]"),
        ({"stringData": {"..": VALUE}}, "data[..]"),
        ({"stringData": {"k" * 254: VALUE}}, "data["),
        ({"stringData": {"a": VALUE}, "type": "kubernetes.io/tls"}, "data[tls.crt]"),
        ({"stringData": {"a": VALUE}, "type": "kubernetes.io/ssh-auth"}, "data[ssh-privatekey]"),
        ({"stringData": {"a": VALUE}, "type": "kubernetes.io/basic-auth"}, "data[username]"),
        (
            {"stringData": {".dockerconfigjson": VALUE}, "type": "kubernetes.io/dockerconfigjson"},
            "data[.dockerconfigjson]",
        ),
        ({"data": {"a": f"#{VALUE}"}}, "data[a]"),
        ({"data": {"a": {VALUE: 1}}}, "data.a"),
        ({"stringData": {"a": VALUE * 100_000}}, ""),
    ],
)
async def test_refusal_repeats_no_value(api: Api, fields: dict[str, Any], field: str) -> None:
    refused = await api.post(SECRETS, {**secret(), "stringData": {}, **fields})
    assert refused.code == 422 and not has_value(refused.body)
    assert any(cause.get("field", "").startswith(field) for cause in refused.json["details"]["causes"])


async def test_immutable_secret_and_its_type_cannot_be_changed(api: Api) -> None:
    await api.post(SECRETS, secret(immutable=True))
    for change in ({"stringData": {"token": "x"}}, {"immutable": False}, {"type": "example.com/x"}):
        assert (await api.merge(f"{SECRETS}/db", change)).code == 422
    assert (await api.merge(f"{SECRETS}/db", {"metadata": {"labels": {"a": "b"}}})).code == 200
    config = {"metadata": {"name": "c"}, "data": {"a": "b"}, "immutable": True}
    path = "/api/v1/namespaces/shop/configmaps"
    assert (await api.post(path, config)).code == 201
    assert (await api.merge(f"{path}/c", {"data": {"a": "c"}})).code == 422
    both = {"metadata": {"name": "d"}, "data": {"a": "b"}, "binaryData": {"a": "Yg=="}}
    assert (await api.post(path, both)).code == 422


async def test_wrapped_base64_is_accepted(api: Api) -> None:
    wrapped = "\n".join((ENCODED[:8], ENCODED[8:]))
    made = await api.post(SECRETS, secret(stringData={}, data={"token": wrapped}))
    assert made.json["data"] == {"token": ENCODED}


READS = (
    "",
    "/db",
    "?watch=1&timeoutSeconds=1",
    "?fieldSelector=metadata.name%3Ddb",
    "?fieldSelector=metadata.namespace%3Dother",
    "?labelSelector=a",
    "/db?resourceVersion=0",
    "?limit=1",
)


@pytest.mark.parametrize("base", [OTHERS, "/api/v1/secrets"])
@pytest.mark.parametrize("read", READS)
async def test_only_the_tenant_and_operators_read_a_secret(api: Api, base: str, read: str) -> None:
    """Every caller on every path. `tim` belongs to another tenant."""
    assert (await api.post(OTHERS, secret())).code == 201
    if base == "/api/v1/secrets" and read.startswith("/db"):
        return  # a Secret has a namespace
    refused = ("tim", "vera", "nobody", "prometheus", "holdfast:node:west:n1", "holdfast:region:near")
    for user in (*refused, "holdfast:controller:assign", ""):
        for accept in ("application/json", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"):
            answer = await api.as_user(user).get(base + read, accept=accept)
            assert answer.code in (401, 403) and not has_value(answer.body), (user, base + read)
    if "watch" not in read and "labelSelector" not in read:
        assert has_value((await api.get(base + read)).body)


async def test_tenant_reads_and_writes_its_own_secrets_only(api: Api) -> None:
    tim = api.as_user("tim")
    assert (await tim.post(SECRETS, secret())).code == 201
    assert has_value((await tim.get(f"{SECRETS}/db")).body)
    async with tim.watch(f"{SECRETS}?watch=1&resourceVersion=0") as events:
        assert (await events.next())["object"]["data"] == {"token": ENCODED}
    table = await tim.get(SECRETS, accept="application/json;as=Table;g=meta.k8s.io;v=v1")
    assert [row["cells"][:3] for row in table.json["rows"]] == [["db", "Opaque", 1]] and not has_value(table.body)
    assert (await tim.post(OTHERS, secret())).code == 403
    assert (await tim.delete(f"{SECRETS}/db")).code == 200


async def test_commit_cannot_store_a_ciphertext_of_its_own(api: Api, world: World) -> None:
    sealed = {"key": "k", "wrapped": "YQ==", "content": "YQ=="}
    item = {"metadata": {"name": "x", "namespace": "shop"}, "sealed": sealed}
    body = {"writes": [{"op": "create", "kind": "Secret", "object": item}]}
    refused = await api.as_user("tim").post("/commit/v1", body)
    assert refused.code in (400, 422), refused.body
    assert world.objects.get(kind_of(Secret), "shop", "x") is None
    assert (await api.post(SECRETS, secret(sealed=sealed))).code in (201, 400)
    stored = world.objects.get(kind_of(Secret), "shop", "db")
    assert not isinstance(stored, Secret) or stored.sealed is None or stored.sealed.key != "k"


async def test_template_cannot_name_another_tenants_secret(api: Api) -> None:
    item = workload()
    for name, row in (
        ("envFrom", {"secret": "other/db"}),
        ("envValues", {"name": "A", "key": "k", "secret": "../other/db"}),
        ("files", {"path": "/etc/passwd", "secret": "db"}),
        ("files", {"path": "../x", "secret": "db"}),
        ("files", {"path": "x", "secret": "db", "configMap": "c"}),
        ("files", {"path": "x"}),
    ):
        item["spec"]["template"][name] = [row]
        refused = await api.as_user("tim").post("/apis/holdfast.dev/v1/namespaces/shop/workloads", item)
        assert refused.code == 422, (name, row)
        del item["spec"]["template"][name]
    item["spec"]["template"]["envFrom"] = [{"secret": "db", "namespace": "other"}]
    path = "/apis/holdfast.dev/v1/namespaces/shop/workloads?fieldValidation=Strict"
    assert (await api.as_user("tim").post(path, item)).code == 400


TEMPLATE = Template(
    env_from=(EnvSource(config_map="settings", prefix="CFG_", optional=True),),
    env_values=(EnvValue(name="TOKEN", secret="db", key="token"),),
    files=(ConfigFile(path="creds", secret="db"),),
)


async def put(world: World, item: Any) -> None:
    """Stored directly, as the controllers would: the rules of Assignments and Bindings do not matter here."""
    from holdfast.model import codec

    kind = kind_of(item)
    key = kind.store_key(item.metadata.namespace, item.metadata.name)
    await world.objects.commit(kind, Txn(writes=(Put(key, codec.encode(item)),)))


async def test_region_reads_only_objects_that_its_assignments_refer_to(api: Api, world: World) -> None:
    for name in ("db", "unused"):
        await api.post(SECRETS, secret(name))
    await api.post(OTHERS, secret("db"))
    near = api.as_user("holdfast:region:near")
    config = "/region/v1/near/config"
    assert msgspec.json.decode((await near.get(config)).body, type=ConfigVersions).items == ()
    for region, name in (("near", "a"), ("far", "b")):
        template = TEMPLATE if region == "near" else Template()
        spec = AssignmentSpec(workload=name, workload_uid=name, region=region, revision="r", template=template)
        await put(world, Assignment(metadata=ObjectMeta(name=name, namespace="shop", uid=name), spec=spec))
    found = msgspec.json.decode((await near.get(config)).body, type=ConfigVersions).items
    assert [(v.kind, v.namespace, v.name, v.generation) for v in found] == [("Secret", "shop", "db", 1)]
    assert (await near.get(f"{config}/Secret/shop/db")).json["data"] == {"token": ENCODED}
    for path in ("Secret/shop/unused", "Secret/other/db", "Secret/shop/missing", "Workload/shop/a", "Node/shop/x"):
        assert (await near.get(f"{config}/{path}")).code == 404, path
    assert (await near.get("/region/v1/far/config")).code == 403
    for user in ("ada", "tim", "vera", "holdfast:node:west:n1"):
        assert (await api.as_user(user).get(f"{config}/Secret/shop/db")).code == 403


async def test_agent_reads_only_values_of_its_own_bindings(region: World) -> None:
    api = Api(region.app)
    for node, name in (("n1", "mine"), ("n2", "theirs")):
        spec = BindingSpec(
            replica=name, node=node, workload="web", template=TEMPLATE, intent=Intent("r", "h", 1), epoch=1
        )
        await put(region, Binding(metadata=ObjectMeta(name=name, namespace="shop", uid=name), spec=spec))
    agent = api.as_user("holdfast:node:west:n1")
    path = "/node/v1/n1/values/shop"
    missing = msgspec.json.decode((await agent.get(f"{path}/mine")).body, type=TaskValues)
    assert missing.reason == "SecretMissing" and "Secret db" in missing.message and not missing.env
    copy = Secret(metadata=ObjectMeta(name="db", namespace="shop", uid="s", generation=3), data={"token": b"v"})
    other = Secret(metadata=ObjectMeta(name="db", namespace="other", uid="o"), data={"token": b"not this"})
    config = ConfigMap(metadata=ObjectMeta(name="settings", namespace="shop", uid="c"), data={"mode": "quick"})
    await region.commit(Create(copy), Create(other), Create(config), role="link")
    values = msgspec.json.decode((await agent.get(f"{path}/mine")).body, type=TaskValues)
    assert values.env == {"CFG_mode": b"quick", "TOKEN": b"v"}
    assert [(f.path, f.content, f.mode) for f in values.files] == [("creds/token", b"v", 0o400)]
    for denied in (f"{path}/theirs", f"{path}/none", "/node/v1/n1/values/other/mine"):
        assert (await agent.get(denied)).code == 404, denied
    assert (await agent.get("/node/v1/n2/values/shop/theirs")).code == 403
    for user in ("ada", "tim", "vera"):
        assert (await api.as_user(user).get(f"{path}/mine")).code == 403
    for plural in ("secrets", "configmaps"):
        assert (await api.get(f"/api/v1/namespaces/shop/{plural}")).code == 404, "regions do not serve their copies"
    stopped = region.objects.get(kind_of(Binding), "shop", "mine")
    assert isinstance(stopped, Binding)
    for generation, reason in (("3", ""), ("4", "SecretMissing")):
        template = msgspec.structs.replace(TEMPLATE, content_versions={"Secret/db": f"s.{generation}"})
        spec = msgspec.structs.replace(stopped.spec, template=template)
        await put(region, msgspec.structs.replace(stopped, spec=spec))
        answer = msgspec.json.decode((await agent.get(f"{path}/mine")).body, type=TaskValues)
        assert answer.reason == reason, "a new revision never starts with the content of the one before"
    stop = msgspec.structs.replace(stopped.spec, desired=DesiredRunState.STOP)
    await put(region, msgspec.structs.replace(stopped, spec=stop))
    assert (await agent.get(f"{path}/mine")).code == 404


async def test_reads_of_secrets_are_audited_without_values(api: Api, world: World) -> None:
    await api.post(SECRETS, secret())
    await api.get(f"{SECRETS}/db")
    await world.gate.audit.close()
    records = await world.store.read_log("audit", after=0, limit=1000)
    text = b"".join(record.value for record in records)
    assert b'"secrets/shop"' in text and not has_value(text)


async def test_keys_are_listed_for_operators_only(api: Api) -> None:
    await api.post(SECRETS, secret())
    rows = (await api.get("/secrets/v1/keys")).json["keys"]
    assert [(row["seals"], row["secrets"]) for row in rows] == [(True, 1)] and "key" not in rows[0]
    for user in ("tim", "vera"):
        assert (await api.as_user(user).get("/secrets/v1/keys")).code == 403


async def test_tenant_cannot_fill_the_store_with_secrets(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.gate import admission

    monkeypatch.setattr(admission, "CONFIG_OBJECTS_PER_TENANT_MAX", 2)
    tim = api.as_user("tim")
    assert [(await tim.post(SECRETS, secret(f"s{n}"))).code for n in range(3)] == [201, 201, 403]
    assert (await tim.merge(f"{SECRETS}/s0", {"stringData": {"token": "x"}})).code == 200
    assert (await api.post(OTHERS, secret())).code == 201, "another tenant is not affected"
    monkeypatch.setattr(admission, "CONFIG_BYTES_PER_TENANT_MAX", 10)
    assert (await tim.merge(f"{SECRETS}/s0", {"stringData": {"token": "y"}})).code == 403
    assert (await tim.delete(f"{SECRETS}/s1")).code == 200
