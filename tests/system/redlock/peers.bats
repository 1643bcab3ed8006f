#!/usr/bin/env bats
# peers.bats - other programs that lock the same names on the same nodes: redis-py's Lock on each of
# them, and node-redlock. They and dlock exclude each other, and each one's release lets the other
# in.

load ../../support/common
load ../../support/redis
load ../../support/redlock

setup() {
    dlock_setup
    rl_start 5
    L=$(rl_uri "$NAME")
}

# bats test_tags=plain
@test "redis-py's Lock and dlock exclude and wake each other" {
    /usr/bin/python3 -c 'import redis' 2>/dev/null || skip "python3-redis is not installed"
    cat >lock.py <<'PY'
import redis, subprocess, sys, time
dlock, uri, name, ports = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
nodes = [redis.Redis(port=int(p)) for p in ports]

def lock(which=range(5)):
    """Theirs on these nodes; None where it is held."""
    locks = [nodes[i].lock(name, timeout=60, sleep=0.05) for i in which]
    return locks if all([l.acquire(blocking=False) for l in locks]) else None

def try_once():
    return subprocess.call([dlock, "-q", "-n", uri, "true"])

def watched():
    return sum(n.info("clients")["tracking_clients"] > 0 for n in nodes) >= 3

theirs = lock()
assert try_once() == 75
for l in theirs[:2]:
    l.release()
assert try_once() == 75
waiter = subprocess.Popen([dlock, "--ttl", "60", uri, "true"])
end = time.monotonic() + 5
while not watched():
    assert time.monotonic() < end, "dlock does not watch"
    time.sleep(0.02)
begin = time.monotonic()
theirs[2].release()
assert waiter.wait(5) == 0
assert time.monotonic() - begin < 1, "woken late"
# The last two are theirs all the time.
for l in theirs[3:]:
    assert l.owned()
    l.release()

pipe = subprocess.PIPE
holder = subprocess.Popen([dlock, uri, "sh", "-c", "echo; read x; true"], stdin=pipe, stdout=pipe)
holder.stdout.readline()
assert not any(n.lock(name, timeout=60).acquire(blocking=False) for n in nodes)
holder.stdin.close()
patient = [n.lock(name, timeout=60, sleep=0.05) for n in nodes]
assert all(l.acquire(blocking_timeout=5) for l in patient)
assert holder.wait(5) == 0
assert try_once() == 75
for l in patient:
    l.release()
assert try_once() == 0
PY
    run_t 20 /usr/bin/python3 lock.py "$DLOCK" "$L" "$NAME" $RL_PORTS
    [ -z "$(rl_left)" ]
}

# node_redlock: installed below the build directory, once; as its lock file says.
node_redlock() {
    local dir=$BUILD/node-redlock from=$ROOT/tests/peers/node-redlock
    command -v npm >/dev/null && command -v node >/dev/null ||
        skip "no npm here, so no node-redlock"
    mkdir -p "$dir"
    exec 8>"$dir/lock"
    flock 8
    if ! cmp -s "$from/package-lock.json" "$dir/installed"; then
        cp "$from"/package*.json "$dir"
        timeout -k 2 90 npm --prefix "$dir" --cache "$dir/cache" ci --ignore-scripts --no-audit \
            --no-fund --no-update-notifier \
            --fetch-retries=1 --fetch-timeout=20000 >"$dir/log" 2>&1 </dev/null 3>&- 8>&- ||
            skip "node-redlock cannot be installed: $(grep -m1 -i error "$dir/log")"
        cp "$from/package-lock.json" "$dir/installed"
    fi
    exec 8>&-
    export NODE_PATH=$dir/node_modules
}

# Installing it takes a while.
# bats test_tags=slow
@test "node-redlock and dlock exclude and wake each other" {
    node_redlock
    run_t 20 node "$ROOT/tests/peers/node-redlock/excludes.js" "$DLOCK" "$L" "$NAME" $RL_PORTS
    run_t 20 node "$ROOT/tests/peers/node-redlock/excludes.js" "$DLOCK" \
        "redis://127.0.0.1:$(rl_port 1)#$NAME" "$NAME" "$(rl_port 1)"
    [ -z "$(rl_left)" ]
}
