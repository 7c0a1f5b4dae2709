#!/usr/bin/env bash
# Makes the virtual environments of the libraries that bench/ measures beside this one, each its own, once.
#   bench/setup_peers.sh            all of them
#   bench/setup_peers.sh torch      some of them: torch, jax, tinygrad-0.14
# They lie in $BENCH_PEERS, by default ~/.cache/tinygrad-bench. Delete a folder there to make it anew.
set -euo pipefail
folder=${BENCH_PEERS:-$HOME/.cache/tinygrad-bench}
mkdir -p "$folder"

setup() {
  local name=$1
  shift
  if [ -e "$folder/$name/complete" ]; then
    echo "$name: already in $folder/$name"
    return
  fi
  python3 -m venv --clear "$folder/$name"
  "$folder/$name/bin/python" -m pip install --quiet "$@"
  if [ "$name" = tinygrad-0.14 ]; then
    clang_from_zig "$folder/$name"
  fi
  touch "$folder/$name/complete"
  echo "$name: set up in $folder/$name"
}

# The public tinygrad compiles through a `clang` on the path. The one that comes with Zig is a plain clang
# (22.1.8 in ziglang 0.17.0) and needs nothing but pip.
clang_from_zig() {
  local zig
  zig=$("$1/bin/python" -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__))')/zig
  printf '#!/bin/sh\nexec "%s" clang "$@"\n' "$zig" > "$1/bin/clang"
  chmod +x "$1/bin/clang"
}

if [ $# -eq 0 ]; then
  set -- torch jax tinygrad-0.14
fi
for peer in "$@"; do
  case $peer in
    torch) setup torch torch==2.13.0 numpy ;;
    jax) setup jax jax==0.10.2 jaxlib==0.10.2 numpy ;;
    tinygrad-0.14) setup tinygrad-0.14 tinygrad==0.14.0 ziglang==0.17.0 numpy ;;
    *) echo "no peer named $peer: torch, jax or tinygrad-0.14" >&2; exit 2 ;;
  esac
done
