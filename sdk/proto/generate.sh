#!/bin/sh
# Regenerates the Go code of the protobuf files next to this script and lints
# them. Tools come from tools.mod, pinned. Needs no network once they are cached.
#
#   generate.sh           lint, then generate
#   generate.sh lint      lint only
#   generate.sh breaking [REF]   compare with the files as of a git reference (default main)
set -eu
cd "$(dirname "$0")/../.."
buf() { go tool -modfile=sdk/proto/tools.mod buf "$@"; }
case "${1:-generate}" in
lint) buf lint sdk/proto ;;
breaking)
    old=$(mktemp -d)
    trap 'rm -rf "$old"' EXIT
    git archive "${2:-main}" sdk/proto | tar -x -C "$old"
    buf breaking sdk/proto --against "$old/sdk/proto"
    ;;
generate)
    buf lint sdk/proto
    buf generate sdk/proto --template sdk/proto/buf.gen.yaml
    ;;
*)
    echo "usage: generate.sh [generate|lint|breaking [REF]]" >&2
    exit 2
    ;;
esac
