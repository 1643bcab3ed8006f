# One ZooKeeper server, ticks of 0.2 s.
store_missing() {
    [ -e /usr/share/java/zookeeper.jar ] || echo 'libzookeeper-java is not installed'
}
store_version() {
    echo "ZooKeeper $(dpkg-query -W -f='${Version}' libzookeeper-java 2>/dev/null)"
}
store_up() { zk_start && ADDR=127.0.0.1:$ZK_PORT; }
store_pids() { echo "${ZK_PIDS[default]}"; }
store_restart() {
    zk_kill
    [ "$1" = keep ] || zk_wipe default
    zk_restart default
}
