"""Reference engine: any plan's stages on torch.distributed. For checking plans and timing stages, not for serving.

Stock vLLM runs stages of one node each. This engine runs what the planner may return: uneven layers, several data-parallel
nodes in a stage with a node picked per request and stage by weighted round robin, prefill and decode instances with a
handover of the KV cache. A node is one process on one device: tensor parallelism inside a node is left out. It simulates a
fixed list of prompts greedily; there is no HTTP, no arrival process and no admission control.

Only the workers import torch; nothing here does on import.
"""

from coralopt.reference.run import ReferenceOptions, ReferenceReport, run_reference
from coralopt.reference.schedule import Assignment, ReferenceNode, Turn, assign

__all__ = [
    "Assignment",
    "ReferenceNode",
    "ReferenceOptions",
    "ReferenceReport",
    "Turn",
    "assign",
    "run_reference",
]
