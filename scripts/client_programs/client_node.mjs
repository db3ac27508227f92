// Uses Holdfast with @kubernetes/client-node. Prints one JSON line with all checks.
import * as k8s from "@kubernetes/client-node";
import { createRequire } from "node:module";

const [config, tenant] = process.argv.slice(2);
const kube = new k8s.KubeConfig();
kube.loadFromFile(config);
const core = kube.makeApiClient(k8s.CoreV1Api);
const custom = kube.makeApiClient(k8s.CustomObjectsApi);
const where = { group: "holdfast.dev", version: "v1", namespace: tenant, plural: "workloads" };
const name = "from-client-node";
const template = { command: ["sleep", "600"], resources: { cpu: "100m", memory: "32Mi" } };
const body = { apiVersion: "holdfast.dev/v1", kind: "Workload", metadata: { name }, spec: { replicas: 1, template } };
const checks = {};

async function run(title, check) {
  try {
    await check();
    checks[title] = "ok";
  } catch (error) {
    checks[title] = String(error.message ?? error).slice(0, 200);
  }
}

await run("list nodes of all regions, typed", async () => (await core.listNode()).items.map((n) => n.status.nodeInfo.osImage));
await run("list pods, typed", async () => (await core.listPodForAllNamespaces()).items.map((p) => p.spec.nodeName));
await run("list namespaces, typed", () => core.listNamespace());
await run("create", () => custom.createNamespacedCustomObject({ ...where, body }));
await run("get", () => custom.getNamespacedCustomObject({ ...where, name }));
await run("watch", () => new Promise((resolve, reject) => {
  const timer = setTimeout(() => reject(new Error("no event within 10 s")), 10000);
  const watch = new k8s.Watch(kube);
  const stream = watch.watch(`/apis/holdfast.dev/v1/namespaces/${tenant}/workloads`, {}, (type, object) => {
    if (object.metadata.name === name) { clearTimeout(timer); stream.then((s) => s.abort()); resolve(); }
  }, () => {});
  stream.catch(reject);
}));
await run("delete", () => custom.deleteNamespacedCustomObject({ ...where, name }));
const version = createRequire(import.meta.url)("@kubernetes/client-node/package.json").version;
console.log(JSON.stringify({ client: "@kubernetes/client-node", version, checks }));
process.exit(0);
