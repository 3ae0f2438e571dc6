"""Files of the targets: valid for their readers, the same bytes every time, and only what changed changes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from runtime_plans import golden_plan, instance, plan

from coralopt.errors import LaunchError
from coralopt.plan import Plan
from coralopt.runtime import Launch, OneNodeEach, VllmEngine, lower
from coralopt.runtime.router import RouterConfig
from coralopt.runtime.targets import (
    KubernetesAddresses,
    SkyPilotAddresses,
    kubernetes_files,
    shell_files,
    skypilot_files,
    write_files,
)
from coralopt.runtime.targets.kubernetes import KubernetesOptions, fits_leader_worker_set
from coralopt.runtime.targets.quoting import quoted
from coralopt.runtime.targets.skypilot import cloud_of

HERE = Path(__file__).parent
L4, L40S = {"1xL4": (1, 900.0)}, {"1xL40S": (1, 900.0)}
ENGINE = VllmEngine(virtual_nodes=True, interface="eth0", model_paths={"tiny": "/models/tiny"})
STATEFUL = KubernetesOptions(leader_worker_set=False)


def files(target: str, document: Plan, names: Mapping[str, str] | None = None) -> dict[str, str]:
    def called(name: str) -> str:
        return (names or {}).get(name, name)

    if target == "shell":
        return shell_files(lower(document, ENGINE))
    if target == "skypilot":
        return skypilot_files(lower(document, ENGINE, SkyPilotAddresses(), called))
    options = KubernetesOptions(leader_worker_set=target == "kubernetes-led")
    return kubernetes_files(lower(document, ENGINE, KubernetesAddresses(), called), options)


def manifests(texts: dict[str, str]) -> list[dict[str, Any]]:
    return [item for name, text in texts.items() if name.endswith(".yaml") for item in yaml.safe_load_all(text)]


@pytest.mark.parametrize("target", ["shell", "skypilot", "kubernetes", "kubernetes-led"])
def test_golden_files(target: str) -> None:
    """One pipeline of each target as it is written, so that changes show in review (tests/runtime/regenerate.py)."""
    texts = files(target, golden_plan())
    for name in golden_names(target, texts):
        assert texts[name] == (HERE / "golden" / target / name).read_text(), name


def golden_names(target: str, texts: dict[str, str]) -> list[str]:
    """The files of one pipeline with uneven layers, and one of virtual nodes."""
    wanted = "1xl4-1xl40s-0" if target != "shell" else "1xl4-1xl40s-0-s0"
    return [name for name in texts if wanted in name or (target == "shell" and "1xl4-2xl4-0-s1" in name)]


@pytest.mark.parametrize("target", ["shell", "skypilot", "kubernetes"])
def test_a_new_plan_writes_only_what_changed(target: str, tmp_path: Path) -> None:
    """Applying the files of a new plan must not restart an instance that both plans have."""
    before = plan(instance("mixed", (3, L4), (5, L40S), count=2), instance("mixed", (8, L40S)))
    after = plan(instance("mixed", (3, L4), (5, L40S), count=1), instance("mixed", (8, {"2xL4": (1, 9.0)})))
    first = write_files(tmp_path, files(target, before))
    assert not first.changed
    again = write_files(tmp_path, files(target, before))
    assert not [*again.added, *again.changed, *again.removed]
    second = write_files(tmp_path, files(target, after))
    router = {"coralopt-router.yaml"} if target == "kubernetes" else set()
    assert set(second.changed) == {"router.json", "launch.json"} | router
    assert all("2xl4" in name for name in second.added)
    assert all("1xl40s-1" in name or (name.count("1xl40s-0") and "1xl4-" not in name) for name in second.removed)
    assert any("1xl4-1xl40s-0" in name for name in second.unchanged)
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == {
        *files(target, after),
        ".coralopt-files.json",
    }


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    """A user's own router.json is not overwritten, and a doctored list of files removes nothing outside."""
    (tmp_path / "router.json").write_text("mine")
    with pytest.raises(LaunchError, match="not written by coralopt"):
        write_files(tmp_path, files("shell", golden_plan()))
    assert (tmp_path / "router.json").read_text() == "mine"
    inside, outside = tmp_path / "in", tmp_path / "outside"
    outside.write_text("keep")
    write_files(inside, {"a": "1"})
    (inside / ".coralopt-files.json").write_text(json.dumps(["../outside", "a"]))
    write_files(inside, {"b": "2"})
    assert outside.read_text() == "keep"
    assert not (inside / "a").exists()


def launches() -> list[Launch]:
    """The golden plan, and one for a LeaderWorkerSet."""
    shapes = [golden_plan(), plan(instance("mixed", (2, L4), (3, L40S), (3, L40S)))]
    return [lower(document, ENGINE, KubernetesAddresses()) for document in shapes]


def test_kubernetes_manifests_are_valid() -> None:
    """Strictly: every field is known to the API of two releases, and typed as it wants."""
    validator = pytest.importorskip("kubernetes_validate")
    # A validation takes a quarter of a second; manifests with the same fields are all like the first of them.
    shapes: dict[str, dict[str, Any]] = {}
    for launch in launches():
        for manifest in manifests(
            kubernetes_files(launch, KubernetesOptions(namespace="llm", leader_worker_set=False))
        ):
            shapes.setdefault(f"{manifest['kind']} {fields(manifest)}", manifest)
    assert len(shapes) >= 6
    for manifest in shapes.values():
        for version in ("1.30", "1.34"):
            validator.validate(manifest, version, strict=True)
    for manifest in {item["kind"]: item for item in shapes.values()}.values():
        inside = "spec" if "spec" in manifest else "metadata"
        broken = {**manifest, inside: {**manifest[inside], "replicaz": 1}}
        with pytest.raises(validator.ValidationError):
            validator.validate(broken, "1.34", strict=True)


def fields(value: Any) -> Any:
    """Names and types of all fields, without what is in them; labels and selectors may be called anything."""
    if isinstance(value, dict):
        free = {"labels", "matchLabels", "selector", "nodeSelector", "annotations", "data"}
        return {name: "free" if name in free else fields(item) for name, item in sorted(value.items())}
    if isinstance(value, list):
        return sorted({str(fields(item)) for item in value})
    return type(value).__name__


def test_kubernetes_manifests_mean_what_they_should() -> None:
    """What a schema cannot see: names, ports, GPUs, addresses and times fit together."""
    launch = launches()[0]
    items = manifests(kubernetes_files(launch, STATEFUL))
    sets = {item["metadata"]["name"]: item for item in items if item["kind"] == "StatefulSet"}
    mine = [item for item in items if "coralopt/model" in item["metadata"]["labels"]]
    services = {item["metadata"]["name"]: item for item in mine if item["kind"] == "Service"}
    assert set(sets) == {node.machine for node in launch.nodes}
    assert set(services) == {pipeline.name for pipeline in launch.pipelines}
    for name, item in sets.items():
        assert len(name) <= 52
        spec, pod = item["spec"], item["spec"]["template"]["spec"]
        assert spec["selector"]["matchLabels"] == item["spec"]["template"]["metadata"]["labels"]
        service = services[spec["serviceName"]]
        assert service["spec"]["selector"].items() <= spec["selector"]["matchLabels"].items()
        nodes = [node for node in launch.nodes if node.machine == name]
        assert len(pod["containers"]) == len(nodes)
        for node, container in zip(nodes, pod["containers"], strict=True):
            assert container["resources"]["limits"]["nvidia.com/gpu"] == str(len(node.gpus))
            assert ("readinessProbe" in container) == (node.rank == 0)
            command = container["command"]
            if "--master-addr" in command:
                head = command[command.index("--master-addr") + 1]
                pod_name, service_name = head.rsplit(".", 1)
                assert pod_name.removesuffix("-0") in sets
                assert service_name == spec["serviceName"]
            if node.rank == 0:
                drain = int(command[command.index("--shutdown-timeout") + 1])
                assert pod["terminationGracePeriodSeconds"] > drain
            else:
                assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", str(ENGINE.drain_s)]
    secrets = json.dumps(items)
    assert '"optional": true' in secrets


def containers(texts: dict[str, str]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Every pod of the manifests with each of its containers."""
    specs = [
        item["spec"] for item in manifests(texts) if item["kind"] in ("StatefulSet", "Deployment", "LeaderWorkerSet")
    ]
    templates = [
        template
        for spec in specs
        for template in (
            [spec["template"]]
            if "template" in spec
            else [spec["leaderWorkerTemplate"][name] for name in ("leaderTemplate", "workerTemplate")]
        )
    ]
    return [(template["spec"], one) for template in templates for one in template["spec"]["containers"]]


@pytest.mark.parametrize("led", [False, True])
def test_pods_have_no_rights_and_little_company(led: bool) -> None:
    """Nobody is root or may ask the cluster's API; the router reaches heads, heads their stages and the other phase."""
    for launch in launches():
        texts = kubernetes_files(launch, KubernetesOptions(leader_worker_set=led, cache_claim="weights"))
        for pod, container in containers(texts):
            assert pod["automountServiceAccountToken"] is False
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["runAsUser"] > 0
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}
            engine = container["name"] != "router"
            assert engine == ({"name": "cache", "mountPath": "/cache"} in container["volumeMounts"])
            claims = [volume["persistentVolumeClaim"] for volume in pod["volumes"] if volume["name"] == "cache"]
            assert claims == [{"claimName": "weights"}] * engine
        policies = {
            item["metadata"]["name"]: item["spec"] for item in manifests(texts) if item["kind"] == "NetworkPolicy"
        }
        assert set(policies) == {pipeline.name for pipeline in launch.pipelines}
        for pipeline in launch.pipelines:
            router, peers = policies[pipeline.name]["ingress"]
            assert {"port": pipeline.head.ports["http"]} in router["ports"]
            selectors = [peer["podSelector"]["matchLabels"] for peer in peers["from"]]
            assert {"app.kubernetes.io/instance": pipeline.name} in selectors
            assert ({"coralopt/model": "tiny"} in selectors) == (pipeline.connector is not None)


def test_stages_live_as_long_as_their_head_answers() -> None:
    """The probe of a stage is a program that fails when the head does; it runs here against a head that is not there."""
    launch = launches()[0]
    probes = [
        c["livenessProbe"]["exec"]["command"]
        for _, c in containers(kubernetes_files(launch, STATEFUL))
        if "exec" in c.get("livenessProbe", {})
    ]
    assert len(probes) == sum(node.rank > 0 for node in launch.nodes)
    for python, flag, program in probes[:1]:
        assert (python, flag) == ("python3", "-c")
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=120)
        assert ended.returncode != 0


def test_kubernetes_replaces_nothing_in_words_of_ours() -> None:
    """A checkpoint called $(VLLM_API_KEY) is a name; only the controller's own variables are replaced."""
    engine = VllmEngine(model_paths={"tiny": "/models/$(VLLM_API_KEY)"})
    launch = lower(plan(instance("mixed", (2, L4), (3, L40S), (3, L40S))), engine, KubernetesAddresses())
    for led in (False, True):
        for _, container in containers(kubernetes_files(launch, KubernetesOptions(leader_worker_set=led))):
            words = " ".join(container["command"]).replace("$$(", "")
            assert set(re.findall(r"\$\((\w+)\)", words)) <= {
                "LWS_LEADER_ADDRESS",
                "LWS_WORKER_INDEX",
                "LWS_GROUP_SIZE",
            }


def test_gpus_of_another_vendor() -> None:
    """An MI300X is asked for by its own resource and label, whatever its node is called; vendors do not mix."""
    slices = {"H100-3g": {"base": "H100", "mig": "3g.40gb"}}

    def with_mi(*items: Any, gpu: str = "MI300X") -> Plan:
        nodes = {"mi": {"gpu": gpu, "count": 1, "network_gb_s": 50}}
        document = plan(*(instance(*item) for item in items)).model_dump(mode="json")
        scenario = {**document["scenario"], "gpus": slices, "nodes": nodes}
        for region in scenario["pool"]["regions"].values():
            region["configurations"]["mi"] = {"available": 9, "price_usd_h": 1.0}
        text = json.dumps({**document, "scenario": scenario}).replace(
            '"configuration": "1xB200"', '"configuration": "mi"'
        )
        return Plan.model_validate_json(text)

    mi = {"1xB200": (1, 900.0)}
    launch = lower(with_mi(("mixed", (8, mi))), ENGINE, KubernetesAddresses())
    ((pod, container), *_) = containers(kubernetes_files(launch, STATEFUL))
    assert container["resources"]["limits"] == {"amd.com/gpu": "1"}
    assert pod["nodeSelector"]["amd.com/gpu.product-name"] == "AMD_Instinct_MI300X_OAM"
    assert pod["tolerations"][0]["key"] == "amd.com/gpu"
    (text,) = [text for name, text in skypilot_files(launch).items() if name.endswith(".sky.yaml")]
    assert list(yaml.safe_load_all(text))[1]["resources"]["accelerators"] == "MI300X:1"
    mixed = lower(with_mi(("mixed", (4, mi), (4, L4))), ENGINE)
    assert [reason.code for reason in mixed.verdicts[0].reasons] == ["mixed-vendors"]
    apart = lower(with_mi(("prefill", (8, mi)), ("decode", (8, L4))), ENGINE)
    assert [[reason.code for reason in verdict.reasons] for verdict in apart.verdicts] == [["kv-vendors"]] * 2
    # A MIG slice is a resource of its own, on nodes that have the whole GPU.
    launch = lower(with_mi(("mixed", (8, mi)), gpu="H100-3g"), ENGINE, KubernetesAddresses())
    ((pod, container), *_) = containers(kubernetes_files(launch, STATEFUL))
    assert container["resources"]["limits"] == {"nvidia.com/mig-3g.40gb": "1"}
    assert pod["nodeSelector"]["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"


#: The fields of LeaderWorkerSet v1 that can be set without a default of ours, and nothing else; pods are checked apart.
LEADER_WORKER_SET: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "leaderworkerset.x-k8s.io/v1"},
        "kind": {"const": "LeaderWorkerSet"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["leaderWorkerTemplate"],
            "properties": {
                "replicas": {"type": "integer", "minimum": 0},
                "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
                "rolloutStrategy": {"type": "object"},
                "networkConfig": {"type": "object"},
                "leaderWorkerTemplate": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["workerTemplate", "size"],
                    "properties": {
                        "size": {"type": "integer", "minimum": 1},
                        "leaderTemplate": {"type": "object", "required": ["spec"]},
                        "workerTemplate": {"type": "object", "required": ["spec"]},
                        "restartPolicy": {
                            "enum": ["RecreateGroupOnPodRestart", "None", "RecreateGroupAfterStart", "Default"]
                        },
                        "subGroupPolicy": {"type": "object"},
                    },
                },
            },
        },
    },
}


def test_the_router_in_kubernetes() -> None:
    """It reads the router.json beside it, restarts when that changes and only then, and drains before it goes."""
    texts = kubernetes_files(launches()[0], KubernetesOptions(router_image="mine:1", namespace="llm"))
    config, deployment, service, *budgets = yaml.safe_load_all(texts["coralopt-router.yaml"])
    assert config["data"]["router.json"] == texts["router.json"]
    RouterConfig.model_validate_json(texts["router.json"])
    served = [budget["spec"]["selector"]["matchLabels"] for budget in budgets]
    assert served == [{"coralopt/model": "tiny", "coralopt/phase": phase} for phase in ("prefill", "decode")]
    assert {(budget["kind"], budget["spec"]["maxUnavailable"]) for budget in budgets} == {("PodDisruptionBudget", 1)}
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "mine:1"
    (volume,), (mount,) = pod["spec"]["volumes"], container["volumeMounts"]
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    assert container["command"][:3] == ["coralopt", "route", f"{mount['mountPath']}/router.json"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["containerPort"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > ENGINE.drain_s
    again = kubernetes_files(launches()[0], KubernetesOptions(router_image="mine:1", namespace="llm"))
    assert again["coralopt-router.yaml"] == texts["coralopt-router.yaml"]
    other = next(iter(yaml.safe_load_all(kubernetes_files(launches()[1])["coralopt-router.yaml"])))
    assert other["data"] != config["data"]
    router = [
        item for name, text in texts.items() if name.startswith("coralopt-router") for item in yaml.safe_load_all(text)
    ]
    assert {item["metadata"]["namespace"] for item in router} == {"llm"}


def test_leader_worker_set_where_the_shape_allows() -> None:
    """One odd node in front and equal ones behind; the rank comes from the controller."""
    launch = launches()[1]
    texts = kubernetes_files(launch, KubernetesOptions(leader_worker_set=True))
    item, policy = yaml.safe_load_all(texts[f"{launch.pipelines[0].name}.yaml"])
    assert policy["kind"] == "NetworkPolicy"
    leader = f"{launch.pipelines[0].name}-0.{launch.pipelines[0].name}"
    assert [b["url"] for b in json.loads(texts["router.json"])["backends"]] == [f"http://{leader}:8000"]
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(item, LEADER_WORKER_SET)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**item, "spec": {**item["spec"], "replicaz": 1}}, LEADER_WORKER_SET)
    spec = item["spec"]["leaderWorkerTemplate"]
    assert (item["kind"], spec["size"]) == ("LeaderWorkerSet", 3)
    worker = spec["workerTemplate"]["spec"]["containers"][0]["command"]
    assert worker[worker.index("--node-rank") + 1] == "$(LWS_WORKER_INDEX)"
    assert "--headless" in worker
    ragged = lower(plan(instance("mixed", (2, L4), (3, L40S), (3, {"1xA100": (1, 9.0)}))), ENGINE)
    assert not fits_leader_worker_set(ragged.pipelines[0])
    validator = pytest.importorskip("kubernetes_validate")
    for template in (spec["leaderTemplate"], spec["workerTemplate"]):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "x", **template["metadata"]},
            "spec": template["spec"],
        }
        validator.validate(pod, "1.34", strict=True)


def test_skypilot_job_groups() -> None:
    """One document for the group, one a node; region, instance type, market; hosts by the group's rule."""
    document = plan(instance("mixed", (3, L4), (5, L40S)))
    launch = lower(document, ENGINE, SkyPilotAddresses())
    (name,) = [name for name in skypilot_files(launch) if name.endswith(".sky.yaml")]
    group, *tasks = yaml.safe_load_all(skypilot_files(launch, spot=True)[name])
    assert group == {"name": launch.pipelines[0].name, "execution": "parallel"}
    assert [task["name"] for task in tasks] == ["s0", "s1"]
    assert [task["resources"]["accelerators"] for task in tasks] == ["L4:1", "L40S:1"]
    assert all(task["resources"]["infra"] == "aws/us-east-2" for task in tasks)
    assert all(task["resources"]["use_spot"] is True for task in tasks)
    assert {task["setup"] for task in tasks} == {"pip install vllm==0.32.0"}
    halves = files("skypilot", plan(instance("prefill", (8, L4)), instance("decode", (8, L40S))))
    setups = {list(yaml.safe_load_all(text))[1]["setup"] for file, text in halves.items() if file.endswith(".sky.yaml")}
    assert setups == {"pip install vllm==0.32.0 nixl==1.5.1"}
    assert list(yaml.safe_load_all(skypilot_files(launch, setup="make engine")[name]))[1]["setup"] == "make engine"
    assert all('--master-addr s0-0."${SKYPILOT_JOBGROUP_NAME}"' in task["run"] for task in tasks)
    head = launch.pipelines[0].head
    for addresses, host in (({}, f"s0-0.{launch.pipelines[0].name}"), ({head.machine: "10.1.2.3"}, "10.1.2.3")):
        (backend,) = json.loads(skypilot_files(launch, addresses=addresses)["router.json"])["backends"]
        assert backend["url"] == f"http://{host}:8000"
    assert cloud_of("us-central1") == "gcp"
    assert cloud_of("basement", {"basement": "kubernetes"}) == "kubernetes"
    with pytest.raises(LaunchError, match="--cloud basement=NAME"):
        cloud_of("basement")


def test_skypilot_reads_them(tmp_path: Path) -> None:
    """SkyPilot's own loader, here or in the environment whose interpreter CORALOPT_SKYPILOT names."""
    import importlib.util

    python = os.environ.get("CORALOPT_SKYPILOT") or (sys.executable if importlib.util.find_spec("sky") else None)
    if python is None:
        pytest.skip("SkyPilot is not installed: pip install skypilot, or CORALOPT_SKYPILOT=the python that has it")
    expected = {}
    for shape in (golden_plan(), plan(instance("mixed", (2, L4), (3, L40S), (3, L40S)))):
        for name, text in files("skypilot", shape).items():
            if name.endswith(".sky.yaml"):
                (tmp_path / name).write_text(text)
                group, *tasks = yaml.safe_load_all(text)
                expected[name] = [group["name"], [task["name"] for task in tasks]]
    program = """
import json, pathlib, sys
from sky.utils import dag_utils
found = {}
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.sky.yaml")):
    dag = dag_utils.load_dag_from_yaml(str(path))
    found[path.name] = [dag.name, [task.name for task in dag.tasks]]
(pathlib.Path(sys.argv[1]) / "found.json").write_text(json.dumps(found))
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "found.json").read_text()) == expected
    broken = next(tmp_path.glob("*.sky.yaml"))
    broken.write_text(broken.read_text().replace("use_spot", "use_spott"))
    assert subprocess.run(command, capture_output=True, env=environment, check=False, timeout=120).returncode != 0


def test_quoting() -> None:
    """A model path with a quote in it is a file name, not a command; one variable alone is expanded."""
    nasty = "a'b $(touch x) ${GROUP}; `id`"
    for variable, expected in ((None, nasty), ("GROUP", nasty.replace("${GROUP}", "g 1"))):
        answer = subprocess.run(
            ["bash", "-c", f"printf %s {quoted(nasty, variable)}"],
            env={"GROUP": "g 1", "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        )
        assert answer.stdout == expected


def test_shell_scripts_parse_and_configure_the_router() -> None:
    """bash reads every script; router.json is what `coralopt route` reads."""
    texts = files("shell", golden_plan())
    for name, text in texts.items():
        if name.endswith(".sh"):
            subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    config = RouterConfig.model_validate_json(texts["router.json"])
    assert len(config.backends) == len(lower(golden_plan(), ENGINE).pipelines)


def test_shell_scripts_serve(tmp_path: Path) -> None:
    """The scripts of a two-stage plan, started by bash on one machine, answer."""
    import socket
    import urllib.request

    program = tmp_path / "vllm"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "fake_vllm.py"} "$@"\n')
    program.chmod(0o755)
    free = []
    for _ in range(2):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            free.append(taken.getsockname()[1])

    class Here(OneNodeEach):
        def host(self, pipeline: str, node: str, machine: str) -> str:
            return "127.0.0.1"

        def port(self, machine: str, use: str) -> int:
            return int(free[0] if use == "http" else free[1])

    launch = lower(plan(instance("mixed", (3, L4), (5, L40S))), VllmEngine(program=(str(program),)), Here())
    write_files(tmp_path, shell_files(launch))
    scripts = sorted((tmp_path / "nodes").glob("*.sh"))
    running = [
        subprocess.Popen([str(script)], env={**os.environ, "CORALOPT_ADDRESS": "127.0.0.1"}) for script in scripts
    ]
    try:
        for _ in range(1200):
            try:
                with urllib.request.urlopen(f"{launch.pipelines[0].url}/health", timeout=1) as answer:
                    assert answer.status == 200
                    break
            except OSError:
                time.sleep(0.1)
        else:
            pytest.fail("the scripts do not serve")
    finally:
        for process in running:
            process.terminate()
        assert [process.wait(10) for process in running] == [0, 0]


@pytest.mark.slow
def test_preflight_program_with_torch(tmp_path: Path) -> None:
    """All-reduce and stage neighbours over Gloo with three processes, where torch is installed."""
    torchrun = shutil.which("torchrun")
    if torchrun is None:
        pytest.skip("torchrun is not installed")
    write_files(tmp_path, files("shell", golden_plan()))
    answer = subprocess.run(
        [torchrun, "--nproc-per-node", "3", str(tmp_path / "preflight" / "preflight.py"), "--megabytes", "1"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    assert len(re.findall(r"rank \d of 3 on cpu: all-reduce", answer.stdout)) == 3
