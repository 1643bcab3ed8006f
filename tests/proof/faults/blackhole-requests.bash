# As blackhole-both, for what A sends to the store.
. "$proof/faults/blackhole-both.bash"
FAULT_TITLE="requests lost for 3 ttl" FAULT_ORDER=70
LOST=requests
