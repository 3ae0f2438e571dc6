"""Pipelines in the format of Helix's artifact, for its simulator and its runtime."""

from __future__ import annotations

from pathlib import Path

from coralopt.placement.pool import PlacementPool
from coralopt.placement.served.network import PoolNetwork
from coralopt.replacing import replacing

#: The artifact numbers its compute nodes from 2: source and sink come first.
OFFSET = 2


def helix_files(pool: PlacementPool, network: PoolNetwork) -> dict[str, str]:
    """The four files that Helix's ``LayoutSynthesizer`` takes (method ``LoadExisting``), by name.

    ``cluster.ini`` and ``machine_profiles.ini`` say what the pool has, ``solution.ini`` which layers each node holds, and
    ``simulator_cluster.ini`` the nodes in use and the links between them that carry flow. Names of configurations must
    be Helix's machine types.

    Raises:
        SolverError: The pool does not say how its nodes serve.
    """
    serving, cache = pool.served_by()
    links = serving.links
    kinds = [c for c, count in enumerate(pool.counts) for _ in range(count)]
    nodes = range(len(kinds))
    free = {c: [i for i in nodes if kinds[i] == c] for c in range(len(pool.counts))}
    index = [free[int(c)].pop(0) for c in network.kind]
    wire = f"bandwidth={links.bytes_s:.0f}\nlatency={links.latency_ms / 1e3:g}\n"
    nic = f"inbound_nic_speed={links.nic_bytes_s:.0f}\noutbound_nic_speed={links.nic_bytes_s:.0f}\n"
    name = [f"compute_node_{i + OFFSET}" for i in index]
    count = len(index)
    busy = [v for v in range(count) if network.flow[v] > 0]
    used: list[tuple[str, str]] = []
    for v in [count, *busy]:
        for link in range(network.start[v], network.start[v + 1]):
            if network.link_flow[link] > 0:
                goal = int(network.target[link])
                used.append(("source" if v == count else name[v], "sink" if goal == count else name[goal]))
    cluster = [
        f"[NodeNames]\ntotal_compute_nodes={len(kinds)}\n",
        f"[SourceNode]\nconnected_nodes={list(nodes)}\n",
        f"[SinkNode]\nconnected_nodes={list(nodes)}\n",
    ]
    for i in nodes:
        others = ["source", *(j for j in nodes if j != i), "sink"]
        cluster.append(f"[ComputeNode-{i}]\ntype={pool.configurations[kinds[i]]}\nconnected_nodes={others}\n")
    ends = (
        [("source", i) for i in nodes] + [(i, j) for i in nodes for j in nodes if i != j] + [(i, "sink") for i in nodes]
    )
    cluster += [f"[Link-{tail}-{head}]\n{wire}" for tail, head in ends]
    speed = links.nic_bytes_s
    profiles = [
        f"[SourceNode]\ninbound_nic_speed=-1\noutbound_nic_speed={speed:.0f}\ndisk_speed=-1\nvram_size=-1\n",
        f"[SinkNode]\ninbound_nic_speed={speed:.0f}\noutbound_nic_speed=-1\ndisk_speed=-1\nvram_size=-1\n",
    ]
    profiles += [
        f"[{kind}]\n{nic}disk_speed=1000000000\nvram_size={serving.memory_gb[c] * 1e9:.0f}\n"
        for c, kind in enumerate(pool.configurations)
    ]
    solution = [f"[Settings]\noffset={OFFSET}\n", "[Solution]"]
    simulated = [
        f"[Coordinator]\n{nic}",
        f"[MachineTypes]\ntypes={list(pool.configurations)}\n",
        f"[ComputeNodes]\nnames={[name[v] for v in busy]}\n",
    ]
    for v in busy:
        first, layers, c = int(network.first[v]), int(network.layers[v]), int(network.kind[v])
        solution.append(f"{name[v]}={list(range(first, first + layers))}")
        simulated.append(
            f"[{name[v]}]\nvram_size={serving.memory_gb[c] * 1e9:.0f}\n{nic}disk_speed=1000000000\n"
            f'machine_type="{pool.configurations[c]}"\nkv_cache_capacity={int(cache[c, layers]) * layers}\n'
            "activation_backup_capacity=0\n"
        )
    simulated.append(f"[Links]\nnames={[f'link_{tail}_{head}' for tail, head in used]}\n")
    simulated += [f"[link_{tail}_{head}]\nin={tail}\nout={head}\n{wire}" for tail, head in used]
    return {
        "cluster.ini": "\n".join(cluster),
        "machine_profiles.ini": "\n".join(profiles),
        "solution.ini": "\n".join(solution) + "\n",
        "simulator_cluster.ini": "\n".join(simulated),
    }


def write_helix_files(pool: PlacementPool, network: PoolNetwork, folder: Path) -> list[Path]:
    """Write :func:`helix_files` into a folder, which is made where it is missing; the paths.

    Raises:
        SolverError: See :func:`helix_files`.
        OSError: The folder cannot be written.
    """
    files = helix_files(pool, network)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        with replacing(folder / name) as path:
            path.write_text(text, encoding="utf-8")
    return [folder / name for name in files]
