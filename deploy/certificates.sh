#!/bin/sh
# Certificates with which the nodes of a Ray cluster know each other (docs/clusters.md):
#   deploy/certificates.sh FOLDER HOST...
# writes into FOLDER an authority (ca.crt, and its key, which no node needs) and one
# certificate and key (node.crt, node.key) for all HOSTs, names or IPv4 addresses. They
# hold for a year. Ray connects to nodes by address: name the addresses of all of them.
set -eu
umask 077
test $# -ge 2 || { echo "usage: $0 FOLDER HOST..." >&2; exit 2; }
folder=$1
shift
mkdir -p "$folder"
names=IP:127.0.0.1,DNS:localhost
for host in "$@"; do
  case $host in
    *[!0-9.]*) names=$names,DNS:$host ;;
    *) names=$names,IP:$host ;;
  esac
done
cd "$folder"
openssl req -x509 -newkey rsa:3072 -nodes -days 365 -subj /CN=ray-authority \
    -keyout ca.key -out ca.crt
openssl req -newkey rsa:3072 -nodes -subj /CN=ray-node -keyout node.key -out node.csr
echo "subjectAltName=$names" > node.ext
openssl x509 -req -in node.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 \
    -extfile node.ext -out node.crt
rm node.csr node.ext
