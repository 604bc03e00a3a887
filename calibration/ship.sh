#!/bin/sh
# Make the profiles that kvsim ships from published measurements: `sh calibration/ship.sh DATA [SYSTEM…]`.
# DATA holds aiconfigurator_core/ (the package's `systems` folder or a wheel's contents) and llmservingsim/ (its
# `profiler/perf`). Each profile records the command that made it. A few minutes of CPU each.
set -eu
cd "$1"
shift
profiles=$(cd "$(dirname "$(command -v kvsim)")" && ./python -c 'import kvsim, pathlib; print(pathlib.Path(kvsim.__file__).parent / "data/profiles")')
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
for system in ${*:-a100-80-sxm h100-sxm h200-sxm l40s b200 rtx-pro-6000 rtx-4090}; do
    case $system in
    rtx-4090) kvsim calibrate import llmservingsim llmservingsim --system "$system" --tolerance 0.02 --out "$new/$system.json" ;;
    rtx-pro-6000)
        kvsim calibrate import llmservingsim llmservingsim --system "$system" --tolerance 0.05 --out "$new/layers.json"
        kvsim calibrate import aiconfigurator aiconfigurator_core --system "$system" --tolerance 0.06 \
            --onto "$new/layers.json" --out "$new/$system.json" ;;
    *) kvsim calibrate import aiconfigurator aiconfigurator_core --system "$system" --out "$new/$system.json" ;;
    esac
    mv "$new/$system.json" "$profiles/$system.json"
done
