#!/bin/sh
# System packages that some tests need, on Debian or Ubuntu: PostgreSQL's server and Chromium. Does nothing where they are there.
set -eu

has() { command -v "$1" >/dev/null 2>&1; }

wanted=""
has postgres || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || wanted="postgresql"
has chromium || has chromium-browser || has google-chrome || has google-chrome-stable || wanted="$wanted chromium fonts-dejavu-core"
if [ -z "$wanted" ]; then
    echo "PostgreSQL and Chromium are installed"
    exit 0
fi
if ! has apt-get; then
    echo "no apt-get here; please install:$wanted" >&2
    exit 1
fi
root=""
[ "$(id -u)" -eq 0 ] || root="sudo"
$root apt-get update -q
case "$wanted" in
*chromium*) apt-cache show chromium >/dev/null 2>&1 || wanted=$(echo "$wanted" | sed 's/chromium/chromium-browser/') ;; # Ubuntu's name
esac
# shellcheck disable=SC2086 - several packages
$root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $wanted
