"""Manifests and rollouts before a real API server with its controllers: KUBEBUILDER_ASSETS names the folder with etcd,
kube-apiserver and kube-controller-manager; kubectl is there or on the path. No node runs anything: see kube_cluster.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kube_cluster import Cluster, assets
from runtime_plans import golden_plan, instance, plan
from test_rollout import COMES, GONE, NEW, OLD, STAYS
from test_targets import LEADER_WORKER_SET, files

from coralopt.plan import Plan

pytestmark = [pytest.mark.slow, pytest.mark.skipif(assets() is None, reason="KUBEBUILDER_ASSETS has no API server")]

#: Of a definition: fields that it does not name are kept.
ANY = '"x-kubernetes-preserve-unknown-fields": true'
STATEFUL_SETS = ("statefulsets", "apis/apps/v1")


def leader_worker_sets(folder: Path) -> Any:
    """Their definition: the whole one, if it lies beside the programs, else what is known of it here."""
    if (whole := folder / "leaderworkersets.yaml").is_file():
        return whole
    text = json.dumps(LEADER_WORKER_SET["properties"]["spec"]).replace('"additionalProperties": false, ', "")
    text = text.replace('{"enum"', '{"type": "string", "enum"').replace(
        '"type": "object"}', f'"type": "object", {ANY}}}'
    )
    text = text.replace('"required": ["spec"]}', f'"required": ["spec"], {ANY}}}')
    properties = {"spec": json.loads(text), "status": json.loads(f'{{"type": "object", {ANY}}}')}
    schema = {"type": "object", "properties": properties}
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}
    group, plural = "leaderworkerset.x-k8s.io", "leaderworkersets"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": "LeaderWorkerSet", "plural": plural, "singular": "leaderworkerset"},
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = assets()
    assert folder is not None
    running = Cluster(folder, tmp_path_factory.mktemp("cluster"))
    try:
        running.start()
        definition = leader_worker_sets(folder)
        if isinstance(definition, Path):
            running.kubectl("apply", "--server-side", "-f", str(definition))
        else:
            running.kubectl("apply", "-f", "-", given=definition)
        yield running
    finally:
        running.stop()


@pytest.mark.parametrize("target", ["kubernetes", "kubernetes-led"])
def test_every_manifest_is_taken_as_it_is(cluster: Cluster, target: str, tmp_path: Path) -> None:
    """No field is unknown to the server, none is refused, and nothing is warned of."""
    shapes = (golden_plan(), plan(instance("mixed", (2, {"1xL4": (1, 9.0)}), *[(3, {"1xL40S": (1, 9.0)})] * 2)))
    for document in shapes:
        for name, text in files(target, document).items():
            if name.endswith(".yaml"):
                (tmp_path / name).write_text(text)
    said = cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(tmp_path))
    assert "Warning" not in said
    assert ("leaderworkerset" in said) == (target == "kubernetes-led")


def rollout(cluster: Cluster, document: Plan, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    document.save(folder / "plan.json")
    words = ["launch", "rollout", "plan.json", "--no-verify", "--target", "kubernetes", "-o", "out", *options]
    return subprocess.run(
        [sys.executable, "-m", "coralopt", *words],
        cwd=folder,
        env=cluster.environment,
        capture_output=True,
        text=True,
        check=False,
    )


def routed(cluster: Cluster) -> set[str]:
    """Pipelines that the router's configuration names."""
    config = cluster.items("configmaps")["coralopt-router"]["data"]["router.json"]
    return {backend["name"] for backend in json.loads(config)["backends"]}


@pytest.mark.parametrize("led", [False, True])
def test_a_plan_follows_another(cluster: Cluster, led: bool, tmp_path: Path) -> None:
    """Made before it breaks: what does not start stops nothing; what stays is not touched; what goes is gone at the end."""
    options = () if led else ("--no-leader-worker-set",)

    def pipelines() -> set[str]:
        sets = {name.rpartition("-s")[0] for name in cluster.items(*STATEFUL_SETS)}
        return sets | set(cluster.items("leaderworkersets", "apis/leaderworkerset.x-k8s.io/v1"))

    first = rollout(cluster, OLD, tmp_path, *options)
    assert first.returncode == 0, first.stderr
    assert pipelines() == routed(cluster) == {STAYS, GONE}
    before = {name: pod["metadata"]["uid"] for name, pod in cluster.items("pods").items()}

    cluster.unready = lambda name: name.startswith(COMES)
    stuck = rollout(cluster, NEW, tmp_path, "--ready-timeout", "3", *options)
    assert (stuck.returncode, "what ran goes on" in stuck.stderr) == (2, True), stuck.stderr
    assert pipelines() == {STAYS, GONE, COMES}
    assert routed(cluster) == {STAYS, GONE}
    assert before.items() <= {name: pod["metadata"]["uid"] for name, pod in cluster.items("pods").items()}.items()

    cluster.unready = lambda name: False
    cluster.seen.clear()
    second = rollout(cluster, NEW, tmp_path, *options)
    assert second.returncode == 0, second.stderr
    assert pipelines() == routed(cluster) == {STAYS, COMES}
    assert f"{COMES}-s0-0" == cluster.seen[0]
    assert cluster.seen[1].startswith("coralopt-router")
    after = {name: pod["metadata"]["uid"] for name, pod in cluster.items("pods").items()}
    assert {after[name] for name in after if name.startswith(STAYS)} <= set(before.values())
    again = rollout(cluster, NEW, tmp_path, *options)
    assert again.returncode == 0, again.stderr
    assert {name: pod["metadata"]["uid"] for name, pod in cluster.items("pods").items()} == after

    cluster.delete(tmp_path / "out")
    assert pipelines() == set()


def test_nodes_are_emptied_one_pod_of_a_phase_at_a_time(cluster: Cluster, tmp_path: Path) -> None:
    """The second eviction waits for the first pod to be back; and one that is lost comes back by itself."""
    assert rollout(cluster, OLD, tmp_path, "--no-leader-worker-set").returncode == 0
    cluster.until(lambda: cluster.disruptions("coralopt-tiny-mixed") == 1)
    cluster.unready = lambda name: True
    assert cluster.evict(f"{STAYS}-s0-0") == 201
    cluster.until(lambda: cluster.disruptions("coralopt-tiny-mixed") == 0)
    assert cluster.evict(f"{GONE}-s0-0") == 429
    cluster.unready = lambda name: False
    cluster.until(lambda: cluster.disruptions("coralopt-tiny-mixed") == 1)
    assert f"{STAYS}-s0-0" in cluster.items("pods")
    cluster.delete(tmp_path / "out")
