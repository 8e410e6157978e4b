#!/bin/sh
# Checks and installs what `make demo` and `make test` need, and prints what it does.
#
#   scripts/setup.sh demo    Rust, and the system programs the demo runs
#   scripts/setup.sh test    the same, and the independent implementations that the tests use
#   scripts/setup.sh bench   as for the demo, and what `godwit bench` measures with
#
# Installs only what is missing: Debian/Ubuntu packages with apt-get (as root, or with sudo if it asks no
# password). Elsewhere it prints the list and stops. Reads nothing from the terminal.
set -eu

purpose=${1:-demo}
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
venv=$root/target/python

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# --- Rust -----------------------------------------------------------------------------------------------
if ! command -v cargo >/dev/null 2>&1; then
    # A login shell would have it on PATH; a fresh one may not.
    if [ -x "$HOME/.cargo/bin/cargo" ]; then
        fail "cargo is in $HOME/.cargo/bin, which is not on PATH: run '. $HOME/.cargo/env' and try again"
    fi
    fail "Rust is missing. Install it from https://rustup.rs (stable, $(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml") or newer) and run this again"
fi
want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
have=$(cargo --version | sed 's/^cargo \([0-9]*\.[0-9]*\).*/\1/')
if [ "$(printf '%s\n%s\n' "$want" "$have" | sort -V | head -n1)" != "$want" ]; then
    fail "Rust $have is too old: $want or newer is needed. Run 'rustup update stable'"
fi

# --- System programs ------------------------------------------------------------------------------------
# Each line: what must be there, and the Debian package that brings it.
missing=
need_program() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] || missing="$missing $2"; }
need_file() { [ -e "$1" ] || missing="$missing $2"; }

need_program cc gcc            # SQLite and the SCTP peer of the tests are C
need_program ip iproute2
need_program ping iputils-ping
need_program curl curl
need_program nft nftables
if [ "$purpose" = test ]; then
    need_program tshark tshark
    need_program python3 python3
    need_program go golang-go      # the independent peer of CoTCP's tests is in Go, as the paper's; 1.19 will do
    need_file /usr/include/usrsctp.h libusrsctp-dev
    # The user plane's backend DPDK is tested where it exists; older releases are left alone.
    need_program pkg-config pkg-config
    pkg-config --exists libdpdk 2>/dev/null || missing="$missing libdpdk-dev"
    python3 -c 'import ensurepip' >/dev/null 2>&1 || missing="$missing python3-venv"
fi

if [ "$purpose" = bench ]; then
    need_program qemu-system-x86_64 qemu-system-x86 # the virtual machine of `bench replication`, and what is in it
    need_program busybox busybox-static
    need_program valgrind valgrind # counts the instructions of `bench upf`
    need_program pkg-config pkg-config
    pkg-config --exists libdpdk 2>/dev/null || missing="$missing libdpdk-dev"
fi

if [ "$purpose" != demo ]; then
    # An OpenFlow switch and its tools, as a peer of ours and in `bench diverting`; they start their own, no service is needed.
    need_program ovs-ofctl openvswitch-common
    need_program ovs-vswitchd openvswitch-switch
    need_program clang clang       # compiles the XDP programs
    need_file /usr/include/linux/bpf.h linux-libc-dev
    need_program ffmpeg ffmpeg     # the stream of `bench video`
    need_program iperf3 iperf3     # the traffic beside it, and `bench end-to-end`
    # Tests and `bench replication` make clusters of their own, in temporary folders.
    if ! command -v postgres >/dev/null 2>&1 && ! ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; then
        missing="$missing postgresql"
    fi
fi

if [ -n "$missing" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        fail "missing:$missing (Debian's names). Install them with your package manager and run this again"
    fi
    if [ "$(id -u)" = 0 ]; then
        sudo=
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        sudo='sudo -n'
    else
        fail "missing:$missing. Run: sudo apt-get install -y --no-install-recommends$missing"
    fi
    say "installing with apt-get:$missing"
    # tshark asks who may capture; the tests only read files, so the default (root) is fine.
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # $sudo and $missing are lists
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get update -q </dev/null
    case $missing in
    *postgresql*)
        # Debian's package would make a cluster for everybody and start it.
        settings=/etc/postgresql-common/createcluster.conf
        [ -e $settings ] || $sudo sh -c "mkdir -p ${settings%/*} && echo 'create_main_cluster = false' >$settings"
        ;;
    esac
    # shellcheck disable=SC2086
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing </dev/null
fi

# --- Python peers of the tests --------------------------------------------------------------------------
if [ "$purpose" = test ]; then
    requirements=$root/scripts/requirements.txt
    if ! cmp -s "$requirements" "$venv/requirements.txt"; then
        say "creating $venv with $(grep -v '^#' "$requirements" | tr '\n' ' ')"
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$requirements" </dev/null
        cp "$requirements" "$venv/requirements.txt"
    fi
fi
say "all there for 'make $purpose'"
