STORE=zookeeper
tool_missing() {
    [ -e /usr/share/java/curator-recipes.jar ] || echo 'libcurator-recipes-java is not installed'
}
tool_about() {
    echo 'Curator: InterProcessMutex around a subprocess; a listener ends it on SUSPENDED or LOST'
}
tool_version() {
    echo "Curator $(dpkg-query -W -f='${Version}' libcurator-recipes-java 2>/dev/null)"
}
tool_run() {
    local classes=$BATS_RUN_TMPDIR/curator-run
    {
        flock -w 90 9 || return
        [ -e "$classes/CuratorRun.class" ] || "${ZK_JAVA%java}javac" -J-XX:TieredStopAtLevel=1 \
            -proc:none -cp "$CURATOR_CLASSPATH" -d "$classes" "$proof/tools/CuratorRun.java" 9>&- ||
            return
    } 9>"$classes.lock"
    exec ${VIA[@]+"${VIA[@]}"} "$ZK_JAVA" -Xmx64m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
        -XX:-UsePerfData -cp "$classes:$CURATOR_CLASSPATH" CuratorRun "$ADDR" "/$NAME" "$TTL_MS" \
        "${@:2}"
}
tool_waiting() { [ "$(zk_ls "/$NAME" | wc -l)" = 2 ]; }
tool_delete() { zk_rm "/$NAME/$(zk_first "/$NAME")"; }
zk_first() { zk_ls "$1" | sed -E 's/.*([0-9]{10})$/\1 &/' | sort | sed -n '1s/.* //p'; }
