#!/bin/sh
# Make the profiles that kvsim ships from published measurements: `sh calibration/ship.sh DATA [SYSTEM…]`.
# DATA holds aiconfigurator_core/ (the package's `systems` folder or a wheel's contents) and llmservingsim/ (its
# `profiler/perf`). Each profile records the command that made it. About a minute of CPU each.
set -eu
cd "$1"
shift
python=$(dirname "$(command -v kvsim)")/python
profiles=$("$python" -c 'import kvsim, pathlib; print(pathlib.Path(kvsim.__file__).parent / "data/profiles")')
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT

aiconfigurator() { kvsim calibrate import aiconfigurator aiconfigurator_core --system "$@"; }
layers() { kvsim calibrate import llmservingsim llmservingsim --system "$@"; }

for system in ${*:-a100-80-sxm h100-sxm h200-sxm l40s b200 rtx-pro-6000 rtx-4090}; do
    out=$new/$system.json
    case $system in  # as fine as 300 kB allow
    a100-80-sxm) aiconfigurator "$system" --tolerance 0.02 --all-shapes --out "$out" ;;
    l40s)
        aiconfigurator "$system" --tolerance 0.085 --all-shapes --m-knots 68 --m-knots-of fp8=30,fp8_block=18 --out "$out"
        ;;
    b200) aiconfigurator "$system" --tolerance 0.07 --m-knots 48 --out "$out" ;;
    rtx-4090) layers "$system" --tolerance 0.01 --out "$out" ;;
    rtx-pro-6000)
        layers "$system" --tolerance 0.075 --m-knots 30 --out "$new/layers.json"
        # The layers are vLLM 0.19's; so is the all-reduce, 2.4 to 3.5 times slower than the newest table's.
        aiconfigurator "$system" --tolerance 0.09 --m-knots 28 --all-reduce 0.19.0 --onto "$new/layers.json" --out "$out"
        ;;
    *) aiconfigurator "$system" --out "$out" ;;
    esac
    mv "$out" "$profiles/$system.json"
done
