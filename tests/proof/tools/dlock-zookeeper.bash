. "$proof/tools/dlock.bash"
STORE=zookeeper
dlock_lock() { echo "zk://$ADDR$DLOCK_PARAMS#$NAME"; }
tool_delete() { zk_rm "/$NAME/$(zk_first "/$NAME")"; }
# zk_first PATH: the node of its holder: the lowest number, whatever stands before that.
zk_first() { zk_ls "$1" | sed -E 's/.*([0-9]{10})$/\1 &/' | sort | sed -n '1s/.* //p'; }
