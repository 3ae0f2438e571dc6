#!/usr/bin/env bash
# Pre-flight check of tiny-prefill-us-east-2-1xl4-1xl40s-0-s0: 1xL4 (no instance type known), layers 0-2 of tiny/prefill in us-east-2
set -euo pipefail
# Run on all nodes of the pipeline at once, before the servers; torch must be installed.
here="$(cd "$(dirname "$0")" && pwd)"
own_address="${CORALOPT_ADDRESS:-$(hostname -I | cut -d" " -f1)}"
export VLLM_HOST_IP="$own_address"
export VLLM_NIXL_SIDE_CHANNEL_HOST="$own_address"
export NCCL_SOCKET_IFNAME=eth0
export GLOO_SOCKET_IFNAME=eth0
torchrun \
  --nnodes 2 \
  --nproc-per-node 1 \
  --node-rank 0 \
  --master-addr tiny-prefill-us-east-2-1xl4-1xl40s-0-s0 \
  --master-port 29400 \
  "$here"/preflight.py --stage-gpus 1
