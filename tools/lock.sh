#!/bin/sh
# Pins what a fresh environment of this Python resolves to: constraints/py<version>.txt.
set -eu
python=${1:-python3}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check '.[s3,azure,test]'
{
  echo "# What a fresh environment of Python $version resolved to; made by tools/lock.sh."
  "$scratch/venv/bin/python" -m pip freeze --disable-pip-version-check --exclude ejcache | grep '==' | grep -v '^ejcache'
} > "constraints/py$version.txt"
echo "constraints/py$version.txt: $(grep -c == "constraints/py$version.txt") packages"
