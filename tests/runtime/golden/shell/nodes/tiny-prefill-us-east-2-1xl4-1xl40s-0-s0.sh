#!/usr/bin/env bash
# Node tiny-prefill-us-east-2-1xl4-1xl40s-0-s0: 1xL4 (no instance type known), layers 0-2 of tiny/prefill in us-east-2
set -euo pipefail
own_address="${CORALOPT_ADDRESS:-$(hostname -I | cut -d" " -f1)}"
export VLLM_HOST_IP="$own_address"
export VLLM_NIXL_SIDE_CHANNEL_HOST="$own_address"
export VLLM_PP_LAYER_PARTITION=3,5
export NCCL_SOCKET_IFNAME=eth0
export GLOO_SOCKET_IFNAME=eth0
export VLLM_NIXL_SIDE_CHANNEL_PORT=5600
exec vllm serve /models/tiny \
  --served-model-name tiny \
  --host tiny-prefill-us-east-2-1xl4-1xl40s-0-s0 \
  --port 8000 \
  --shutdown-timeout 120 \
  --tensor-parallel-size 1 \
  --pipeline-parallel-size 2 \
  --nnodes 2 \
  --node-rank 0 \
  --master-addr tiny-prefill-us-east-2-1xl4-1xl40s-0-s0 \
  --master-port 29500 \
  --max-model-len auto \
  --max-num-seqs 9 \
  --max-num-batched-tokens 512 \
  --compilation-config '{"cudagraph_capture_sizes":[1,2,4,8,16,24,32,40,48,56,64,72,80,88,96,104,112,120,128,136,144,152,160,168,176,184,192,200,208,216,224,232,240,248,256,288,320,352,384,416,448,480,512]}' \
  --gpu-memory-utilization 0.9 \
  --kv-transfer-config '{"kv_connector":"NixlPushConnector","kv_role":"kv_producer"}'
