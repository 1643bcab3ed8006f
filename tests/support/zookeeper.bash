# zookeeper.bash - ZooKeeper servers for tests, one or an ensemble of three, each on free loopback
# ports, in a folder of its own.
#
#     load ../../support/zookeeper
#     zk_start [KEY=VALUE...] [-JVMOPTION...]   ZK_PORT ZK_PID ZK_DIR (data in data/) ZK_LOG; lines
#                                     for zoo.cfg, e.g. maxSessionTimeout=2000, and what is for the
#                                     JVM (-Dx=y)
#     zk_start_in NAME [ARG...]        another one; ${ZK_PORTS[NAME]} ${ZK_PIDS[NAME]}
#                                      ${ZK_LOGS[NAME]}
#     zk_ensemble [ARG...]             three, named 1 2 3; ZK_HOSTS (for a URI); ZK_PORT is that of
#                                      the first
#     zk_leader | zk_followers         names; zk_ensemble_up: is there a leader with two followers?
#     zk_stop | zk_kill [NAME]         SIGTERM, KILL
#     zk_restart NAME [ARG...]         same ports, same data; kills it, if it still runs
#     zk_wipe NAME                     (while it is down) its data is lost
#     zk_cmd WORD [NAME]               four-letter words: srvr mntr cons dump wchs wchc ruok ...
#     zk_mntr KEY [NAME]               one number, e.g. sum_node_deleted_watch_count, watch_count,
#                                      znode_count
#     zk_sessions [NAME]               IDs (0x...) that have not ended, connected or not; NAME: the
#                                      leader
#     zk_connected [NAME]              IDs of those that have a connection here
#     zk_ls|zk_tree|zk_get|zk_stat|zk_gone|zk_acl|zk_create|zk_fill|zk_set|zk_rm ARG...  see
#                                     helpers/zk.py; ZK_PORT says where
#     zk_kill_session ID               an expiry without waiting for it
#     proxy FAULT WHAT [N [CODE]]      helpers/zkproxy.py before the server; P is the lock by way of
#                                      it. struck: it has done that; end_proxy
#     zk_hold [-t MS] [-s] PATH [DATA] for start and start_log: a foreign ephemeral node
#
# In setup_file zk_start and zk_ensemble export the variables for the tests, and teardown_file calls
# zk_stop_all. In a test dlock_teardown ends them. A test that stops a server starts one of its own
# (about a second).
#
# Times: a tick is 200 ms, so sessions of 400 ms and more are possible; one ends up to a tick after
# its time-out. Empty containers are reaped every 500 ms. A follower without its leader goes on
# serving reads for syncLimit (10 ticks).

# In another network namespace (netns.bash): ZK_VIA=(nsenter -t "$NET_S" -n --) before zk_start
# clientPortAddress=0.0.0.0; the queries go there, too. PORT=$ZK_PORT for net_lose_replies.

declare -gA ZK_PORTS ZK_PIDS ZK_DIRS ZK_LOGS ZK_PEERS
ZK_VIA=()

# A JVM takes options from these, and says so on stderr.
unset JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS JDK_JAVAC_OPTIONS _JAVA_OPTIONS

# zookeeper.jar names the jars it needs, but no logger.
ZK_CLASSPATH=/usr/share/java/slf4j-simple.jar:/usr/share/java/zookeeper.jar
# The distribution's own java, not another one that comes first in PATH.
ZK_JAVA=java
for f in /usr/lib/jvm/default-java/bin/java /usr/lib/jvm/java-*-openjdk-*/bin/java; do
    [ ! -x "$f" ] || { ZK_JAVA=$f; break; }
done
unset f

# ---------------------------------------------------------------- server ---

zk_start() {
    zk_start_in default "$@" || return
    zk_export default
}

zk_export() {
    export ZK_PORT=${ZK_PORTS[$1]} ZK_PID=${ZK_PIDS[$1]} ZK_DIR=${ZK_DIRS[$1]} ZK_LOG=${ZK_LOGS[$1]}
}

# zk_archive: classes for the JVM to map, which saves a third of a server's start. Made once for all
# files of a run, by a server that ends when it has started. Without it servers start, too.
zk_archive() {
    local file=$BATS_RUN_TMPDIR/zookeeper.jsa
    {
        flock -w 90 9 || return 0
        [ ! -e "$file.begun" ] || return 0
        : >"$file.begun"
        zk_start_in archive -XX:ArchiveClassesAtExit="$file.new" 9>&- || return 0
        kill "${ZK_PIDS[archive]}"
        ! wait_for 20 pid_gone "${ZK_PIDS[archive]}" || mv "$file.new" "$file" || :
        zk_kill archive
    } 9>"$file.lock" 2>>"$file.log"
}

zk_start_in() {
    local name=$1 try
    shift
    [ $name = archive ] || zk_archive
    for try in 1 2 3 4 5; do
        zk_folder "$name" || return
        ZK_PORTS[$name]=$(some_port)
        zk_launch "$name" "$@"
        zk_wait "$name" zk_serves && return 0
        # Another server had the port, or this one cannot start at all.
        zk_kill "$name"
        grep -q 'Address already in use' "${ZK_LOGS[$name]}" || break
    done
    echo "zk_start: $name: no server after $try tries:" >&2
    tail -n 40 "${ZK_LOGS[$name]}" >&2
    return 1
}

# Election and quorum ports are chosen beforehand: all three must know them.
zk_ensemble() {
    local try i
    zk_archive
    for try in 1 2 3 4 5; do
        ZK_QUORUM=()
        for i in 1 2 3; do
            zk_folder $i || return
            echo $i >"${ZK_DIRS[$i]}/data/myid"
            ZK_PORTS[$i]=$(some_port)
            ZK_QUORUM+=("server.$i=127.0.0.1:$(some_port):$(some_port)")
        done
        for i in 1 2 3; do
            ZK_PEERS[$i]=$(printf '%s\n' initLimit=50 syncLimit=10 "${ZK_QUORUM[@]}")
            zk_launch $i "$@"
        done
        if zk_wait 1 zk_serves && zk_wait 2 zk_serves && zk_wait 3 zk_serves &&
            wait_for 10 zk_ensemble_up; then
            ZK_HOSTS=$(printf ',127.0.0.1:%s' "${ZK_PORTS[1]}" "${ZK_PORTS[2]}" "${ZK_PORTS[3]}")
            export ZK_HOSTS=${ZK_HOSTS:1}
            zk_export 1
            return 0
        fi
        for i in 1 2 3; do zk_kill $i; done
        grep -q 'Address already in use' "${ZK_LOGS[1]}" "${ZK_LOGS[2]}" "${ZK_LOGS[3]}" || break
    done
    echo "zk_ensemble: no leader after $try tries:" >&2
    tail -n 20 "${ZK_LOGS[1]}" "${ZK_LOGS[2]}" "${ZK_LOGS[3]}" >&2
    return 1
}

zk_folder() {
    local dir
    zk_kill "$1"
    dir=$(mktemp -d "${BATS_TEST_TMPDIR:-${BATS_FILE_TMPDIR:?}}/zk-$1.XXXXXX") &&
        mkdir "$dir/data" || return
    ZK_DIRS[$1]=$dir ZK_LOGS[$1]=$dir/log
    unset "ZK_PEERS[$1]"
}

# zk_launch NAME ARG...: does not wait until it serves. With --pdeathsig none outlives the shell
# that started it, even if that is killed. No leak marker: it belongs to the file or test that ends
# it by pid.
zk_launch() {
    local name=$1 dir=${ZK_DIRS[$1]} arg
    local -a jvm
    shift
    # What comes later counts.
    printf '%s\n' tickTime=200 minSessionTimeout=400 maxSessionTimeout=40000 maxClientCnxns=0 \
        forceSync=no \
        admin.enableServer=false '4lw.commands.whitelist=*' clientPortAddress=127.0.0.1 \
        clientPort="${ZK_PORTS[$name]}" dataDir="$dir/data" "${ZK_PEERS[$name]:-}" >"$dir/zoo.cfg"
    jvm=(-Xms32m -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto -XX:-UsePerfData
        -Dzookeeper.preAllocSize=256 -Dznode.container.checkIntervalMs=500
        -Dorg.slf4j.simpleLogger.showDateTime=true
        -Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS)
    [ ! -e "$BATS_RUN_TMPDIR/zookeeper.jsa" ] ||
        jvm+=(-XX:SharedArchiveFile="$BATS_RUN_TMPDIR/zookeeper.jsa")
    for arg; do
        case $arg in
        -*) jvm+=("$arg") ;;
        *) echo "$arg" >>"$dir/zoo.cfg" ;;
        esac
    done
    : >"$dir/log"
    env -u DLOCK_TEST_ID setpriv --pdeathsig KILL "${ZK_VIA[@]}" \
        "$ZK_JAVA" "${jvm[@]}" -cp "$ZK_CLASSPATH" \
        org.apache.zookeeper.server.quorum.QuorumPeerMain \
        "$dir/zoo.cfg" >>"$dir/log" 2>&1 </dev/null 3>&- &
    ZK_PIDS[$name]=$!
}

# zk_wait NAME CMD: until CMD NAME succeeds; 1 when the server ended first, or after 30 s.
zk_wait() { until_ready 30 "${ZK_PIDS[$1]}" "$2" "$1"; }

# It listens before it serves, and a question that comes in between may never be answered. So the
# log first: the last thing that a server says when it has started, and each new leader or follower
# says it, too.
zk_serves() {
    grep -qE 'ContainerManager - Using|Learner.* - Learner received UPTODATE' "${ZK_LOGS[$1]}" &&
        [[ $(zk_cmd srvr "$1") == *Mode:* ]]
}

zk_restart() {
    local name=$1
    shift
    [ -n "${ZK_DIRS[$name]:-}" ] || fail "zk_restart: this shell did not start $name" || return
    zk_kill "$name"
    zk_launch "$name" "$@"
    zk_wait "$name" zk_serves || { tail -n 40 "${ZK_LOGS[$name]}" >&2; return 1; }
    case $name/${ZK_PORTS[$name]} in default/* | 1/* | */"${ZK_PORT:-}") zk_export "$name" ;; esac
}

zk_wipe() { rm -rf "${ZK_DIRS[$1]:?}/data/version-2"; }

zk_stop() { zk_end TERM "${1:-default}"; }
zk_kill() { zk_end KILL "${1:-default}"; }

zk_end() {
    local pid=${ZK_PIDS[$2]:-}
    [ -z "$pid" ] || end_job "$1" "$pid"
    unset "ZK_PIDS[$2]"
}

# Those that this shell started (not a server of setup_file).
zk_stop_all() {
    local name
    for name in "${!ZK_PIDS[@]}"; do zk_kill "$name"; done
}

# -------------------------------------------------------------- ensemble ---

zk_mode() { zk_cmd srvr "$1" | sed -n 's/^Mode: //p'; }

zk_leader() {
    local i
    for i in 1 2 3; do [ "$(zk_mode $i)" != leader ] || echo $i; done
}
zk_followers() {
    local i
    for i in 1 2 3; do [ "$(zk_mode $i)" != follower ] || echo $i; done
}
zk_ensemble_up() { [ "$(zk_leader | wc -l)" -eq 1 ] && [ "$(zk_followers | wc -l)" -eq 2 ]; }

# --------------------------------------------------------------- queries ---

# In a test the arrays of setup_file are not there any more, the exported variables are.
zk_port_of() {
    local hosts
    IFS=, read -r -a hosts <<<"${ZK_HOSTS:-}"
    case ${ZK_PORTS[$1]:-}/$1 in
    /default) echo "${ZK_PORT:-}" ;;
    /*) echo "${hosts[$1 - 1]##*:}" ;;
    *) echo "${ZK_PORTS[$1]}" ;;
    esac
}

# Without a process. A server that is frozen, or not ready, does not answer: nothing then, and 1.
zk_cmd() {
    local port fd out=
    port=$(zk_port_of "${2:-default}")
    if [ ${#ZK_VIA[@]} -gt 0 ]; then
        "${ZK_VIA[@]}" "$ROOT/tests/support/helpers/zk.py" "$port" cmd "$1" 3>&-
        return
    fi
    { exec {fd}<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
    printf %s "$1" >&"$fd"
    # Up to the end of what it says.
    IFS= read -r -d '' -t 1 out <&"$fd" || :
    exec {fd}>&-
    [ -n "$out" ] && printf %s "$out"
}

# 1 when there is no such key: a wrong name must not look like a zero.
zk_mntr() {
    zk_cmd mntr "${2:-default}" |
        awk -v key="zk_$1" '$1 == key { print $2; found = 1 } END { exit !found }'
}

# From the part about sessions alone: below it the owners of nodes and the connections are listed.
# Only who counts time-outs knows all: the leader, or a server that is alone.
zk_sessions() { zk_cmd dump "${1:-default}" | sed -nE '/^ephemeral/q; s/^\t(0x[0-9a-f]+).*/\1/p'; }
zk_connected() { zk_cmd cons "${1:-default}" | grep -oE 'sid=0x[0-9a-f]+' | cut -d= -f2; }

zk_py() {
    timeout -k 2 20 "${ZK_VIA[@]}" "$ROOT/tests/support/helpers/zk.py" "$ZK_PORT" "$@" 3>&-
}
zk_ls() { zk_py ls "$@"; }
zk_tree() { zk_py tree "$@"; }
zk_get() { zk_py get "$@"; }
zk_stat() { zk_py stat "$@"; }
zk_gone() { zk_py gone "$@"; }
zk_acl() { zk_py acl "$@"; }
zk_create() { zk_py create "$@"; }
zk_set() { zk_py set "$@"; }
zk_fill() { zk_py fill "$@"; }
zk_rm() { zk_py rm "$@"; }
zk_kill_session() { zk_py kill "$@"; }
# In the subshell of `start`: the helper gets its pid.
zk_hold() { exec "${ZK_VIA[@]}" "$ROOT/tests/support/helpers/zk.py" "$ZK_PORT" hold "$@" 3>&-; }

# ----------------------------------------------------------------- others ---

# For start and start_log: kazoo_lock PATH KIND GO [OPTION...], curator_lock PATH KIND GO [try]; see
# the heads of helpers/kazoo_lock.py and helpers/CuratorLock.java. At $ZK_PORT. curator_build in
# setup_file, once.
kazoo_lock() { exec "$ROOT/tests/support/helpers/kazoo_lock.py" "127.0.0.1:$ZK_PORT" "$@" 3>&-; }

CURATOR_CLASSPATH=/usr/share/java/slf4j-nop.jar:/usr/share/java/curator-recipes.jar
curator_build() {
    export CURATOR_CLASSES=${BATS_RUN_TMPDIR:?}/curator
    {
        flock -w 90 9 || return
        [ ! -e "$CURATOR_CLASSES/CuratorLock.class" ] || return 0
        "${ZK_JAVA%java}javac" -J-XX:TieredStopAtLevel=1 -proc:none -cp "$CURATOR_CLASSPATH" \
            -d "$CURATOR_CLASSES" "$ROOT/tests/support/helpers/CuratorLock.java" 3>&- 9>&-
    } 9>"$CURATOR_CLASSES.lock"
}
curator_lock() {
    exec "$ZK_JAVA" -Xmx64m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData \
        -cp "$CURATOR_CLASSES:$CURATOR_CLASSPATH" CuratorLock "127.0.0.1:$ZK_PORT" "$@" 3>&-
}

proxy() {
    rm -f "$T/proxy" # that of the one before
    start_log "$T/proxy" "$ROOT/tests/support/helpers/zkproxy.py" "$ZK_PORT" "$@"
    PROXY=$STARTED
    wait_for 5 test -s "$T/proxy"
    P="zk://127.0.0.1:$(head -n 1 "$T/proxy")#$NAME"
}
# A command, for sh -c, that lasts until then.
UNTIL_STRUCK='until grep -q "done" proxy; do sleep 0.05; done'
struck() { file_has "$T/proxy" "done"; }
end_proxy() {
    kill "$PROXY"
    wait_for 5 pid_gone "$PROXY"
}
