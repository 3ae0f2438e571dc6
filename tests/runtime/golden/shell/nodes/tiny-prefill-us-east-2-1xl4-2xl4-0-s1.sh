#!/usr/bin/env bash
# Node tiny-prefill-us-east-2-1xl4-2xl4-0-s1: 2xL4 (no instance type known), layers 2-7 of tiny/prefill in us-east-2
set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT TERM INT
(
own_address="${CORALOPT_ADDRESS:-$(hostname -I | cut -d" " -f1)}"
export VLLM_HOST_IP="$own_address"
export VLLM_PP_LAYER_PARTITION=2,3,3
export NCCL_SOCKET_IFNAME=eth0
export GLOO_SOCKET_IFNAME=eth0
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=0
exec vllm serve /models/tiny \
  --served-model-name tiny \
  --tensor-parallel-size 1 \
  --pipeline-parallel-size 3 \
  --nnodes 3 \
  --node-rank 1 \
  --master-addr tiny-prefill-us-east-2-1xl4-2xl4-0-s0 \
  --master-port 29500 \
  --headless \
  --max-model-len auto \
  --max-num-seqs 4 \
  --max-num-batched-tokens 512 \
  --compilation-config '{"cudagraph_capture_sizes":[1,2,4,8,16,24,32,40,48,56,64,72,80,88,96,104,112,120,128,136,144,152,160,168,176,184,192,200,208,216,224,232,240,248,256,288,320,352,384,416,448,480,512]}' \
  --gpu-memory-utilization 0.9 \
  --kv-transfer-config '{"kv_connector":"NixlPushConnector","kv_role":"kv_producer"}'
) &
(
own_address="${CORALOPT_ADDRESS:-$(hostname -I | cut -d" " -f1)}"
export VLLM_HOST_IP="$own_address"
export VLLM_PP_LAYER_PARTITION=2,3,3
export NCCL_SOCKET_IFNAME=eth0
export GLOO_SOCKET_IFNAME=eth0
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=1
exec vllm serve /models/tiny \
  --served-model-name tiny \
  --tensor-parallel-size 1 \
  --pipeline-parallel-size 3 \
  --nnodes 3 \
  --node-rank 2 \
  --master-addr tiny-prefill-us-east-2-1xl4-2xl4-0-s0 \
  --master-port 29500 \
  --headless \
  --max-model-len auto \
  --max-num-seqs 4 \
  --max-num-batched-tokens 512 \
  --compilation-config '{"cudagraph_capture_sizes":[1,2,4,8,16,24,32,40,48,56,64,72,80,88,96,104,112,120,128,136,144,152,160,168,176,184,192,200,208,216,224,232,240,248,256,288,320,352,384,416,448,480,512]}' \
  --gpu-memory-utilization 0.9 \
  --kv-transfer-config '{"kv_connector":"NixlPushConnector","kv_role":"kv_producer"}'
) &
wait -n
