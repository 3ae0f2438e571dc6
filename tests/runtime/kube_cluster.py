"""A Kubernetes of an API server and its controllers, without nodes: where a pod would run, a thread says that it does."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager")
PATIENCE_S = 120.0
CONTROLLERS = "statefulset,deployment,replicaset,garbagecollector,namespace,disruption,endpointslice"
NAMESPACE = "llm"


def assets() -> Path | None:
    """Where the programs are: KUBEBUILDER_ASSETS, as tests of controllers call it."""
    folder = Path(os.environ.get("KUBEBUILDER_ASSETS", "/nowhere"))
    whole = all((folder / name).is_file() for name in PROGRAMS) and shutil.which("kubectl", path=_path(folder))
    return folder if whole else None


def _path(folder: Path) -> str:
    return f"{folder}:{os.environ['PATH']}"


class Cluster:
    """Runs from ``start`` to ``stop``.

    Attributes:
        kubeconfig: For kubectl; its namespace refuses pods that are not restricted.
        unready: Whether what has this name shall not become ready.
        seen: Names of pods and sets that became ready, in order.
    """

    def __init__(self, programs: Path, place: Path) -> None:
        self.programs, self.place = programs, place
        self.kubeconfig = place / "kubeconfig"
        self.unready: Callable[[str], bool] = lambda name: False
        self.seen: list[str] = []
        self._token = secrets.token_hex()
        self._ended = threading.Event()
        self._children: list[subprocess.Popen[bytes]] = []
        self._nodes = threading.Thread(target=self._pretend, daemon=True)
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE

    def start(self) -> None:
        client, peer, self._port, managers = (_free_port() for _ in range(4))
        etcd, key, tokens = f"http://127.0.0.1:{client}", self.place / "key.pem", self.place / "tokens.csv"
        between = f"http://127.0.0.1:{peer}"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        tokens.write_text(f"{self._token},admin,admin,system:masters\n")
        user = {"name": "a", "user": {"token": self._token}}
        server = {"server": f"https://127.0.0.1:{self._port}", "insecure-skip-tls-verify": True}
        context = {"name": "a", "context": {"cluster": "a", "user": "a", "namespace": NAMESPACE}}
        config = {"users": [user], "clusters": [{"name": "a", "cluster": server}], "contexts": [context]}
        self.kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "a"} | config))
        self._run(
            "etcd",
            data_dir=self.place / "etcd",
            listen_client_urls=etcd,
            advertise_client_urls=etcd,
            listen_peer_urls=between,
            initial_advertise_peer_urls=between,
            initial_cluster=f"default={between}",
        )
        self._run(
            "kube-apiserver",
            etcd_servers=etcd,
            bind_address="127.0.0.1",
            secure_port=self._port,
            cert_dir=self.place / "certificates",
            token_auth_file=tokens,
            authorization_mode="RBAC",
            service_cluster_ip_range="10.0.0.0/24",
            service_account_issuer="https://localhost",
            service_account_signing_key_file=key,
            service_account_key_file=key,
            disable_admission_plugins="ServiceAccount",
        )
        self.until(lambda: self.get("/readyz?verbose=0", text=True))
        self._run(
            "kube-controller-manager",
            kubeconfig=self.kubeconfig,
            controllers=CONTROLLERS,
            leader_elect="false",
            bind_address="127.0.0.1",
            secure_port=managers,
        )
        space = _head("v1", "Namespace", NAMESPACE)
        space["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.kubectl("apply", "-f", "-", given=space)
        self._nodes.start()

    def stop(self) -> None:
        self._ended.set()
        if self._nodes.ident is not None:
            self._nodes.join()
        for child in reversed(self._children):
            child.terminate()
            child.wait(PATIENCE_S)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": _path(self.programs)}

    def kubectl(self, *words: str, given: object = None, fails: bool = False) -> str:
        """What it says; on standard error, too."""
        ended = subprocess.run(
            ["kubectl", *words],
            input=None if given is None else json.dumps(given),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert (ended.returncode != 0) == fails, ended.stdout
        return ended.stdout

    def delete(self, folder: Path) -> None:
        """All that was written there, and all that came of it."""
        self.kubectl("delete", "--wait", "-f", f"{folder}/*.yaml")
        self.until(lambda: not self.items("pods"))

    def get(self, path: str, *, text: bool = False) -> Any:
        with self._ask("GET", path) as answer:
            return answer.read() if text else json.load(answer)

    def items(self, kind: str, group: str = "api/v1") -> dict[str, Any]:
        """Those of a kind in the namespace, by name."""
        items = self.get(f"/{group}/namespaces/{NAMESPACE}/{kind}")["items"]
        return {item["metadata"]["name"]: item for item in items}

    def disruptions(self, budget: str) -> int:
        """Pods that may be evicted now."""
        allowed: int = self.items("poddisruptionbudgets", "apis/policy/v1")[budget]["status"]["disruptionsAllowed"]
        return allowed

    def evict(self, pod: str) -> int:
        """Status of the answer to one who empties a node."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
        try:
            with self._ask("POST", path, _head("policy/v1", "Eviction", pod)) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code

    def _ask(self, method: str, path: str, document: object = None) -> Any:
        request = Request(f"https://127.0.0.1:{self._port}{path}", method=method)
        request.add_header("Authorization", f"Bearer {self._token}")
        if document is not None:
            request.data = json.dumps(document).encode()
            kind = "merge-patch+json" if method == "PATCH" else "json"
            request.add_header("Content-Type", f"application/{kind}")
        return urlopen(request, timeout=PATIENCE_S, context=self._tls)

    def _run(self, program: str, **options: object) -> None:
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        with (self.place / f"{program}.log").open("wb") as log:
            self._children.append(
                subprocess.Popen([str(self.programs / program), *words], stdout=log, stderr=log, cwd=self.place)
            )

    def until(self, holds: Callable[[], object]) -> None:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            with suppress(URLError, HTTPError, OSError):
                if holds():
                    return
            time.sleep(0.2)
        raise AssertionError((self.place / "kube-apiserver.log").read_text()[-3000:])

    def _pretend(self) -> None:
        """Pods run as soon as they are there, and sets whose controller is not here have what they want."""
        ready = {"type": "Ready", "status": "True"}
        sets = {
            "type": "Available",
            "status": "True",
            "reason": "x",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        while not self._ended.wait(0.2):
            for kind, group, condition in (
                ("pods", "api/v1", ready),
                ("leaderworkersets", "apis/leaderworkerset.x-k8s.io/v1", sets),
            ):
                with suppress(HTTPError):
                    for name, item in self.items(kind, group).items():
                        if "conditions" in item.get("status", {}) or self.unready(name):
                            continue
                        status = {"conditions": [condition], **({"phase": "Running"} if kind == "pods" else {})}
                        path = f"/{group}/namespaces/{NAMESPACE}/{kind}/{name}/status"
                        with suppress(HTTPError), self._ask("PATCH", path, {"status": status}):
                            self.seen.append(name)


def _head(version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
