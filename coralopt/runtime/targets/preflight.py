"""Pre-flight check of a pipeline: all-reduce over every process, send and receive between neighbouring stages.

Stand-alone; run it with torchrun on all nodes of the pipeline. NCCL on GPUs, Gloo where there are none. Exit code 0 means
that every number arrived as sent; the bandwidths are printed for a person to judge.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable


def main() -> int:
    """Run the checks; 0 when every number is right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stage-gpus", type=int, default=1, help="processes a stage (tensor-parallel degree)")
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    import torch
    import torch.distributed as dist

    gpus = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo")
    rank, world, width = dist.get_rank(), dist.get_world_size(), arguments.stage_gpus
    elements = arguments.megabytes * 2**20 // 4
    wrong: list[str] = []

    def timed(action: Callable[[], object]) -> float:
        action()
        dist.barrier()
        started = time.perf_counter()
        for _ in range(arguments.repeats):
            action()
        if gpus:
            torch.cuda.synchronize()
        return float(time.perf_counter() - started) / float(arguments.repeats)

    numbers = torch.full((elements,), float(rank + 1), device=device)
    dist.all_reduce(numbers)
    expected = world * (world + 1) / 2
    if not bool((numbers == expected).all()):
        wrong.append(f"all-reduce gave {float(numbers[0])} instead of {expected}")
    seconds = timed(lambda: dist.all_reduce(numbers))
    report = [f"all-reduce of {arguments.megabytes} MiB: {seconds * 1e3:.1f} ms"]

    send = torch.full((elements,), float(rank + 1), device=device)
    inbox = torch.zeros(elements, device=device)

    def hop() -> None:
        """Every process hands on to its counterpart in the next stage, as activations travel."""
        work = []
        if rank + width < world:
            work.append(dist.P2POp(dist.isend, send, rank + width))
        if rank - width >= 0:
            work.append(dist.P2POp(dist.irecv, inbox, rank - width))
        for item in dist.batch_isend_irecv(work) if work else []:
            item.wait()

    hop()
    if rank - width >= 0 and not bool((inbox == float(rank - width + 1)).all()):
        wrong.append(f"stage neighbour {rank - width} sent {float(inbox[0])} instead of {rank - width + 1}")
    if world > width:
        seconds = timed(hop)
        rate = arguments.megabytes * 2**20 / seconds / 1e9
        report.append(f"stage to stage: {seconds * 1e3:.1f} ms, {rate:.2f} GB/s")
    failures = torch.tensor([float(len(wrong))], device=device)
    dist.all_reduce(failures)
    print(f"rank {rank} of {world} on {device}: " + ("; ".join(wrong) if wrong else "; ".join(report)), flush=True)
    dist.destroy_process_group()
    return 1 if float(failures) else 0


if __name__ == "__main__":
    sys.exit(main())
