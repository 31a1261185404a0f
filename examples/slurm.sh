#!/bin/sh
# Compile on a node without GPUs, then train on eight nodes of 8 H100 that load what was compiled.
#
# Once, on such nodes, with the flags of the training:
#   srun --nodes 8 --ntasks-per-node 8 --gpus-per-task 1 ejcache target save h100-64 --distributed
set -eu
export JAX_COMPILATION_CACHE_DIR=/shared/project/compiled

compile=$(sbatch --parsable --partition cpu --cpus-per-task 8 --mem 16G \
  --wrap 'ejcache target diff h100-64 && ejcache warm train.py:steps --target h100-64')

sbatch --dependency "afterok:$compile" --nodes 8 --ntasks-per-node 8 --gpus-per-task 1 --wrap 'srun ejcache run train.py'
