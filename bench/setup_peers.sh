#!/usr/bin/env bash
# Makes the virtual environments of the libraries that bench/ measures beside this one, each its own, once.
#   bench/setup_peers.sh            all of them
#   bench/setup_peers.sh torch      some of them: torch, jax
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
  touch "$folder/$name/complete"
  echo "$name: set up in $folder/$name"
}

if [ $# -eq 0 ]; then
  set -- torch jax
fi
for peer in "$@"; do
  case $peer in
    torch) setup torch torch==2.13.0 numpy ;;
    jax) setup jax jax jaxlib numpy ;;
    *) echo "no peer named $peer: torch or jax" >&2; exit 2 ;;
  esac
done
