#!/usr/bin/env bash
# Pre-flight check of tiny-prefill-us-east-2-1xl4-2xl4-0-s1: 2xL4 (no instance type known), layers 2-7 of tiny/prefill in us-east-2
set -euo pipefail
# Run on all nodes of the pipeline at once, before the servers; torch must be installed.
here="$(cd "$(dirname "$0")" && pwd)"
own_address="${CORALOPT_ADDRESS:-$(hostname -I | cut -d" " -f1)}"
export VLLM_HOST_IP="$own_address"
(
export NCCL_SOCKET_IFNAME=eth0
export GLOO_SOCKET_IFNAME=eth0
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=0
torchrun \
  --nnodes 3 \
  --nproc-per-node 1 \
  --node-rank 1 \
  --master-addr tiny-prefill-us-east-2-1xl4-2xl4-0-s0 \
  --master-port 29400 \
  "$here"/preflight.py --stage-gpus 1
) &
(
export NCCL_SOCKET_IFNAME=eth0
export GLOO_SOCKET_IFNAME=eth0
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=1
torchrun \
  --nnodes 3 \
  --nproc-per-node 1 \
  --node-rank 2 \
  --master-addr tiny-prefill-us-east-2-1xl4-2xl4-0-s0 \
  --master-port 29400 \
  "$here"/preflight.py --stage-gpus 1
) &
for job in $(jobs -p); do wait "$job"; done
