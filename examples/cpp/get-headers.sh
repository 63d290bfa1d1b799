#!/bin/sh
# Puts ONNX Runtime's C and C++ headers into build/onnxruntime/include.
#
# The Python wheel has the library but no headers. Debian's development package has them, 85 kB, and they are the same
# for every processor. Headers of an older release than the library are fine; newer ones are not.
set -eu

package=libonnxruntime-dev_1.21.0+dfsg-1_amd64.deb
sha256=14f7d959d5deacbcf1504830d4189f91fc67382b399ed9ae9d3aa9c4050ced08
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$root/build/onnxruntime
mkdir -p "$folder/include"
curl --fail --silent --show-error --location --output "$folder/$package" "$mirror/pool/main/o/onnxruntime/$package"
echo "$sha256  $folder/$package" | sha256sum --check --quiet
ar p "$folder/$package" data.tar.xz | tar -xJ -C "$folder/include" --strip-components=4 ./usr/include/onnxruntime
echo "$folder/include"
