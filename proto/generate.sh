# bash proto/generate.sh [--check] PYTHON: generates proto/remote_udf/v1/*_pb2.py*, or checks that they are up to date.
#
# Clusters bring a protobuf of their own. Code of a current generator refuses an older protobuf at import; code
# of this one needs protobuf 4.25 and runs on every later one so far. Hence the pin, in a venv of its own.
set -euo pipefail

check=no
if [ "$1" = --check ]; then
  check=yes
  shift
fi
python=$1
cd "$(dirname "$0")/.."

if ! "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then
  echo "generated code: not compared, since grpcio-tools 1.62 cannot be installed on Python 3.13 and later"
  [ $check = yes ]
  exit
fi

if [ ! -e .venv-proto/done ]; then
  "$python" -m venv --clear .venv-proto
  # Later releases of setuptools lack pkg_resources, which this generator imports.
  .venv-proto/bin/python -m pip install -q --only-binary :all: 'grpcio-tools==1.62.3' 'protobuf>=4.25,<5' 'setuptools<81'
  touch .venv-proto/done
fi

out=proto
if [ $check = yes ]; then
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi
(
  cd proto
  ../.venv-proto/bin/python -W ignore -m grpc_tools.protoc -I . \
    --python_out="$(cd .. && realpath "$out")" --pyi_out="$(cd .. && realpath "$out")" remote_udf/v1/*.proto
)

if [ $check = yes ]; then
  for file in "$out"/remote_udf/v1/*; do
    if ! diff -u "proto/remote_udf/v1/$(basename "$file")" "$file"; then
      echo "generated code: $(basename "$file") is not what the .proto files say; run make proto" >&2
      exit 1
    fi
  done
  echo "generated code: up to date"
fi
